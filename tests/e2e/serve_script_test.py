"""deploy/local/serve.sh with the real programs; only what installs and builds is left out."""

import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest

import case_report
import grpc
from live_service import BITSHARD, ROOT, children_of, free_port, outliving, pb, pb_grpc, smollm2

PATIENCE_S = 180
# In the place of deploy/local/setup.sh: nothing to install.
SETUP = """
BUILD_PACKAGES=()
BITSHARD_MODEL={model}
say() {{ printf '[setup] %s\\n' "$*" >&2; }}
die() {{ printf 'error: %s\\n' "$*" >&2; exit 1; }}
install_packages() {{ :; }}
write_user_bazelrc() {{ :; }}
fetch_model() {{ :; }}
fetch_xgrammar() {{ :; }}
"""
# In the place of Bazel: everything is built.
BAZEL = "#!/bin/sh\n[ \"$1\" = info ] && echo {bin}\nexit 0\n"


def descendants(pid):
    found = []
    for pids in children_of(pid).values():
        for child in pids:
            found += [child, *descendants(child)]
    return found


class Script:
    """A run of serve.sh in a session of its own, as a terminal has it."""

    def __init__(self, *args):
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")))
        local, tools = self.folder / "deploy/local", self.folder / "tools"
        local.mkdir(parents=True)
        tools.mkdir()
        shutil.copy(ROOT / "deploy/local/serve.sh", local / "serve.sh")
        (local / "setup.sh").write_text(SETUP.format(model=smollm2()))
        (tools / "bazel").write_text(BAZEL.format(bin=pathlib.Path(ROOT / BITSHARD).parents[2]))
        (tools / "bazel").chmod(0o755)
        self.out, self.err = self.folder / "out", self.folder / "err"
        environment = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}"}
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.process = subprocess.Popen([str(local / "serve.sh"), *args], stdin=subprocess.DEVNULL, stdout=out,
                                            stderr=err, env=environment, start_new_session=True)

    def until(self, happened):
        end = time.monotonic() + PATIENCE_S
        while not happened():
            if self.process.poll() is not None:
                raise RuntimeError(f"serve.sh ended with {self.process.returncode}: {self.err.read_text()}")
            if time.monotonic() > end:
                raise RuntimeError(f"nothing happened: {self.out.read_text()}\n{self.err.read_text()}")
            time.sleep(0.02)

    def ctrl_c(self):
        os.killpg(self.process.pid, signal.SIGINT)  # `bitshard serve` has a group of its own, as with a terminal

    def close(self):
        left = descendants(self.process.pid)
        for pid in (self.process.pid, *left):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class ServeScriptTest(unittest.TestCase):
    def assert_gone(self, script, port, processes):
        self.assertEqual(script.process.wait(PATIENCE_S), 0, script.err.read_text())
        with socket.socket() as client:
            self.assertNotEqual(client.connect_ex(("127.0.0.1", port)), 0, "somebody still listens")
        self.assertEqual(outliving(processes), [])

    def test_a_second_ctrl_c_ends_a_service_that_answers(self):
        port = free_port()
        with Script("Hi", "--port", str(port)) as script:
            script.until(lambda: "Serving on" in script.out.read_text())
            processes = descendants(script.process.pid)
            self.assertGreaterEqual(len(processes), 4, "bitshard serve, a coordinator, two workers")
            stub = pb_grpc.InferenceStub(grpc.insecure_channel(f"127.0.0.1:{port}"))
            answer = stub.Generate(pb.GenerateRequest(text="Once", max_tokens=6000, stop=pb.Stopping(ignore_eos=True)))
            next(answer)
            script.ctrl_c()
            script.until(lambda: "Ctrl-C again ends at once" in script.err.read_text())
            script.ctrl_c()
            self.assert_gone(script, port, processes)
            with self.assertRaises(grpc.RpcError):
                for _ in answer:
                    pass

    def test_one_ctrl_c_while_it_asks_ends_in_order(self):
        port = free_port()
        with Script(f"--port={port}", "Tell a long story.") as script:
            script.until(lambda: script.out.read_text())  # the answer has begun
            processes = descendants(script.process.pid)
            script.ctrl_c()
            self.assert_gone(script, port, processes)

    def test_bad_arguments_say_what_to_write(self):
        for args, word in ((("What", "is", "it"), "quote"), (("--port",), "--port=N"), (("--port=http",), "port number"),
                           (("--prot=1",), "unknown flag --prot=1")):
            with Script(*args) as script:
                self.assertEqual(script.process.wait(PATIENCE_S), 1, args)
                self.assertIn(word, script.err.read_text(), args)


if __name__ == "__main__":
    case_report.main()
