"""Many callers at once, on few connections: all their streams are open together, memory is bounded by their number, each
gets its whole answer, who comes beyond the bound is told when to come back, and the memory serves the next crowd and is
given back in the end.

The figure for 10,000 streams on 50 connections (docs/benchmarks.md, "Under load"):
  bazel test //tests/e2e:many_streams_test --test_output=all --test_env=BITSHARD_TEST_STREAMS=10000 ...
"""

import json
import os
import pathlib
import re
import tempfile
import time
import unittest

import case_report
import load_client
from live_service import ROOT, Service, golden_model
from metrics_page import Page

STREAMS = int(os.environ.get("BITSHARD_TEST_STREAMS", "2000"))
CHANNELS = max(5, STREAMS // 200)
MAX_RUNNING = 32
# So many hold every place until all streams are open and they are cancelled: the next take over from those that end, and
# none ends soon.
BLOCKERS, BLOCKER_TOKENS = max(128, STREAMS // 20), 8000
BEYOND = BLOCKERS + 100  # more than blockers may leave room for
PROMPTS, PROMPT, OUTPUT = 16, 8, 16
PATIENCE_S = 240
# Of the coordinator, for each stream that is open: gRPC's call, the request in the engine, the writer's buffers.
BYTES_A_STREAM = 48 << 10
SETTLE_S = 60  # until freed memory is given back; every 5 s it is looked after


def patient_model():
    """The tiny model, with a context that has room for blockers."""
    golden = pathlib.Path(golden_model("tiny-llama-q"))
    folder = pathlib.Path(tempfile.mkdtemp(prefix="model-", dir=os.environ.get("TEST_TMPDIR")))
    for file in golden.iterdir():
        (folder / file.name).symlink_to(file.resolve())
    config = json.loads((golden / "config.json").read_text()) | {"max_position_embeddings": 2 * BLOCKER_TOKENS}
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def resident_bytes(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(re.search(r"VmRSS:\s+(\d+) kB", status).group(1))


def open_files(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def file_limit(pid):
    limits = pathlib.Path(f"/proc/{pid}/limits").read_text()
    return int(re.search(r"Max open files\s+(\d+)", limits).group(1))


class ManyStreamsTest(unittest.TestCase):
    def test_a_crowd_is_served_and_its_memory_serves_the_next(self):
        blocks = MAX_RUNNING * (BLOCKER_TOKENS // 16 + 2) + 64
        flags = [f"--max-running={MAX_RUNNING}", f"--max-waiting={STREAMS + BLOCKERS}", f"--kv-blocks={blocks}"]
        with Service(patient_model(), workers=2, coordinator_flags=flags) as service:
            self.pid = service.coordinator_pid()
            alone = self._client(service, calls=PROMPTS, callers=1).calls()
            self.assertEqual({call.code for call in alone}, {"OK"})
            answers = [call.digest for call in alone]
            self.assertGreater(len(set(answers)), 1)

            before = resident_bytes(self.pid)
            first = self._crowd(service, answers)
            second = self._crowd(service, answers)
            growth = first["peak"] - before
            end = time.monotonic() + SETTLE_S
            while resident_bytes(self.pid) > before + growth / 2 and time.monotonic() < end:
                time.sleep(0.1)
            after = resident_bytes(self.pid)
            mb = 1e-6
            print(f"resident memory of the coordinator: {before * mb:.1f} MB before, {first['peak'] * mb:.1f} MB with "
                  f"{first['open']:.0f} streams open, {second['peak'] * mb:.1f} MB with the next {second['open']:.0f}, "
                  f"{after * mb:.1f} MB some seconds after; {growth / first['open'] / 1024:.1f} KiB a stream")
            self.assertLess(growth / first["open"], BYTES_A_STREAM)
            self.assertLess(second["peak"], first["peak"] + growth / 4)
            self.assertLess(after, before + growth / 2)

    def _client(self, service, **settings):
        return load_client.LoadClient(ROOT / "tests/bench/load/load_client", address=f"127.0.0.1:{service.ports['port']}",
                                      prompts=PROMPTS, prompt_tokens=PROMPT, output_tokens=OUTPUT, vocabulary=512,
                                      token_ids=True, **settings)

    def _await(self, what, done):
        end = time.monotonic() + PATIENCE_S
        while not done():
            self.assertLess(time.monotonic(), end, what)
            time.sleep(0.02)

    def _crowd(self, service, answers):
        port = service.ports["metrics_port"]
        start = Page(port)
        files = open_files(self.pid)

        def since(name, **labels):
            page = Page(port)
            return page.sum(name, **labels) - start.sum(name, **labels)

        began = time.monotonic()
        client = self._client(service, calls=STREAMS + BEYOND, channels=CHANNELS, blockers=BLOCKERS,
                              blocker_tokens=BLOCKER_TOKENS)
        client.await_line("blockers sent")
        self._await("blockers do not run", lambda: since("bitshard_requests_received_total") == BLOCKERS and
                    service.load().running == MAX_RUNNING)
        client.go()
        client.await_line("calls sent")
        everybody = BLOCKERS + STREAMS + BEYOND
        self._await("not all requests arrive", lambda: since("bitshard_requests_received_total") == everybody and
                    Page(port).sum("bitshard_requests_validating") == 0)
        opened_s = time.monotonic() - began
        page = Page(port)
        waiting, peak, peak_files = service.load().waiting, resident_bytes(self.pid), open_files(self.pid)
        streams = {"grpc_service": "bitshard.v1.Inference", "grpc_method": "Generate"}
        live = page.sum("bitshard_grpc_server_started_total", **streams) - page.sum(
            "bitshard_grpc_server_handled_total", **streams)
        client.go()
        deadline = time.monotonic() + PATIENCE_S
        while client.process.poll() is None and time.monotonic() < deadline:
            peak = max(peak, resident_bytes(self.pid))
            # What it prints at its end is more than a pipe holds.
            if not service.load().running and not service.load().waiting:
                break
            time.sleep(0.02)
        document = client.document()
        calls = [load_client.Call(**call) for call in document["calls"]]
        took_s = time.monotonic() - began
        load = service.await_idle()

        served = [i for i, call in enumerate(calls) if call.code == "OK"]
        refused = [call for call in calls if call.code == "RESOURCE_EXHAUSTED"]
        print(f"{live:.0f} streams open on {CHANNELS} connections after {opened_s:.1f} s ({waiting} wait, {MAX_RUNNING} run), "
              f"{len(served)} served and {len(refused)} refused after {took_s:.1f} s; {peak_files} open files of "
              f"{file_limit(self.pid)}, {files} before")
        self.assertEqual(len(served) + len(refused), len(calls), {call.code: call.message for call in calls})
        self.assertGreaterEqual(len(served), STREAMS)
        self.assertGreater(len(refused), 0)
        # The crowd was all there, in the queue, when the blockers went.
        self.assertGreaterEqual(waiting, STREAMS)
        self.assertGreaterEqual(live, STREAMS)
        for i in served:
            self.assertEqual((calls[i].tokens, calls[i].digest), (OUTPUT, answers[i % PROMPTS]), f"call {i}")
        for call in refused:
            self.assertEqual(call.tokens, 0)
            self.assertGreater(call.pushback_ms, 0)
        self.assertLessEqual(peak_files - files, CHANNELS + 8, "streams share the connections' files")
        self.assertEqual((load.running, load.waiting, load.waiting_tokens, load.blocks.used), (0, 0, 0, 0))
        return {"peak": peak, "open": live}


if __name__ == "__main__":
    case_report.main()
