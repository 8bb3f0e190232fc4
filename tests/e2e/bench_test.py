"""`bitshard bench` on a service of its own and on a running one: what its JSON holds, and that the figures fit together.

No time is asserted: only that what was measured is counted, and that what is derived follows from the samples.
"""

import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import unittest

import case_report
from live_service import BITSHARD, ROOT, Service, golden_model

SIZES = ("--prefill=24", "--decode=101", "--context=0,40", "--concurrent=3", "--concurrent-context=8")
LINES = {  # name -> sequences, tokens of the timed phase at most (in decode less what came with the first token)
    "prefill 24": (1, 24),
    "decode 101 at 0": (1, 100),
    "decode 101 at 40": (1, 100),
    "3 x decode 101 at 8": (3, 300),
}


def bench(*args, folder=None):
    folder = folder or pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")))
    for path in ("coordinator/bitshard-coordinator", "worker/bitshard-worker"):
        os.symlink(ROOT / path, folder / pathlib.Path(path).name)
    return subprocess.run([str(ROOT / BITSHARD), "bench", f"--bin-dir={folder}", *args], capture_output=True, text=True,
                          timeout=120, check=False)


def running_from(folder):
    """Command lines of the processes whose program is in `folder`."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if command[0].startswith(f"{folder}/"):
            found.append(command)
    return found


def parsed(test, result):
    test.assertEqual(result.returncode, 0, result.stderr)
    return json.loads(result.stdout)


class BenchTest(unittest.TestCase):
    def check_lines(self, document, repeat, cpu):
        """Every sample is there, counts its tokens, and the medians are the samples'."""
        self.assertEqual([line["name"] for line in document["lines"]], list(LINES))
        for line in document["lines"]:
            sequences, tokens = LINES[line["name"]]
            self.assertEqual(line["sequences"], sequences)
            self.assertEqual(len(line["samples"]), repeat, line["name"])
            for sample in line["samples"]:
                if line["kind"] == "prefill":
                    self.assertEqual(sample["tokens"], tokens)
                else:
                    self.assertTrue(0 < sample["tokens"] <= tokens, f"{line['name']}: {sample['tokens']}")
                if line["kind"] == "decode" and sequences == 1:
                    self.assertEqual(len(sample["gaps_ms"]), sample["tokens"], line["name"])
                self.assertGreater(sample["wall_s"], 0)
                self.assertEqual(len(sample["ttft_ms"]), sequences)
                self.assertEqual(bool(sample["gaps_ms"]), line["kind"] == "decode", line["name"])
                if cpu:
                    self.assertGreater(sample["cpu_s"], 0, line["name"])
                else:
                    self.assertIsNone(sample["cpu_s"])
            self.assertEqual(any("bursts" in doubt for doubt in line["doubts"]), any(s["burst"] for s in line["samples"]))
            median = line["median"]
            rates = [s["tokens"] / s["wall_s"] for s in line["samples"]]
            self.assertAlmostEqual(median["tokens_per_s"], statistics.median(rates), delta=1e-9 * max(rates))
            if cpu:
                rates = [s["tokens"] / s["cpu_s"] for s in line["samples"]]
                self.assertAlmostEqual(median["tokens_per_cpu_s"], statistics.median(rates), delta=1e-9 * max(rates))
            else:
                self.assertIsNone(median["tokens_per_cpu_s"])
            ttft = [statistics.median(s["ttft_ms"]) for s in line["samples"]]
            self.assertTrue(min(ttft) <= median["ttft_ms"] <= max(ttft))
            gaps = [gap for s in line["samples"] for gap in s["gaps_ms"]]
            if gaps:
                self.assertIn(median["gap_p50_ms"], gaps)
                self.assertTrue(median["gap_p50_ms"] <= median["gap_p99_ms"] <= max(gaps))

    def check_shares(self, document):
        """Shares are of the bytes and operations that the document names."""
        service, peaks = document["service"], document["machine"]["peaks"]
        for line in document["lines"]:
            rate = line["median"]["tokens_per_s"]
            work = 2 * service["layer_parameters"]
            self.assertAlmostEqual(line["median"]["int_share"], rate * work / peaks["int_ops_per_s"], places=9)
            if line["kind"] == "prefill":
                self.assertIsNone(line["median"]["read_share"])
                continue
            context = line["prompt_tokens"] + line["output_tokens"] / 2
            read = service["step_weight_bytes"] / line["sequences"] + context * service["kv_bytes_a_token"]
            self.assertAlmostEqual(line["median"]["read_share"], rate * read / peaks["read_bytes_per_s"], places=9)

    def test_local_starts_measures_and_ends_a_service(self):
        folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")))
        document = parsed(self, bench("--local", golden_model("tiny-llama-q"), "--workers=2", "--threads=1",
                                      "--repeat=3", "--json", *SIZES, folder=folder))
        self.assertEqual(running_from(folder), [])
        self.check_lines(document, repeat=3, cpu=True)
        self.check_shares(document)
        self.assertEqual(document["service"]["workers"], 2)
        self.assertTrue(document["service"]["local"])
        self.assertEqual(document["flags"]["threads"], "1")
        self.assertEqual(document["machine"]["peaks"]["threads"], min(2, document["machine"]["cpus"]))

    def test_local_with_other_numerics(self):
        document = parsed(self, bench("--local", golden_model("gguf-Q4_1"), "--activations=f32", "--kv-cache-dtype=f32",
                                      "--repeat=1", "--json", *SIZES))
        self.check_lines(document, repeat=1, cpu=True)
        self.assertEqual(document["service"]["activations"], "f32")
        self.assertEqual(document["service"]["kv_cache_type"], "f32")

    def test_a_running_service_is_measured_and_left_running(self):
        model = golden_model("tiny-llama-q")
        with Service(model, workers=1) as service:
            address = f"--address=127.0.0.1:{service.ports['port']}"
            admin = f"--admin-address=127.0.0.1:{service.ports['admin_port']}"
            plain = parsed(self, bench(address, "--repeat=2", "--json", *SIZES))
            self.check_lines(plain, repeat=2, cpu=False)
            self.assertFalse(plain["service"]["local"])
            self.assertIsNone(plain["lines"][1]["median"]["read_share"])
            full = parsed(self, bench(address, admin, model, "--repeat=1", "--json", *SIZES))
            self.check_lines(full, repeat=1, cpu=False)
            self.check_shares(full)
            self.assertEqual(full["service"]["workers"], 1)
            self.assertTrue(service.status().ready)
            service.await_idle()

    def test_the_table_has_a_row_a_line(self):
        result = bench("--local", golden_model("tiny-llama-q"), "--repeat=1", *SIZES)
        self.assertEqual(result.returncode, 0, result.stderr)
        for name in LINES:
            self.assertIn(f"\n{name} ", result.stdout)

    def test_prompts_from_a_text(self):
        path = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")), "text.txt")
        path.write_text("def main(): return a text that is short\n", encoding="utf-8")
        document = parsed(self, bench("--local", golden_model("tiny-llama-q"), f"--prompt-file={path}", "--repeat=1",
                                      "--json", *SIZES))
        self.check_lines(document, repeat=1, cpu=True)
        self.assertEqual(document["flags"]["prompt-file"], str(path))

    def test_bad_flags_say_what_they_take(self):
        model = golden_model("tiny-llama-q")
        for flags, word in ((("--local",), "exactly one model"), (("one", "two"), "one model at most"), (("--local", model, "--decode=1"), "2 tokens"),
                            (("--local", model, "--context=long"), '"long" is not a whole number'),
                            (("--local", model, "--concurrent=1"), "from 2"), (("--local", model, "--repeat=0"), "1 to 1000"),
                            (("--local", model, "--workers=0"), "1 to 64"),
                            (("--local", model, "--prefill=", "--decode=0"), "nothing to measure")):
            result = bench(*flags)
            self.assertEqual(result.returncode, 2, flags)
            self.assertIn(word, result.stderr, flags)

    def test_failures_say_what_to_try(self):
        model = golden_model("tiny-llama-q")
        for flags, word in ((("--local", "/no/such.gguf"), "/no/such.gguf"), (("--address=127.0.0.1:1",), "127.0.0.1:1"),
                            (("--local", model, "--context=9999999"), "exceed the model's context"),
                            (("--local", model, "--prompt-file=/no/text", *SIZES), "/no/text"),
                            (("--local", model, "--activations=a99", *SIZES), "coordinator did not start")):
            result = bench(*flags)
            self.assertEqual(result.returncode, 1, flags)
            self.assertIn(word, result.stderr, flags)


if __name__ == "__main__":
    case_report.main()
