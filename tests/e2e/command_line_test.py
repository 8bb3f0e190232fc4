"""What a person sees of the `bitshard` command: help that teaches, and errors that say what to try."""

import json
import os
import pathlib
import re
import socket
import subprocess
import tempfile
import unittest

import case_report
from live_service import BITSHARD, ROOT, Service, admin_pb, golden_model, pb


def run(*args, timeout=60):
    return subprocess.run([str(ROOT / BITSHARD), *args], capture_output=True, text=True, timeout=timeout, check=False)


def serve(model, *args):
    folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
    for path in ("coordinator/bitshard-coordinator", "worker/bitshard-worker"):
        os.symlink(ROOT / path, pathlib.Path(folder) / pathlib.Path(path).name)
    return run("serve", model, f"--bin-dir={folder}", "--port=0", *args)


class CommandLineTest(unittest.TestCase):
    def test_overview_lists_the_verbs(self):
        result = run("--help")
        self.assertEqual(result.returncode, 0)
        for verb in ("serve", "complete", "chat", "inspect", "bench", "eval"):
            self.assertIn(verb, result.stdout)

    def test_every_verb_has_help_with_an_example(self):
        for verb in ("serve", "complete", "chat", "inspect", "bench", "eval"):
            result = run(verb, "--help")
            self.assertEqual(result.returncode, 0, verb)
            self.assertIn(f"bitshard {verb}", result.stdout)
            self.assertIn("Example", result.stdout, verb)

    def test_unknown_and_unbuilt_verbs_name_what_there_is(self):
        for verb, word in (("frobnicate", "no verb"), ("quantize", "not built yet")):
            result = run(verb)
            self.assertEqual(result.returncode, 2)
            self.assertIn(word, result.stderr)
            self.assertIn("serve", result.stderr)

    def test_help_of_an_unknown_verb_is_an_error(self):
        result = run("help", "nonsense")
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertIn('no verb "nonsense"', result.stderr)
        self.assertEqual(run("help", "serve").stdout, run("serve", "--help").stdout)

    def test_a_flag_of_another_program_is_named_with_the_way_to_it(self):
        for verb, flags, words in (
                ("serve", ["--memory=4GiB"], "--memory is a flag of the worker: --worker-flags=--memory=4GiB\n"),
                ("bench", ["--memory", "4GiB"], "--worker-flags=--memory=4GiB\n"),
                ("eval", ["--profile_ops", "x"], "--profile-ops is a flag of the worker: --worker-flags=--profile-ops\n"),
                ("serve", ["--noprofile-ops"], "--worker-flags=--noprofile-ops\n"),
                ("serve", ["--max-running=8"],
                 "--max-running is a flag of the coordinator: --coordinator-flags=--max-running=8\n"),
                ("serve", ["--token-file=x"],
                 "of the coordinator and of the worker: --coordinator-flags=--token-file=x or --worker-flags=--token-file=x"),
                ("complete", ["--max-running=8"], "there is no flag --max-running")):
            result = run(verb, *flags)
            self.assertEqual(result.returncode, 2, flags)
            self.assertIn(words, result.stderr, flags)

    def test_serve_knows_every_flag_of_the_other_programs(self):
        for program in ("coordinator/bitshard-coordinator", "worker/bitshard-worker"):
            text = subprocess.run([str(ROOT / program), "--help"], capture_output=True, text=True, timeout=60,
                                  check=False).stdout
            flags = set(re.findall(r"^ +(--[a-z0-9_-]+)", text, re.MULTILINE)) - {"--help", "--version"}
            self.assertGreater(len(flags), 15, text)
            for flag in sorted(flags):
                self.assertNotIn("there is no flag", run("serve", f"{flag}=1").stderr, flag)

    def test_an_address_has_a_port(self):
        for command, flag in ((("complete", "x"), "--address"), (("chat", "x"), "--address"), (("bench",), "--address"),
                              (("inspect",), "--admin-address"), (("bench",), "--admin-address")):
            for address in ("localhost", "localhost:", ":50051", "localhost:0"):
                result = run(*command, f"{flag}={address}")
                self.assertEqual(result.returncode, 2, command)
                self.assertIn(f"{flag}={address}: give host:port", result.stderr, command)

    def test_text_that_is_not_utf8_is_named(self):
        for command, given, what in ((("complete", "-"), b"ab\xff", "standard input: must be UTF-8, and is not from byte 2"),
                                     (("complete", b"\xe4"), b"", "the prompt: must be UTF-8"),
                                     (("complete", "x", b"--stop=\xe4"), b"", "--stop: must be UTF-8"),
                                     (("chat", b"\xe4"), b"", "the question: must be UTF-8"),
                                     (("chat", "x", b"--system=\xe4"), b"", "--system: must be UTF-8")):
            result = subprocess.run([str(ROOT / BITSHARD), *command, "--address=127.0.0.1:1"], input=given,
                                    capture_output=True, timeout=60, check=False)
            self.assertEqual(result.returncode, 2, command)
            self.assertIn(what, result.stderr.decode(), command)
            self.assertNotIn("libprotobuf", result.stderr.decode())

    def test_a_timeout_that_was_too_short_is_named(self):
        with Service(golden_model("tiny-llama-q"), workers=1) as service:
            result = run("complete", "x", f"--address=127.0.0.1:{service.ports['port']}", "--timeout=1ns")
            self.assertEqual(result.returncode, 1)
            self.assertIn("DEADLINE_EXCEEDED: the answer took longer than --timeout=1ns; raise it", result.stderr)

    def test_wrong_flags_end_with_2_and_name_the_program_and_its_help(self):
        coordinator, worker = ROOT / "coordinator/bitshard-coordinator", ROOT / "worker/bitshard-worker"
        bitshard = ROOT / BITSHARD
        for command, words in (
                ((bitshard, "serve", "m", "--no-such=1"), ("bitshard serve: there is no flag --no-such", "bitshard serve --help")),
                ((bitshard, "chat", "x", "--timeout=30"), ("bitshard chat: --timeout=30", "write 30s")),
                ((bitshard, "serve", "m", "--port=http"), ("--port=http", "whole number")),
                ((bitshard, "serve", "m", "--worker-flags=isa=avx2"), ("--worker-flags=isa=avx2", "begin with --")),
                ((coordinator, "--no-such"), ("bitshard-coordinator: there is no flag --no-such", "--help")),
                ((coordinator, "--stall-timeout=5"), ("--stall-timeout=5", "write 5s")),
                ((worker, "--isa"), ("bitshard-worker: --isa needs a value",)),
                ((worker, "word"), ("bitshard-worker: unexpected argument \"word\"",))):
            result = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual(result.returncode, 2, f"{command}: {result.stderr}")
            for word in words:
                self.assertIn(word, result.stderr, command)

    def test_every_program_answers_help_and_version(self):
        for program in ("coordinator/bitshard-coordinator", "worker/bitshard-worker"):
            for flag, words in (("--help", ("--log-level=info", "Exit codes")), ("-h", ("--token-file",)), ("--version", ("bitshard",))):
                result = subprocess.run([str(ROOT / program), flag], capture_output=True, text=True, timeout=60, check=False)
                self.assertEqual(result.returncode, 0, f"{program} {flag}: {result.stderr}")
                for word in words:
                    self.assertIn(word, result.stdout)

    def test_workers_that_cannot_start_end_serve_at_once_with_2(self):
        for flag, word in (("--device=gpu", "--device=gpu"), ("--worker-flags=--memory=lots", "lots")):
            result = serve(golden_model("tiny-llama-q"), flag, "--workers=2")
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn(word, result.stderr)
            self.assertNotIn("starting it again", result.stderr)

    def test_a_wrong_token_ends_a_worker_with_5_and_its_reason(self):
        with Service(golden_model("tiny-llama-q")) as service:
            result = subprocess.run([str(ROOT / "worker/bitshard-worker"), f"--coordinator=127.0.0.1:{service.ports['fleet_port']}"],
                                    capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual(result.returncode, 5, result.stderr)
            self.assertIn("turned away", result.stderr)

    def test_a_worker_at_another_port_than_the_fleets_is_told(self):
        with Service(golden_model("tiny-llama-q")) as service:
            with subprocess.Popen([str(ROOT / "worker/bitshard-worker"), f"--coordinator=127.0.0.1:{service.ports['port']}"],
                                  stderr=subprocess.PIPE, text=True) as worker:
                for line in worker.stderr:
                    if "fleet port" in line:
                        break
                else:
                    self.fail("it ended")
                worker.kill()

    def test_flags_for_the_coordinator_may_have_values_with_commas(self):
        with Service(golden_model("tiny-llama-q"), workers=2, coordinator_flags=["--shares=3,1", "--max-running=3"]) as service:
            weights = [rank.weight_bytes for rank in service.status().ranks]
            self.assertGreater(weights[0], weights[1])

    def test_a_port_that_is_taken_is_named_in_one_line(self):
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = other.getsockname()[1]
            for flag in (f"--port={port}", f"--metrics-port={port}", f"--coordinator-flags=--health-port={port}"):
                result = serve(golden_model("tiny-llama-q"), flag)
                self.assertEqual(result.returncode, 1, result.stderr)
                self.assertIn(f"127.0.0.1:{port}", result.stderr)
                self.assertIn("taken?", result.stderr)
                for word in ("chttp2", "CivetServer", "kvlist"):
                    self.assertNotIn(word, result.stderr)

    def test_another_port_than_the_admin_port_is_named_as_such(self):
        with Service(golden_model("tiny-llama-q"), workers=1) as service:
            public = f"127.0.0.1:{service.ports['port']}"
            for command in (("inspect", f"--admin-address={public}"),
                            ("bench", f"--address={public}", f"--admin-address={public}", "--prefill=8", "--decode=0")):
                result = run(*command)
                self.assertEqual(result.returncode, 1, command)
                self.assertIn(f"--admin-address={public}: is no bitshard admin port", result.stderr)

    def test_a_drain_by_an_operator_ends_serve_with_a_word(self):
        with Service(golden_model("tiny-llama-q"), workers=2) as service:
            service.admin.Drain(admin_pb.DrainRequest(), timeout=10)
            self.assertEqual(service.process.wait(60), 0)
            self.assertIn("bitshard serve: drained", service.log())
            self.assertNotIn("starting it again", service.log())
            errors = [line for line in service.log().splitlines() if " E bitshard-" in line]
            self.assertEqual(errors, [])

    def test_inspect_shows_formats_and_the_plan(self):
        result = run("inspect", golden_model("gguf-Q4_1"), "--ranks=3")
        self.assertEqual(result.returncode, 0, result.stderr)
        for word in ("q4_1", "q8_0", "3 workers", "kernels of this machine", "GMAC/s"):
            self.assertIn(word, result.stdout)

    def test_inspect_counts_a_head_that_is_the_embedding_too_once(self):
        untied = pathlib.Path(golden_model("ct-int4-embed-lmhead-int8"))
        tied = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")))
        config = json.loads((untied / "config.json").read_text())
        (tied / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
        # The same file without the embedding: only the head is stored.
        stored = (untied / "model.safetensors").read_bytes()
        begin = 8 + int.from_bytes(stored[:8], "little")
        header, data = {}, b""
        for name, entry in json.loads(stored[8:begin]).items():
            if name == "__metadata__" or name.startswith("model.embed_tokens."):
                continue
            first, end = entry["data_offsets"]
            header[name] = entry | {"data_offsets": [len(data), len(data) + end - first]}
            data += stored[begin + first:begin + end]
        text = json.dumps(header).encode()
        (tied / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)

        def formats(model):  # tensors and values of each
            result = run("inspect", str(model))
            self.assertEqual(result.returncode, 0, result.stderr)
            rows = re.findall(r"^  (\S.*?) +(\d+) +(\d+) +\S+ \S+ +[\d.]+$", result.stdout, re.MULTILINE)
            return {name: (int(tensors), int(values)) for name, tensors, values in rows}
        two, one = formats(untied), formats(tied)
        int8 = next(name for name in two if name.startswith("ct_int8"))
        self.assertEqual(two[int8], (2, 2 * 512 * 128))
        self.assertEqual(one[int8], (1, 512 * 128))
        self.assertEqual(one["all"], (two["all"][0] - 1, two["all"][1] - 512 * 128))

    def test_fallback_kernels_are_refused_when_fast_ones_are_required(self):
        if "avx2" not in open("/proc/cpuinfo").read():
            self.skipTest("this machine has no set of instructions beyond the scalar one")
        result = serve(golden_model("gguf-Q4_1"), "--require-kernels=fast", "--worker-flags=--isa=scalar")
        self.assertNotEqual(result.returncode, 0)
        for word in ("--require-kernels=fast", "would run on the fallback", "held to scalar"):
            self.assertIn(word, result.stderr)
        self.assertIn("--isa", result.stderr)
        self.assertNotIn("starting it again", result.stderr)
        with Service(golden_model("gguf-Q4_1"), workers=2, flags=["--require-kernels=fast"]) as service:
            report = service.admin.GetKernelReport(admin_pb.GetKernelReportRequest(), timeout=5)
            speeds = {kernel.speed for rank in report.ranks for kernel in rank.kernels}
            self.assertEqual(speeds, {admin_pb.KERNEL_SPEED_FAST})
            shown = run("inspect", f"--admin-address=127.0.0.1:{service.ports['admin_port']}")
            self.assertEqual(shown.returncode, 0, shown.stderr)
            for word in ("rank 1", "linear", "payload", report.ranks[0].kernels[0].kernel):
                self.assertIn(word, shown.stdout)

    def test_eval_of_a_model_against_itself_finds_no_difference(self):
        folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        for path in ("coordinator/bitshard-coordinator", "worker/bitshard-worker"):
            os.symlink(ROOT / path, pathlib.Path(folder) / pathlib.Path(path).name)
        text = pathlib.Path(folder, "text")
        # Far longer than the context of 2048 tokens: Tokenize is not bound by it.
        text.write_text("def score(tokens, first):\n    return [log_prob(t) for t in tokens[first:]]\n" * 8000)
        common = [f"--test={golden_model('gguf-Q4_1')}", f"--text={text}", f"--bin-dir={folder}", "--ctx=64",
                  "--chunks=3", "--kv-cache-dtype=f32", "--json"]
        # Any number of workers, and any two of them: the bits are the same.
        same = run("eval", "kld", *common, "--activations=f32", "--workers=3", "--base-workers=1", timeout=120)
        self.assertEqual(same.returncode, 0, same.stderr)
        figures = json.loads(same.stdout)
        self.assertEqual(figures["positions"], 3 * 31)  # the second half of each window but its last position
        self.assertEqual(figures["exact"]["max_kld"], 0)
        self.assertEqual(figures["exact"]["same_top"]["value"], 1)
        self.assertEqual(figures["exact"]["ppl_base"], figures["exact"]["ppl_test"])
        a16 = json.loads(run("eval", "kld", *common, "--activations=a16", timeout=120).stdout)["exact"]
        self.assertGreater(a16["mean_kld"]["value"], 0)
        self.assertLess(a16["mean_kld"]["value"], 1e-6)
        self.assertEqual(a16["ppl_base"], figures["exact"]["ppl_base"])

    def test_eval_says_what_is_missing(self):
        for flags, word in (((), "kld"), (("kld",), "--test"), (("kld", "--test=x"), "--text"),
                            (("kld", "--test=x", "--text=x", "--chunks=-1"), "0 (all) or more")):
            result = run("eval", *flags)
            self.assertEqual(result.returncode, 2)
            self.assertIn(word, result.stderr)

    def test_eval_of_windows_beyond_the_context_names_it(self):
        result = run("eval", "kld", f"--test={golden_model('gguf-Q4_1')}", f"--text={__file__}", "--ctx=4096")
        self.assertEqual(result.returncode, 1)
        for word in ("--ctx=4096", "gguf-Q4_1", "is 2048 tokens"):
            self.assertIn(word, result.stderr)

    def test_serve_of_a_missing_model_says_so(self):
        result = serve("/no/such/model.gguf")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("/no/such/model.gguf", result.stderr)

    def test_serve_of_a_truncated_gguf_says_so(self):
        whole = next(pathlib.Path(golden_model("gguf-Q4_1")).glob("*.gguf")).read_bytes()
        cut = pathlib.Path(os.environ.get("TEST_TMPDIR", tempfile.gettempdir()), "cut.gguf")
        cut.write_bytes(whole[:len(whole) // 2])
        for command in (serve(str(cut)), run("inspect", str(cut))):
            self.assertNotEqual(command.returncode, 0)
            self.assertIn("cut.gguf", command.stderr)
            self.assertIn("is the download complete?", command.stderr)

    def test_bad_flags_end_the_start_with_a_hint(self):
        model = golden_model("tiny-llama-q")
        for flag, word in (("--activations=a99", "a16"), ("--kv-cache-dtype=int3", "bf16"), ("--workers=0", "1 to 64"),
                           ("--device=cuda:0 --workers=2", "--device=cuda gives each")):
            result = serve(model, *flag.split())
            self.assertNotEqual(result.returncode, 0, flag)
            self.assertIn(word, result.stderr, flag)

    def test_serve_on_another_address(self):
        with Service(golden_model("tiny-llama-q"), workers=2, host="127.0.0.2") as service:
            answer = service.inference.Complete(pb.CompleteRequest(text="def", max_tokens=2), timeout=30)
            self.assertEqual(answer.choices[0].finished.usage.completion_tokens, 2)

    def test_complete_without_a_service_names_the_address(self):
        result = run("complete", "x", "--address=127.0.0.1:1", "--timeout=5s")
        self.assertEqual(result.returncode, 1)
        self.assertIn("127.0.0.1:1", result.stderr)


if __name__ == "__main__":
    case_report.main()
