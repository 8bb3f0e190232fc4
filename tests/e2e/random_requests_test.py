"""A thousand random requests of one to five choices with random cancels and deadlines against two worker processes: each
ends with exactly one status, a stream has no gap, and at the end every block is back and the accounting adds up."""

import collections
import os
import random
import threading
import unittest

import grpc

import case_report
from live_service import Service, Stream, golden_model, pb
from metrics_page import settled

REQUESTS = 1000
AT_ONCE = 48
EXPECTED = {grpc.StatusCode.OK, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED,
            grpc.StatusCode.RESOURCE_EXHAUSTED}


class RandomRequestsTest(unittest.TestCase):
    def test_each_ends_once_and_all_blocks_come_back(self):
        seed = int(os.environ.get("BITSHARD_TEST_SEED", "20261129"))
        print(f"seed {seed}")
        rng = random.Random(seed)
        with Service(golden_model("tiny-llama-q"), workers=2, coordinator_flags=["--kv-blocks=256"]) as service:
            total = service.load().blocks.total
            streams, live = [], threading.Semaphore(AT_ONCE)

            def go(request, timeout, cancel_after, cancel_at_once):
                stream = Stream(service.inference, request, timeout=timeout, cancel_after_tokens=cancel_after)
                if cancel_at_once:
                    stream.cancel()
                stream.join()
                live.release()
                streams.append(stream)

            threads = []
            for i in range(REQUESTS):
                request = pb.GenerateRequest(
                    request_id=f"random-{i}",
                    tokens=pb.TokenIds(ids=[rng.randrange(7, 512) for _ in range(rng.randint(1, 200))]),
                    max_tokens=rng.randint(1, 40), choices=rng.choice([1, 1, 1, 2, 5]),
                    sampling=pb.Sampling(temperature=rng.choice([0, 0.7, 1.5]), top_k=rng.choice([0, 1, 20]),
                                         top_p=rng.choice([1, 0.9]), seed=i),
                    stop=pb.Stopping(ignore_eos=rng.random() < 0.5, strings=["e "] if rng.random() < 0.1 else []))
                kind = rng.random()
                timeout = rng.uniform(0.001, 0.3) if kind < 0.2 else 60
                cancel_after = rng.randint(0, 10) if 0.2 <= kind < 0.35 else None
                live.acquire()
                thread = threading.Thread(target=go, args=(request, timeout, cancel_after, 0.35 <= kind < 0.4))
                thread.start()
                threads.append(thread)
            for thread in threads:
                thread.join()

            codes = collections.Counter(stream.code for stream in streams)
            print(f"{len(streams)} requests ended: {dict((c.name, n) for c, n in codes.items())}")
            self.assertEqual(len(streams), REQUESTS)
            self.assertLessEqual(set(codes), EXPECTED)
            for code in (grpc.StatusCode.OK, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED):
                self.assertGreater(codes[code], 20, f"the mix lost its {code}")
            for stream in streams:
                self.assertEqual(stream.gaps, [], stream.request.request_id)
                if stream.code == grpc.StatusCode.OK:
                    ends = [choice.finished is not None for choice in stream.choices.values()]
                    self.assertEqual(ends, [True] * stream.request.choices, stream.request.request_id)
                elif stream.finished is not None:  # the client's own cancel or deadline came between the end and the status
                    self.assertIn(stream.code, (grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED))

            load = service.await_idle()
            self.assertEqual((load.running, load.waiting, load.blocks.used, load.blocks.quarantined), (0, 0, 0, 0))
            self.assertEqual(load.blocks.free + load.blocks.cached, total)
            page = settled(service.ports["metrics_port"])
            received = page.sum("bitshard_requests_received_total")
            ended = page.sum("bitshard_requests_total")
            rejected = page.sum("bitshard_admission_rejections_total")
            print(f"received {received:.0f} = ended {ended:.0f} + rejected {rejected:.0f}")
            self.assertEqual(received, ended + rejected)


if __name__ == "__main__":
    case_report.main()
