"""A worker that dies or hangs under eight streams: readiness drops, every stream ends UNAVAILABLE within 5 s, the log names
the rank, the service recovers, and no process is left behind."""

import os
import signal
import threading
import time
import unittest

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

import case_report
from live_service import Service, Stream, children_of, golden_model, pb, smollm2

STREAMS = 8
LIMIT_S = 5.0  # the promise, not a speed: detection plus the end of every stream


class ReadinessWatch(threading.Thread):
    """Collects what the health service's Watch says of readiness, as a balancer would."""

    def __init__(self, stub):
        super().__init__(daemon=True)
        self.seen = []
        self._call = stub.Watch(health_pb2.HealthCheckRequest(service="readiness"))
        self.start()

    def run(self):
        try:
            for answer in self._call:
                self.seen.append(answer.status)
        except grpc.RpcError:
            pass  # the service has ended

    def await_first(self):
        end = time.monotonic() + 10
        while not self.seen and time.monotonic() < end:
            time.sleep(0.005)

    def stop(self):
        self._call.cancel()
        self.join()


class WorkerLossTest(unittest.TestCase):
    def _lose(self, rank, fault, worker_flags=()):
        service = Service(golden_model("tiny-llama"), workers=2, worker_flags=worker_flags)
        try:
            # Few tokens a second, so that no stream can end by itself while the fault is found.
            request = pb.GenerateRequest(text="def main(", max_tokens=1900, stop=pb.Stopping(ignore_eos=True))
            streams = [Stream(service.inference, request) for _ in range(STREAMS)]
            end = time.monotonic() + 30
            while any(s.token_count < 3 for s in streams) and time.monotonic() < end:
                time.sleep(0.005)
            self.assertTrue(all(s.code is None for s in streams), [s.details for s in streams])
            health = health_pb2_grpc.HealthStub(grpc.insecure_channel(f"127.0.0.1:{service.ports['health_port']}"))
            watch = ReadinessWatch(health)
            watch.await_first()
            victim = service.worker_pids()[rank]
            struck = time.monotonic()
            os.kill(victim, fault)
            for stream in streams:
                stream.join(30)
            ends = [(s.code, s.ended_at - struck if s.ended_at else None) for s in streams]
            slowest = max(seconds for _, seconds in ends)
            print(f"{signal.Signals(fault).name} of rank {rank}: all {STREAMS} streams ended within {slowest:.2f} s")
            for stream, (code, seconds) in zip(streams, ends):
                self.assertEqual(code, grpc.StatusCode.UNAVAILABLE, stream.details)
                self.assertLess(seconds, LIMIT_S)
                self.assertIn(f"rank {rank}", stream.details)
                self.assertGreaterEqual(stream.token_count, 3)
            self.assertIn(f"rank={rank}", service.log())

            if fault == signal.SIGSTOP:  # a dead worker is replaced within a second: the drop may be over by now
                answer = health.Check(health_pb2.HealthCheckRequest(service="readiness"), timeout=5)
                self.assertEqual(answer.status, health_pb2.HealthCheckResponse.NOT_SERVING)
            answer = health.Check(health_pb2.HealthCheckRequest(service="liveness"), timeout=5)
            self.assertEqual(answer.status, health_pb2.HealthCheckResponse.SERVING)

            print(f"ready again {service.await_ready():.2f} s later")
            watch.stop()
            serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
            self.assertEqual(watch.seen[:2], [serving, not_serving], "readiness did not drop")
            again = Stream(service.inference, pb.GenerateRequest(text="def main(", max_tokens=4))
            again.join(30)
            self.assertEqual(again.code, grpc.StatusCode.OK, again.details)
            load = service.await_idle()
            self.assertEqual(load.blocks.free + load.blocks.cached, load.blocks.total)
        finally:
            self.assertEqual(service.close(), [], "processes outlived the service")
            print("the service's log:\n" + service.log()[-6000:])

    def test_kill_9_of_rank_0(self):
        self._lose(0, signal.SIGKILL)

    def test_kill_9_of_rank_1(self):
        self._lose(1, signal.SIGKILL)

    def test_sigstop_of_rank_0(self):
        self._lose(0, signal.SIGSTOP)

    def test_sigstop_of_rank_1(self):
        self._lose(1, signal.SIGSTOP)

    def test_kill_9_of_rank_0_over_gloo(self):
        self._lose(0, signal.SIGKILL, ["--collective=gloo"])

    def test_sigstop_of_rank_1_over_gloo(self):
        self._lose(1, signal.SIGSTOP, ["--collective=gloo"])

    def test_worker_that_waits_for_the_others_is_left_alone(self):
        service = Service(golden_model("tiny-llama-q"), workers=2, ready=False)
        try:
            end = time.monotonic() + 10
            while len(children_of(service.process.pid).get("bitshard-worker", [])) < 2 and time.monotonic() < end:
                time.sleep(0.002)
            waits, stopped = children_of(service.process.pid)["bitshard-worker"]
            os.kill(stopped, signal.SIGSTOP)
            service.await_ready()
            workers = children_of(service.process.pid)["bitshard-worker"]
            self.assertIn(waits, workers, "the healthy worker was killed while it waited")
            self.assertNotIn(stopped, workers, "the stopped worker was not replaced")
        finally:
            self.assertEqual(service.close(), [], "processes outlived the service")

    def test_second_interrupt_ends_at_once(self):
        service = Service(smollm2(), workers=2)
        try:
            request = pb.GenerateRequest(text="Once upon a time", max_tokens=6000, stop=pb.Stopping(ignore_eos=True))
            stream = Stream(service.inference, request)
            end = time.monotonic() + 30
            while stream.token_count < 3 and time.monotonic() < end:
                time.sleep(0.005)
            service.process.send_signal(signal.SIGINT)
            while service.status().draining is False and time.monotonic() < end:
                time.sleep(0.02)
            self.assertIsNone(stream.code, "the drain did not let the running answer go on")
            service.process.send_signal(signal.SIGINT)
            service.process.wait(15)  # half of the drain's own limit
            stream.join(5)
            self.assertEqual(stream.code, grpc.StatusCode.UNAVAILABLE, stream.details)
        finally:
            self.assertEqual(service.close(), [], "processes outlived the service")

    def test_kill_9_of_serve_leaves_no_process(self):
        service = Service(golden_model("tiny-llama-q"), workers=2)
        pids = [service.coordinator_pid(), *service.worker_pids()]
        os.kill(service.process.pid, signal.SIGKILL)
        service.process.wait()
        end = time.monotonic() + 10
        while time.monotonic() < end and any(os.path.exists(f"/proc/{pid}") for pid in pids):
            time.sleep(0.05)
        left = [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
        self.assertEqual(left, [])


if __name__ == "__main__":
    case_report.main()
