"""The scripts of under_load.sh: small runs on a tiny model, llama-server played by a few lines; their verdicts on made-up
figures. Nothing here depends on how fast anything is."""

import contextlib
import http.server
import io
import json
import os
import pathlib
import sys
import tempfile
import threading
import unittest
from unittest import mock

ROOT = pathlib.Path.cwd()
sys.path.append(str(ROOT / "tests/bench/peers"))

import case_report  # noqa: E402
import compare_ttft  # noqa: E402
import load_client  # noqa: E402
import overload  # noqa: E402
import runs  # noqa: E402
from served import Scrape  # noqa: E402

MODEL = str(ROOT / "tests/golden/models/tiny-llama-q")


def bin_dir():
    """One folder with all programs, as under_load.sh makes it."""
    folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")))
    for path in ("coordinator/tools/bitshard", "coordinator/bitshard-coordinator", "worker/bitshard-worker",
                 "tests/bench/load/load_client"):
        os.symlink(ROOT / path, folder / pathlib.Path(path).name)
    return folder


def output_of(program, *flags):
    """What main() prints with these flags, and its figures."""
    folder = bin_dir()
    out, path = io.StringIO(), folder / "figures.json"
    arguments = ["program", f"--bin-dir={folder}", f"--model={MODEL}", f"--json={path}", "--vocabulary=500", *flags]
    with mock.patch.object(sys, "argv", arguments), contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        program.main()
    print(out.getvalue())
    return out.getvalue(), json.loads(path.read_text())


class OverloadTest(unittest.TestCase):
    def test_a_small_run(self):
        text, figures = output_of(overload, "--max-running=4", "--slo=5", "--coordinator-flags=--max-waiting=8",
                                  "--prompt-tokens=16", "--output-tokens=32", "--callers=16", "--seconds=1.5")
        self.assertEqual(list(figures["runs"]), ["one caller", "16 callers", "3 x the peak"])
        for name, figure in figures["runs"].items():
            self.assertEqual(figure["served"] + figure["refused"], figure["calls"], name)
            self.assertEqual(figure["failed"], 0)
            self.assertGreater(figure["served"], 0)
            self.assertIn(name, text)
        self.assertEqual(len(figures["gates"]), 4)
        self.assertEqual(figures["runs"]["16 callers"]["refused"], 0, "who was refused came back")
        crowd = figures["runs"]["3 x the peak"]
        self.assertGreater(crowd["calls"], 0)
        if crowd["refused"]:
            self.assertGreater(crowd["refusal_p99_s"], 0)

    def test_the_gates_are_missed_where_they_should_be(self):
        good = {"goodput": 95.0, "ttft_p99_s": 0.9, "failed": 0}
        peak = {"goodput": 100.0}

        def verdicts(refusal_s=0.001, **changes):
            return [met for *_, met in overload.gates(peak, {**good, **changes}, refusal_s, 1.0)]

        self.assertEqual(verdicts(), [True] * 4)
        self.assertEqual(verdicts(refusal_s=0.011), [False, True, True, True])
        self.assertEqual(verdicts(refusal_s=None), [False, True, True, True])
        self.assertEqual(verdicts(ttft_p99_s=1.1), [True, False, True, True])
        self.assertEqual(verdicts(ttft_p99_s=None), [True, False, True, True])
        self.assertEqual(verdicts(goodput=89.0), [True, True, False, True])
        self.assertEqual(verdicts(failed=1), [True, True, True, False])


class LlamaServer(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()
        for _ in range(request["n_predict"]):
            self.wfile.write(b'data: {"content": "a", "stop": false}\n\n')
        self.wfile.write(b'data: {"content": "", "stop": true, "tokens_predicted": %d}\n\n' % request["n_predict"])

    def log_message(self, *_):
        pass


class TtftTest(unittest.TestCase):
    def test_a_small_run(self):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), LlamaServer)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()

        @contextlib.contextmanager
        def played(_args, setting):
            self.assertIn(setting, compare_ttft.SETTINGS)
            yield f"127.0.0.1:{server.server_port}"

        try:
            with mock.patch.object(compare_ttft, "llama_server", played):
                text, figures = output_of(compare_ttft, "--peers=/none", "--callers=3", "--calls=9", "--prompt-tokens=40",
                                          "--output-tokens=5", "--settings=default,batch 512")
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
        self.assertEqual(set(figures["calls"]), {"bitshard", "default", "batch 512"})
        for rounds in figures["calls"].values():
            self.assertEqual([len(calls) for calls in rounds], [9, 9])
        for name in ("bitshard, 2 workers x 1 thread", "llama-server, default", "llama-server, batch 512"):
            self.assertIn(name, text)

    def test_the_ratio_is_of_medians_over_all_rounds(self):
        def made(*ttfts):
            return [load_client.Call(due_s=0, sent_s=i, first_s=i + ttft, end_s=i + ttft + 1, tokens=11, attempts=1, code="OK",
                                     message="", pushback_ms=None, digest="") for i, ttft in enumerate(ttfts)]

        ours, theirs = [made(0.1, 0.2), made(0.2, 0.3)], [made(1.0, 1.0, 9.0)]
        cells = dict(zip(compare_ttft.HEAD, compare_ttft.row("x", theirs, ours)))
        self.assertEqual((cells["TTFT p50 ms"], cells["TTFT p99 ms"], cells["x ours"]), ("1000", "9000", "5.00"))
        self.assertEqual(cells["ms a token p50"], "100.0")

    def test_an_answer_that_is_too_short_is_an_error(self):
        call = load_client.Call(due_s=0, sent_s=0, first_s=1, end_s=2, tokens=3, attempts=1, code="OK", message="",
                                pushback_ms=None, digest="")
        args = mock.Mock(output_tokens=4)
        with self.assertRaisesRegex(runs.Failed, "3 tokens instead of 4"):
            compare_ttft.check("x", [call], args)


class Page(http.server.BaseHTTPRequestHandler):
    text = ""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.text.encode())

    def log_message(self, *_):
        pass


def scrape(text):
    Page.text = text
    server = http.server.HTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.handle_request)
    thread.start()
    try:
        return Scrape(server.server_port)
    finally:
        thread.join()
        server.server_close()


class ScrapeTest(unittest.TestCase):
    PAGE = """# HELP t_seconds x
# TYPE t_seconds histogram
t_seconds_bucket{model="a",le="0.1"} %d
t_seconds_bucket{model="a",le="0.2"} %d
t_seconds_bucket{model="a",le="+Inf"} %d
state{state="ready",model="a"} 1
state{state="lost",model="a"} 0
"""

    def test_quantiles_are_of_what_came_since(self):
        before, after = scrape(self.PAGE % (5, 5, 5)), scrape(self.PAGE % (55, 105, 105))
        self.assertAlmostEqual(after.quantile("t_seconds", 0.5, before), 0.1)
        self.assertAlmostEqual(after.quantile("t_seconds", 0.75, before), 0.15)
        self.assertIsNone(before.quantile("t_seconds", 0.5, before))
        self.assertEqual(after.sum("state", 'state="ready"'), 1)
        self.assertEqual(after.sum("state"), 1)


if __name__ == "__main__":
    case_report.main()
