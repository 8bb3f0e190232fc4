"""A group over two hosts (network namespaces): the same bits as one worker, and what happens when a link between them goes
down in the middle of an answer. Skipped, with the reason, where namespaces cannot be made."""

import os
import struct
import tempfile
import time
import unittest

import grpc

import case_report
from live_service import ROOT, Stream, admin_grpc, admin_pb, golden_model, pb, pb_grpc
from two_hosts import Impossible, Process, TwoHosts

REQUESTS = 6


class Service:
    """A coordinator on host a and a worker on each named host; `flags` of the workers."""

    def __init__(self, hosts, workers, flags=()):
        self._dir = tempfile.mkdtemp(prefix="two-hosts-", dir=os.environ.get("TEST_TMPDIR"))
        token, ports = os.path.join(self._dir, "token"), os.path.join(self._dir, "ports")
        with open(token, "w") as file:
            file.write("a secret of this test\n")
        self.processes = []
        try:
            self.coordinator = self._start(hosts, "a", "coordinator", [
                str(ROOT / "coordinator/bitshard-coordinator"), f"--model={golden_model('tiny-llama')}",
                f"--workers={len(workers)}", f"--token-file={token}", "--fleet-bind=10.213.7.1", "--port=0", "--fleet-port=0",
                "--admin-port=0", "--health-port=0", "--metrics-port=-1", f"--port-file={ports}"])
            end = time.monotonic() + 60
            while not os.path.exists(ports):
                if time.monotonic() > end or self.coordinator.process.poll() is not None:
                    raise RuntimeError(f"no ports:\n{self.coordinator.log()}")
                time.sleep(0.02)
            self.ports = dict(line.strip().split("=", 1) for line in open(ports) if "=" in line)
            for rank, host in enumerate(workers):
                self._start(hosts, host, f"worker-{rank}", [
                    str(ROOT / "worker/bitshard-worker"), f"--coordinator=10.213.7.1:{self.ports['fleet_port']}",
                    f"--token-file={token}", f"--local-rank={rank}", "--threads=1", "--memory=1GiB", "--pin=off", *flags])
            self.inference = pb_grpc.InferenceStub(grpc.insecure_channel(f"127.0.0.1:{self.ports['port']}"))
            self.admin = admin_grpc.AdminStub(grpc.insecure_channel(f"127.0.0.1:{self.ports['admin_port']}"))
            self.await_ready()
        except BaseException:
            print(self.logs())
            self.close()
            raise

    def _start(self, hosts, host, name, command):
        process = Process(self._dir, name, hosts.command(host, *command))
        self.processes.append(process)
        return process

    def await_ready(self, timeout=90):
        start = time.monotonic()
        while time.monotonic() - start < timeout:
            try:
                if self.admin.GetStatus(admin_pb.GetStatusRequest(), timeout=5).status.ready:
                    return time.monotonic() - start
            except grpc.RpcError:
                pass
            time.sleep(0.05)
        raise RuntimeError(f"not ready within {timeout} s")

    def answers(self):
        """Tokens, text and the bits of every log-probability of some requests that run together."""
        vocabulary = self.inference.ListModels(pb.ListModelsRequest()).models[0].vocabulary_size
        streams = [Stream(self.inference, pb.GenerateRequest(
            tokens=pb.TokenIds(ids=[(7 + 13 * i + k * k) % vocabulary for k in range(1 + 11 * i)]), max_tokens=24,
            sampling=pb.Sampling(temperature=[0, 0.9][i % 2], seed=i), stop=pb.Stopping(ignore_eos=True),
            output=pb.OutputOptions(token_ids=True, top_logprobs=2))) for i in range(REQUESTS)]
        got = []
        for stream in streams:
            stream.join(60)
            bits = [struct.pack("<f", entry.chosen.logprob) + b"".join(
                struct.pack("<If", top.token_id, top.logprob) for top in entry.top) for entry in stream.logprobs]
            got.append((stream.code, tuple(stream.tokens), stream.text, tuple(bits)))
        return got

    def logs(self):
        return "\n".join(f"--- {p.name}\n{p.log()[-5000:]}" for p in self.processes)

    def close(self):
        for process in reversed(self.processes):
            process.close()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            print(self.logs())
        self.close()


class TwoHostsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.hosts, cls.why_not = None, ""
        try:
            cls.hosts = TwoHosts()
        except Impossible as reason:
            cls.why_not = str(reason)
            return
        cls.hosts.enter("a")
        with Service(cls.hosts, "a") as service:
            cls.reference = service.answers()

    @classmethod
    def tearDownClass(cls):
        if cls.hosts is not None:
            cls.hosts.close()

    def setUp(self):
        if self.hosts is None:
            self.skipTest(f"no two network namespaces here: {self.why_not}")

    def _check_answers(self, service):
        got = service.answers()
        for i, (one, reference) in enumerate(zip(got, self.reference)):
            self.assertEqual(one[0], grpc.StatusCode.OK)
            self.assertEqual(len(one[1]), 24)
            self.assertEqual(one, reference, f"request {i}")

    def test_equal_bits_of_one_worker_two_over_shm_and_two_and_three_over_gloo(self):
        for workers, flags, collective in (("aa", [], "shm"), ("aa", ["--collective=gloo"], "gloo"), ("ab", [], "gloo"),
                                           ("aba", [], "gloo")):
            with self.subTest(workers=workers, flags=flags), Service(self.hosts, workers, flags) as service:
                self._check_answers(service)
                log = service.coordinator.log()
                self.assertIn(f"collective={collective} several_hosts={'true' if 'b' in workers else 'false'}", log)

    def _cut(self, link, flags, names):
        """Cuts `link` under running answers; `names`: what every caller and the log are told."""
        with Service(self.hosts, "ab", flags) as service:
            request = pb.GenerateRequest(text="def main(", max_tokens=1900, stop=pb.Stopping(ignore_eos=True))
            streams = [Stream(service.inference, request) for _ in range(4)]
            end = time.monotonic() + 30
            while any(s.token_count < 3 for s in streams) and time.monotonic() < end:
                time.sleep(0.005)
            self.assertTrue(all(s.code is None for s in streams), [s.details for s in streams])
            self.hosts.link(link, "down")
            try:
                for stream in streams:
                    stream.join(30)
                for stream in streams:
                    self.assertEqual(stream.code, grpc.StatusCode.UNAVAILABLE, stream.details)
                    self.assertRegex(stream.details, names)
                self.assertRegex(service.coordinator.log(), names)
                self.assertFalse(service.admin.GetStatus(admin_pb.GetStatusRequest(), timeout=5).status.ready)
            finally:
                self.hosts.link(link, "up")
            print(f"{link} link down and up: ready again {service.await_ready():.2f} s after")
            self._check_answers(service)

    def test_a_host_that_is_cut_off_is_named_and_comes_back(self):
        self._cut(TwoHosts.CONTROL, [], r"rank 1 \(pid \d+ on host-b")

    def test_a_link_between_workers_that_breaks_is_found_and_the_group_comes_back(self):
        # Apart from the coordinator's link, which stays: no heartbeat is missed. A rank may have got the last message.
        self._cut(TwoHosts.DATA, ["--gloo-interface=data"], r"no (rank made )?progress for \S+")


if __name__ == "__main__":
    case_report.main()
