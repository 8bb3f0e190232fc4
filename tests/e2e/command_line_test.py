"""What a person sees of the `bitshard` command: help that teaches, and errors that say what to try."""

import os
import pathlib
import subprocess
import tempfile
import unittest

import case_report
from live_service import BITSHARD, ROOT, Service, golden_model, pb


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
        for verb in ("serve", "complete", "chat", "inspect"):
            self.assertIn(verb, result.stdout)

    def test_every_verb_has_help_with_an_example(self):
        for verb in ("serve", "complete", "chat", "inspect"):
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

    def test_inspect_shows_formats_and_the_plan(self):
        result = run("inspect", golden_model("gguf-Q4_1"), "--ranks=3")
        self.assertEqual(result.returncode, 0, result.stderr)
        for word in ("q4_1", "q8_0", "3 workers"):
            self.assertIn(word, result.stdout)

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

    def test_bad_flags_end_the_start_with_a_hint(self):
        model = golden_model("tiny-llama-q")
        for flag, word in (("--activations=a99", "a16"), ("--kv-cache-dtype=int3", "bf16"), ("--workers=0", "1 to 64")):
            result = serve(model, flag)
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
