"""The CUDA backend as a service, without a GPU: real coordinator and workers, whose kernels, device layer and NCCL calls
run on the emulator, a fake CUDA runtime and a fake NCCL."""

import os
import pathlib
import random
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import unittest

import grpc

import case_report
from live_service import EMULATED_WORKER, ROOT, WORKER, Service, Stream, admin_pb, golden_model, pb
from metrics_page import Page

REQUESTS = 4
TOKENS = 8
# Of a reported log-probability against the CPU's f32. Activations rounded to fp16 put a relative error of about 2^-12 into
# each of the 9 products between a token and its logits; logits of 4 then move by up to 9 * 2^-12 * 4 = 0.009. Measured: 0.0013.
BOUND = 0.009
# kill -9 to the end of every stream: the coordinator sees the closed connection, the other rank's watchdog has 6 s.
LOSS_LIMIT_S = 10.0


def requests(vocabulary):
    rng = random.Random(11)
    return [pb.GenerateRequest(
        tokens=pb.TokenIds(ids=[rng.randrange(7, vocabulary) for _ in range(length)]), max_tokens=TOKENS,
        sampling=pb.Sampling(temperature=0), stop=pb.Stopping(ignore_eos=True),
        output=pb.OutputOptions(token_ids=True, top_logprobs=20)) for length in (1, 5, 17, 30)][:REQUESTS]


def five_bits():
    """tiny-llama-q in compressed-tensors of 5 bits, with its tokenizer."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="five-bits-", dir=os.environ.get("TEST_TMPDIR")))
    for source, names in (("tiny-llama-q", ("tokenizer.json", "tokenizer_config.json")),
                          ("ct-int5-g32-g128", ("config.json", "model.safetensors"))):
        for name in names:
            shutil.copy(pathlib.Path(golden_model(source), name), folder)
    return str(folder)


MODEL = five_bits()


class Gpus(Service):
    """A service on emulated GPUs, one a worker."""

    def __init__(self, workers, coordinator_flags=(), **more):
        os.environ["BITSHARD_FAKE_CUDA_DEVICES"] = str(workers)
        super().__init__(MODEL, workers=workers, worker=EMULATED_WORKER,
                         flags=["--device=cuda", "--threads=1", "--kv-cache-dtype=f32"],
                         # Of a cache: the emulator clears it by hand.
                         worker_flags=["--memory=64MiB", "--metrics-port=0"],
                         coordinator_flags=["--max-running=4", "--token-budget=256", *coordinator_flags], **more)

    def steps_ahead(self):
        """Of all workers: steps that the GPU had before the one before was over for the host."""
        ports = re.findall(r"worker: starting .*metrics_port=(\d+)", self.log())
        return [int(Page(int(port)).sum("bitshard_worker_steps_ahead_total")) for port in ports]


def answers(service, at_once=True):
    streams = []
    for request in requests(service.inference.ListModels(pb.ListModelsRequest()).models[0].vocabulary_size):
        streams.append(Stream(service.inference, request))
        if not at_once:
            streams[-1].join()
    for stream in streams:
        stream.join()
    return streams


def bits(stream):
    return tuple(stream.tokens), b"".join(
        struct.pack("<f", entry.chosen.logprob) + b"".join(struct.pack("<If", top.token_id, top.logprob) for top in entry.top)
        for entry in stream.logprobs)


class CudaServiceTest(unittest.TestCase):
    def _compare(self, gpu, cpu):
        """Top-20 log-probabilities within BOUND; tokens equal while the gap to the second exceeds what two of them may
        move. Returns how many positions were compared, and the largest difference."""
        positions, worst = 0, 0.0
        for got, truth in zip(gpu.logprobs, cpu.logprobs):
            positions += 1
            known = {top.token_id: top.logprob for top in truth.top}
            for top in got.top:
                if top.token_id in known:
                    worst = max(worst, abs(top.logprob - known[top.token_id]))
                else:  # it may only have passed the last one
                    self.assertLess(top.logprob, min(known.values()) + 2 * BOUND)
            if got.chosen.token_id != truth.chosen.token_id:
                gap = truth.top[0].logprob - truth.top[1].logprob
                self.assertLess(gap, 2 * BOUND, f"position {positions}: another token")
                break  # from here on the two go different ways
        self.assertLess(worst, BOUND)
        return positions, worst

    def test_streams_at_5_bits_what_the_cpu_does(self):
        with Service(MODEL, workers=1,
                     flags=["--threads=1", "--activations=f32", "--kv-cache-dtype=f32", "--deterministic=false"]) as service:
            cpu = answers(service)
            self.assertTrue(service.status().ranks[0].deterministic)  # the CPU has nothing else
        for stream in cpu:
            self.assertEqual(stream.code, grpc.StatusCode.OK, stream.details)
        first = None
        for workers, at_once, flags in ((2, True, []), (1, True, ["--prefill-chunk=7"]), (3, False, []),
                                        (2, True, ["--deterministic=false"])):
            deterministic = "--deterministic=false" not in flags
            with Gpus(workers, coordinator_flags=flags) as service:
                gpu = answers(service, at_once)
                devices = [rank.device for rank in service.status().ranks]
                self.assertEqual([rank.deterministic for rank in service.status().ranks], [deterministic] * workers)
                kernels = service.admin.GetKernelReport(admin_pb.GetKernelReportRequest(), timeout=5)
                ahead = service.steps_ahead()
            for rank, device in enumerate(devices):
                self.assertTrue(device.startswith(f"cuda:{rank} "), devices)
                self.assertTrue(device.endswith(" sm_90"), devices)
            for rank in kernels.ranks:
                linear = [kernel for kernel in rank.kernels if kernel.op == "linear"]
                self.assertTrue(linear)
                for kernel in linear:
                    self.assertIn("cuda", kernel.kernel)
            # Workers plan ahead, all the same steps.
            self.assertEqual(ahead, [ahead[0]] * workers)
            self.assertGreater(ahead[0], 0)
            for stream in gpu:
                self.assertEqual(stream.code, grpc.StatusCode.OK, stream.details)
                self.assertEqual(stream.gaps, [])
                self.assertEqual(len(stream.tokens), TOKENS)
            compared = [self._compare(g, c) for g, c in zip(gpu, cpu)]
            print(f"{workers} workers: positions compared {[n for n, _ in compared]}, largest difference of a "
                  f"log-probability {max(worst for _, worst in compared):.4f} (bound {BOUND}); steps ahead {ahead}")
            self.assertGreaterEqual(sum(n for n, _ in compared), REQUESTS * TOKENS * 3 // 4)
            with self.subTest(workers=workers, at_once=at_once, flags=flags):
                mine = [bits(stream) for stream in gpu]
                first = first or mine
                if deterministic:
                    self.assertEqual(mine, first)

    def test_kill_9_of_a_rank_while_the_other_waits_in_a_sum(self):
        service = Gpus(2)
        try:
            request = pb.GenerateRequest(tokens=pb.TokenIds(ids=[9, 8, 7]), max_tokens=1900,
                                         stop=pb.Stopping(ignore_eos=True))
            streams = [Stream(service.inference, request) for _ in range(3)]
            end = time.monotonic() + 60
            while any(s.token_count < 3 for s in streams) and time.monotonic() < end:
                time.sleep(0.005)
            self.assertTrue(all(s.code is None for s in streams), [s.details for s in streams])
            other, lost = service.worker_pids()
            # One that stands still leaves the other in a sum over ranks, and nothing comes any more.
            os.kill(lost, signal.SIGSTOP)
            before, still_since = None, time.monotonic()
            while time.monotonic() < still_since + 0.3:
                now = [s.token_count for s in streams]
                if now != before:
                    before, still_since = now, time.monotonic()
                time.sleep(0.01)
            self.assertTrue(all(s.code is None for s in streams), [s.details for s in streams])
            logged = len(service.log())
            struck = time.monotonic()
            os.kill(lost, signal.SIGKILL)
            for stream in streams:
                stream.join(60)
            slowest = max(s.ended_at - struck for s in streams)
            print(f"all streams ended within {slowest:.2f} s")
            for stream in streams:
                self.assertEqual(stream.code, grpc.StatusCode.UNAVAILABLE, stream.details)
                self.assertIn("rank 1", stream.details)
                self.assertGreaterEqual(stream.token_count, 3)
            self.assertLess(slowest, LOSS_LIMIT_S)
            self.assertIn("event=worker_lost rank=1 ", service.log()[logged:])
            # The survivor let go of its communicator and its graphs and went on: the same process serves again.
            service.await_ready()
            self.assertIn(other, service.worker_pids())
            again = Stream(service.inference, pb.GenerateRequest(tokens=pb.TokenIds(ids=[9, 8, 7]), max_tokens=4,
                                                                 stop=pb.Stopping(ignore_eos=True)))
            again.join(60)
            self.assertEqual(again.code, grpc.StatusCode.OK, again.details)
        finally:
            self.assertEqual(service.close(), [], "processes outlived the service")
            print("the service's log:\n" + service.log()[-6000:])


class DeviceFlagTest(unittest.TestCase):
    def _worker(self, program, *flags, **environment):
        return subprocess.run([str(ROOT / program), "--coordinator=127.0.0.1:1", "--coordinator-timeout=200ms", *flags],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60,
                              env={**os.environ, **environment}, check=False)

    def test_cuda_without_a_device_ends_with_the_reason(self):
        ended = self._worker(EMULATED_WORKER, "--device=cuda", BITSHARD_FAKE_CUDA_DRIVER="0")
        self.assertEqual(ended.returncode, 2, ended.stdout)
        self.assertIn("no NVIDIA driver", ended.stdout)
        self.assertIn("--device=cpu", ended.stdout)

    def test_cuda_of_a_program_without_it_says_so(self):
        ended = self._worker(WORKER, "--device=cuda:0")
        self.assertEqual(ended.returncode, 2, ended.stdout)
        self.assertIn("--config=cuda", ended.stdout)

    def test_auto_says_why_it_is_the_cpu(self):
        ended = self._worker(EMULATED_WORKER, "--device=auto", BITSHARD_FAKE_CUDA_DRIVER="0")
        self.assertEqual(ended.returncode, 3, ended.stdout)  # no coordinator
        self.assertIn("--device=auto: the CPU, because: no CUDA device", ended.stdout)
        self.assertIn("device=cpu", ended.stdout)

    def test_nothing_said_is_the_cpu_only_without_gpus_built_in(self):
        ended = self._worker(EMULATED_WORKER, BITSHARD_FAKE_CUDA_DRIVER="0")
        self.assertEqual(ended.returncode, 2, ended.stdout)
        self.assertIn("no CUDA device", ended.stdout)
        self.assertIn("--device=auto", ended.stdout)
        ended = self._worker(WORKER)
        self.assertEqual(ended.returncode, 3, ended.stdout)  # no coordinator
        self.assertNotIn("because", ended.stdout)
        self.assertIn("device=cpu", ended.stdout)

    def test_more_memory_than_is_free_is_refused(self):
        ended = self._worker(EMULATED_WORKER, "--device=cuda", "--memory=2GiB")
        self.assertEqual(ended.returncode, 2, ended.stdout)
        self.assertIn("--memory=2GiB", ended.stdout)


if __name__ == "__main__":
    case_report.main()
