"""A structure-aware fuzzer over all fields of all RPCs, against a real service with two workers.

Every case is made from (seed, caller, number) alone: it can be made, and sent, again. Callers work at the same time, each on
connections of its own, which it drops now and then; calls are cancelled and late at random. Meanwhile the service has to
stay SERVING and to answer known requests with the same tokens. At rests nothing may be left running, and the memory of all
processes is measured.
"""

import collections
import contextlib
import functools
import os
import random
import sys
import threading
import time

import grpc
from grpc_health.v1 import health_pb2

from live_service import Service, admin_pb, golden_model, pb
from rpc_judge import Answer, Method, complaints, parsed
from rpc_messages import SHARED_IDS, fields_set, make_request

CALLERS = 6
MODEL = "tiny-llama-q"
# Little of everything, so that queues fill, blocks run out and memory that is touched once is touched soon.
FLAGS = ["--kv-blocks=160", "--max-running=12", "--max-waiting=24", "--max-context=512", "--slow-reader-timeout=2s",
         "--log-level=warning"]
TRIM_S, SLACK_BYTES = 20, 32 << 20  # what was freed goes back within so long, but for so much (coordinator/heap_trimmer.h)
PATIENCE_S = 30  # for what cannot take long; only a hang does
ENOUGH_CASES, EXTRA_S = 4000, 120  # a slow machine gets so much longer, at most, for so many: all fields are in them

_INFERENCE = {"Generate": 30, "Complete": 14, "Score": 8, "Embed": 8, "Tokenize": 6, "Detokenize": 5, "ApplyChatTemplate": 7,
              "ListModels": 2, "Abort": 4}
_ADMIN = {"GetStatus": 2, "WatchStatus": 3, "GetKernelReport": 1, "GetMemoryReport": 1, "GetLoad": 1, "Drain": 2}


@functools.lru_cache
def methods():
    """[(Method, port's name, weight)] of all RPCs."""
    found = []
    for file, service, weights, port in ((pb, "Inference", _INFERENCE, "port"), (admin_pb, "Admin", _ADMIN, "admin_port")):
        for method in file.DESCRIPTOR.services_by_name[service].methods:
            found.append((Method(f"/bitshard.v1.{service}/{method.name}", getattr(file, method.input_type.name),
                                 getattr(file, method.output_type.name), method.server_streaming), port, weights[method.name]))
    for name, streams in (("Check", False), ("Watch", True)):
        for port in ("port", "health_port"):
            found.append((Method(f"/grpc.health.v1.Health/{name}", health_pb2.HealthCheckRequest,
                                 health_pb2.HealthCheckResponse, streams), port, 1))
    return found


class Case:
    """What one call sends: made from its name alone."""

    def __init__(self, seed, caller, number):
        self.name = f"{seed}:{caller}:{number}"
        rng = random.Random(self.name)
        all_methods = methods()
        self.method, self.port, _ = rng.choices(all_methods, [weight for _, _, weight in all_methods])[0]
        self.payload = make_request(rng, self.method.request.DESCRIPTOR)
        if self.method.path.endswith("/Drain"):  # a good one would end the service; that comes last
            self.payload = rng.choice([b"\xff\xff\xff", b"\x0a\x05\x08", admin_pb.DrainRequest(timeout={
                "seconds": rng.choice([-1, 86401, 1 << 40])}).SerializeToString()])
        self.timeout = rng.choice([0.001, 0.02, 0.2]) * rng.random() if rng.random() < 0.1 else PATIENCE_S
        # None: read to the end; 0: cancelled at once; else after so many messages.
        endless = self.method.path.endswith(("/Watch", "/WatchStatus"))
        self.cancel_after = rng.choice([0, 1, 1, 3, 10]) if rng.random() < 0.15 or endless else None
        if endless:
            self.timeout = min(self.timeout, 1.0)
        self.metadata = [("traceparent", rng.choice(["00-1-1-0", "\"%n\\", "x" * 2000]))] if rng.random() < 0.05 else []
        self.compression = grpc.Compression.Gzip if rng.random() < 0.03 else None
        self.drops_connection = rng.random() < 0.01

    def send(self, channel):
        kinds = {"timeout": self.timeout, "metadata": self.metadata, "compression": self.compression}
        answer = Answer(None)

        def cancel():
            answer.cancelled = True
            channel.close() if self.drops_connection else call.cancel()

        if self.method.streams:
            call = channel.unary_stream(self.method.path)(self.payload, **kinds)
        else:
            call = channel.unary_unary(self.method.path).future(self.payload, **kinds)
        if self.cancel_after == 0 or (self.cancel_after is not None and not self.method.streams):
            cancel()
        try:
            if not self.method.streams:
                answer.messages.append(call.result())
            for message in call if self.method.streams else ():
                answer.messages.append(message)
                if len(answer.messages) == self.cancel_after:
                    cancel()
        except (grpc.RpcError, grpc.FutureCancelledError):
            pass
        answer.code, answer.details = call.code(), call.details() or ""
        answer.trailers = tuple(call.trailing_metadata() or ())
        return answer


def open_channel(port):
    return grpc.insecure_channel(f"127.0.0.1:{port}", [
        ("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1),
        ("grpc.enable_retries", 0), ("grpc.max_metadata_size", 1 << 20)])


class Caller(threading.Thread):
    """Sends its cases one after the other until told to stop; waits at rests."""

    def __init__(self, run, index):
        super().__init__(daemon=True)
        self._run, self._index = run, index
        self._channels = {}
        self.sent, self.now = 0, None

    def run(self):
        while not self._run.stop.is_set():
            with self._run.gate.work():
                try:
                    self._one(Case(self._run.seed, self._index, self.sent))
                except Exception as error:  # noqa: BLE001  any is a finding, and must not end this caller
                    self._run.found(self.now, [f"the client itself failed: {error!r}"])
            self.sent += 1

    def _one(self, case):
        self.now = case
        channel = self._channels.get(case.port)
        if channel is None:
            channel = self._channels[case.port] = open_channel(self._run.service.ports[case.port])
        answer = case.send(channel)
        self._run.judge(case, answer)
        if case.drops_connection:
            self._channels.pop(case.port).close()
        self.now = None

    def close(self):
        for channel in self._channels.values():
            channel.close()


class Gate:
    """Lets threads work, or rest while somebody measures."""

    def __init__(self):
        self._changed = threading.Condition()
        self._open, self._inside = True, 0

    @contextlib.contextmanager
    def work(self):
        with self._changed:
            self._changed.wait_for(lambda: self._open)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def rest(self):
        with self._changed:
            self._open = False
            if not self._changed.wait_for(lambda: self._inside == 0, timeout=2 * PATIENCE_S):
                raise AssertionError("callers hang")
        try:
            yield
        finally:
            with self._changed:
                self._open = True
                self._changed.notify_all()


class Watcher(threading.Thread):
    """Asks for health and known answers while the callers work."""

    def __init__(self, run):
        super().__init__(daemon=True)
        self._run = run
        self.checks = self.answers = 0
        self._known = {name: self._ask(request) for name, request in _known_requests().items()}

    def run(self):
        while not self._run.stop.is_set():
            for port in ("port", "health_port", "admin_port"):
                for service in ("", "readiness", "liveness", "startup"):
                    with self._run.gate.work():
                        self._check(port, service)
            for name, request in _known_requests().items():
                with self._run.gate.work():
                    answer = self._ask(request)
                if answer != self._known[name]:
                    self._run.found(None, [f"the known request {name} has another answer than at first"])
                self.answers += 1
            self._run.stop.wait(0.3)

    def _check(self, port, service):
        request = health_pb2.HealthCheckRequest(service=service)
        with open_channel(self._run.service.ports[port]) as channel:
            check = channel.unary_unary("/grpc.health.v1.Health/Check", health_pb2.HealthCheckRequest.SerializeToString,
                                        health_pb2.HealthCheckResponse.FromString)
            try:
                status = check(request, timeout=PATIENCE_S).status
            except grpc.RpcError as error:
                status = error
        self.checks += 1
        if status != health_pb2.HealthCheckResponse.SERVING:
            self._run.found(None, [f"{service!r} on {port} is not SERVING: {status}"])

    def _ask(self, request):
        """The answer's tokens and log-probabilities; waits out the crowd."""
        end = time.monotonic() + 2 * PATIENCE_S
        while True:
            try:
                choice = self._run.service.inference.Complete(request, timeout=PATIENCE_S).choices[0]
                return list(choice.token_ids), [p.chosen.logprob for p in choice.logprobs]
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.RESOURCE_EXHAUSTED or time.monotonic() > end:
                    self._run.found(None, [f"a known request ends {error.code().name}: {error.details()}"])
                    return None
            time.sleep(0.05)


def _known_requests():
    common = {"max_tokens": 16, "priority": -1000, "output": pb.OutputOptions(token_ids=True, logprobs=True)}
    ids = pb.TokenIds(ids=[7 + i * 37 % 500 for i in range(40)])
    return {
        "greedy": pb.CompleteRequest(tokens=ids, stop=pb.Stopping(ignore_eos=True), **common),
        "drawn": pb.CompleteRequest(tokens=ids, sampling=pb.Sampling(temperature=1, top_p=0.9, seed=5, presence_penalty=0.5),
                                    cache_salt="known", **common),
        "constrained": pb.CompleteRequest(text="x", constraint=pb.Constraint(regex="[a-z]{3,9}!"),
                                          sampling=pb.Sampling(temperature=1, seed=6), **common),
    }


class Fuzz:
    """One run against one service."""

    def __init__(self, service, seed):
        self.service, self.seed = service, seed
        self.stop, self.gate = threading.Event(), Gate()
        self._lock = threading.Lock()
        self.findings, self.codes, self.fields = [], collections.Counter(), set()
        self.malformed = 0
        self.rests = []  # (seconds, {process: figures})

    def judge(self, case, answer):
        wrong = complaints(case.method, case.payload, answer, SHARED_IDS)
        message = parsed(case.method.request, case.payload)
        with self._lock:
            self.codes[case.method.path.rpartition("/")[2], answer.code.name] += 1
            self.malformed += message is None
            if message is not None:
                fields_set(message, self.fields)
        if wrong:
            self.found(case, [f"{w} ({answer.code.name}: {answer.details[:300]})" for w in wrong])

    def found(self, case, what):
        at_once = [caller.now.name for caller in self._callers if caller.now is not None] if case is None else []
        with self._lock:
            for one in what:
                self.findings.append(f"{case.name + ' ' + case.method.path if case else 'at ' + ' '.join(at_once)}: {one}")
                print("finding:", self.findings[-1], file=sys.stderr, flush=True)

    def run(self, seconds, rests=6):
        """`seconds` of work, with rests in between that do not count."""
        self._fresh = figures(self.service.coordinator_pid())["bytes"]
        self._callers = [Caller(self, index) for index in range(CALLERS)]
        watcher = Watcher(self)
        start = time.monotonic()
        for thread in [*self._callers, watcher]:
            thread.start()
        for rest in range(1, rests + 1):
            self._work(seconds / rests, ENOUGH_CASES if rest == rests else 0)
            with self.gate.rest():
                self._measure(time.monotonic() - start)
            if self._lost():
                break
        self.stop.set()
        for thread in [*self._callers, watcher]:
            thread.join(2 * PATIENCE_S)
        for caller in self._callers:
            caller.close()
        self.checks, self.answers = watcher.checks, watcher.answers

    @property
    def sent(self):
        return sum(caller.sent for caller in self._callers)

    def _work(self, seconds, cases):
        end = time.monotonic() + seconds
        while time.monotonic() < end or (self.sent < cases and time.monotonic() < end + EXTRA_S):
            if self._lost():
                break
            time.sleep(0.1)

    def _lost(self):
        return len(self.findings) > 20 or self.service.process.poll() is not None

    def _measure(self, at):
        load = self.service.await_idle(timeout=PATIENCE_S)
        if (load.running, load.waiting, load.waiting_tokens, load.blocks.used, load.blocks.quarantined) != (0, 0, 0, 0, 0) or \
                load.blocks.free + load.blocks.cached != load.blocks.total:
            self.found(None, [f"at rest: {str(load).split()}"])
        pids = {"coordinator": self.service.coordinator_pid()}
        await_quiet(pids["coordinator"])
        pids.update({f"worker {rank}": pid for rank, pid in enumerate(self.service.worker_pids())})
        end = time.monotonic() + TRIM_S
        while True:
            now = {name: figures(pid) for name, pid in pids.items()}
            least = min((rest["coordinator"]["bytes"] for _, rest in self.rests), default=self._fresh)
            if now["coordinator"]["bytes"] < least + SLACK_BYTES or time.monotonic() > end:
                break
            time.sleep(0.5)
        self.rests.append((at, now))


def await_quiet(pid):
    """Until the process has little to do: long texts of callers that have gone are still being tokenized."""
    def ticks():
        return sum(int(field) for field in open(f"/proc/{pid}/stat").read().rpartition(") ")[2].split()[11:13])

    end = time.monotonic() + PATIENCE_S
    busy = True
    while busy and time.monotonic() < end:
        before = ticks()
        time.sleep(0.5)
        busy = ticks() - before > 2  # of 50, for heartbeats and empty plans; a crowded machine gives few to who works


def figures(pid):
    """Resident bytes, open files and threads of a process."""
    pages = int(open(f"/proc/{pid}/statm").read().split()[1])
    return {"bytes": pages * os.sysconf("SC_PAGESIZE"), "files": len(os.listdir(f"/proc/{pid}/fd")),
            "threads": len(os.listdir(f"/proc/{pid}/task"))}


def open_service():
    return Service(golden_model(MODEL), workers=2, flags=["--threads=1"], coordinator_flags=FLAGS)


def replay(name):
    """Sends one case to a service of its own and prints what comes of it."""
    seed, caller, number = name.split(":")
    case = Case(int(seed), int(caller), int(number))
    print(case.method.path, "timeout", case.timeout, "cancel after", case.cancel_after, case.metadata)
    message = parsed(case.method.request, case.payload)
    print(case.payload.hex() if len(case.payload) < 4096 else f"{len(case.payload)} bytes")
    print("malformed" if message is None else str(message)[:4096])
    with open_service() as service, open_channel(service.ports[case.port]) as channel:
        answer = case.send(channel)
        print(answer.code, answer.details)
        print(complaints(case.method, case.payload, answer, SHARED_IDS) or "as it should be")
        print(service.log())
