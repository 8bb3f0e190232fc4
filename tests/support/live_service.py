"""A real service for tests: `bitshard serve` as processes on free ports, and an unmodified grpcio client.

The stubs are generated here, by grpcio-tools, from the proto files that the repository publishes.
"""

import contextlib
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import grpc
from grpc_tools import protoc

ROOT = pathlib.Path.cwd()  # the runfiles' root: paths are those of the repository
BITSHARD = "coordinator/tools/bitshard"
WORKER = "worker/bitshard-worker"
EMULATED_WORKER = "tests/support/bitshard-worker-emulated"  # GPUs on the emulator, NCCL on a fake
READY_TIMEOUT_S = 120


def _generate_stubs():
    out = tempfile.mkdtemp(prefix="bitshard-stubs-", dir=os.environ.get("TEST_TMPDIR"))
    include = pathlib.Path(protoc.__file__).parent / "_proto"
    code = protoc.main(["protoc", f"-I{ROOT}", f"-I{include}", f"--python_out={out}", f"--grpc_python_out={out}",
                        "proto/inference.proto", "proto/admin.proto"])
    if code != 0:
        raise RuntimeError(f"grpcio-tools could not generate stubs from our protos (exit {code})")
    sys.path.insert(0, out)


_generate_stubs()
from proto import admin_pb2 as admin_pb  # noqa: E402
from proto import admin_pb2_grpc as admin_grpc  # noqa: E402
from proto import inference_pb2 as pb  # noqa: E402
from proto import inference_pb2_grpc as pb_grpc  # noqa: E402


def smollm2():
    """The path of SmolLM2; tests/run.sh fetched it."""
    folder = os.environ.get("BITSHARD_TEST_MODELS")
    if not folder:
        raise RuntimeError("BITSHARD_TEST_MODELS is not set: tests/run.sh fetches the model and sets it")
    return os.path.join(folder, "SmolLM2-135M-Instruct.Q4_1.gguf")


def golden_model(name):
    return str(ROOT / "tests/golden/models" / name)


def children_of(pid):
    """Pids of the processes whose parent is `pid`, by the name of their program."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
        except OSError:
            continue
        name, rest = stat[stat.index("(") + 1:stat.rindex(")")], stat[stat.rindex(")") + 2:].split()
        if int(rest[1]) == pid and rest[0] != "Z":
            found.setdefault(name, []).append(int(entry.name))
    return found


def free_port():
    """A port that nobody has: below those that Linux gives away by itself, to other tests' connections among others."""
    while True:
        with socket.socket() as listener, contextlib.suppress(OSError):
            port = random.randrange(20000, 32768)
            listener.bind(("127.0.0.1", port))
            return port


def alive(pid):
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat[stat.rindex(")") + 2] != "Z"


def outliving(pids):
    """Those that are still there when all had time to go."""
    end = time.monotonic() + 30
    while any(alive(pid) for pid in pids) and time.monotonic() < end:
        time.sleep(0.02)
    return [pid for pid in pids if alive(pid)]


class Service:
    """with Service(model, workers=2) as service: service.inference.Generate(...)"""

    def __init__(self, model, workers=2, flags=(), coordinator_flags=(), worker_flags=(), host="127.0.0.1", ready=True,
                 worker=WORKER):
        self._dir = tempfile.mkdtemp(prefix="bitshard-service-", dir=os.environ.get("TEST_TMPDIR"))
        self.log_path = os.path.join(self._dir, "log")
        ports = os.path.join(self._dir, "ports")
        command = [str(ROOT / BITSHARD), "serve", model, f"--workers={workers}", "--port=0", "--log-level=info",
                   f"--bind={host}", f"--bin-dir={self._bin_dir(worker)}", f"--port-file={ports}", *flags]
        if coordinator_flags:
            command.append("--coordinator-flags=" + ",".join(coordinator_flags))
        if worker_flags:
            command.append("--worker-flags=" + ",".join(worker_flags))
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(command, stderr=log, stdout=log)
        try:
            self.ports = self._await_ports(ports)
            self.channel = grpc.insecure_channel(f"{host}:{self.ports['port']}")
            self.inference = pb_grpc.InferenceStub(self.channel)
            self.admin = admin_grpc.AdminStub(grpc.insecure_channel(f"127.0.0.1:{self.ports['admin_port']}"))
            if ready:
                self.await_ready()
        except BaseException:
            self.close()
            raise

    def _bin_dir(self, worker):
        """One folder with all programs, as an installation has it."""
        folder = pathlib.Path(self._dir, "bin")
        folder.mkdir()
        os.symlink(ROOT / "coordinator/bitshard-coordinator", folder / "bitshard-coordinator")
        os.symlink(ROOT / worker, folder / "bitshard-worker")
        return folder

    def _await_ports(self, path):
        end = time.monotonic() + READY_TIMEOUT_S
        while not os.path.exists(path):
            if self.process.poll() is not None:
                raise RuntimeError(f"serve ended with {self.process.returncode}:\n{self.log()}")
            if time.monotonic() > end:
                raise RuntimeError(f"no ports:\n{self.log()}")
            time.sleep(0.02)
        return dict(line.strip().split("=", 1) for line in open(path) if "=" in line)

    def await_ready(self, timeout=READY_TIMEOUT_S):
        """Returns the seconds that it took."""
        start = time.monotonic()
        while time.monotonic() - start < timeout:
            if self.process.poll() is not None:
                raise RuntimeError(f"serve ended with {self.process.returncode}:\n{self.log()}")
            try:
                if self.status().ready:
                    return time.monotonic() - start
            except grpc.RpcError:
                pass
            time.sleep(0.05)
        raise RuntimeError(f"not ready within {timeout} s:\n{self.log()}")

    def status(self):
        return self.admin.GetStatus(admin_pb.GetStatusRequest(), timeout=5).status

    def load(self):
        return self.admin.GetLoad(admin_pb.GetLoadRequest(), timeout=5).load

    def await_idle(self, timeout=30):
        """Waits until nothing runs or waits and every block is back; returns the last load."""
        end = time.monotonic() + timeout
        while True:
            load = self.load()
            idle = load.running == 0 and load.waiting == 0 and load.blocks.used == 0
            if idle or time.monotonic() > end:
                return load
            time.sleep(0.05)

    def log(self):
        return open(self.log_path, errors="replace").read()

    def coordinator_pid(self):
        return children_of(self.process.pid)["bitshard-coordi"][0]  # the kernel keeps 15 letters

    def worker_pids(self):
        """By rank."""
        return [rank.pid for rank in self.status().ranks]

    def metrics(self):
        """{series with labels: value} of the coordinator's page."""
        import urllib.request
        page = urllib.request.urlopen(f"http://127.0.0.1:{self.ports['metrics_port']}/metrics", timeout=5).read().decode()
        samples = {}
        for line in page.splitlines():
            if line and not line.startswith("#"):
                series, value = line.rsplit(" ", 1)
                samples[series] = float(value)
        return samples

    def close(self):
        """Ends the service; returns the pids that outlive it (there must be none)."""
        family = [self.process.pid] + [p for pids in children_of(self.process.pid).values() for p in pids]
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        return outliving(family)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Choice:
    """What came of one choice of a stream."""

    def __init__(self, resumed):
        self.text, self.tokens, self.logprobs, self.prompt_logprobs = "", [], [], []
        self.finished, self.count = None, resumed


class Stream(threading.Thread):
    """One Generate call on its own thread: text, tokens, when each message came, and how it ended. With several choices
    `choices` has what came of each; text, tokens and so on are those of all together."""

    def __init__(self, stub, request, timeout=None, cancel_after_tokens=None):
        super().__init__(daemon=True)
        self.request, self.timeout, self.cancel_after_tokens = request, timeout, cancel_after_tokens
        self.text, self.tokens, self.logprobs, self.messages = "", [], [], []
        self.finished, self.code, self.details, self.ended_at, self.started = None, None, "", None, None
        self.gaps = []  # contiguity faults
        self.statuses = []
        self.choices, self.order, self.usage = {}, [], None  # by choice; choices as their messages came
        self._call = stub.Generate(request, timeout=timeout)
        self._resumed = self._count = len(request.resume.output_ids)
        self.start()

    def run(self):
        try:
            for message in self._call:
                self.messages.append((time.monotonic(), message.token_count))
                if message.HasField("started"):
                    self.started = message.started
                if message.HasField("status"):
                    self.statuses.append(message.status)
                    if not message.HasField("token_count"):
                        continue  # it is of no choice
                choice = self.choices.setdefault(message.choice, Choice(self._resumed))
                if message.token_index != choice.count and message.token_count or choice.finished is not None:
                    self.gaps.append((message.choice, choice.count, message.token_index))
                choice.count += message.token_count
                choice.text += message.text
                choice.tokens.extend(message.token_ids)
                choice.logprobs.extend(message.logprobs)
                choice.prompt_logprobs.extend(message.prompt_logprobs)
                self.order.append(message.choice)
                self._count += message.token_count
                self.text += message.text
                self.tokens.extend(message.token_ids)
                self.logprobs.extend(message.logprobs)
                if message.HasField("finished"):
                    self.finished = choice.finished = message.finished
                if message.HasField("usage"):
                    self.usage = message.usage
                if self.cancel_after_tokens is not None and self._count >= self.cancel_after_tokens:
                    self._call.cancel()
            self.code = grpc.StatusCode.OK
        except grpc.RpcError:
            self.code, self.details = self._call.code(), self._call.details()
        self.ended_at = time.monotonic()

    def cancel(self):
        self._call.cancel()

    @property
    def token_count(self):
        return self._count
