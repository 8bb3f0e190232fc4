"""Three times as many requests as the service can answer, sent at a fixed rate whatever becomes of them: each is served or
refused at once with the time to come back, nothing is lost, and what was accepted is served as without the crowd.

Figures are printed, none is asserted: goodput before and under overload, how long refusals and first tokens took.
"""

import collections
import threading
import time
import unittest

import grpc

import case_report
from live_service import Service, golden_model, pb
from metrics_page import Page

MAX_RUNNING, MAX_WAITING, MAX_WAIT = 4, 16, "100ms"
AT_ONCE = 12  # enough that the service never waits for the client
PROMPT, OUTPUT = 32, 48
WARM_UP, MEASURED = 24, 96
OVERLOAD = 3
REQUESTS = 500
BURST = 200  # the last ones come at once: too much at any speed
PATIENCE_S = 60  # for one answer; only a hang takes so long


def request(name, seed):
    return pb.GenerateRequest(
        request_id=name,
        tokens=pb.TokenIds(ids=[7 + (seed * 31 + i * 17) % 500 for i in range(PROMPT)]),
        max_tokens=OUTPUT, sampling=pb.Sampling(temperature=0), stop=pb.Stopping(ignore_eos=True),
        output=pb.OutputOptions(token_ids=True))


class Answer(threading.Thread):
    """One call: its tokens, its status, and the trailers of a refusal."""

    def __init__(self, service, what):
        super().__init__(daemon=True)
        self.tokens, self.code, self.trailers = [], None, {}
        self._call = service.inference.Generate(what, timeout=PATIENCE_S)
        self.start()

    def run(self):
        try:
            for message in self._call:
                self.tokens.extend(message.token_ids)
            self.code = grpc.StatusCode.OK
        except grpc.RpcError:
            self.code = self._call.code()
        self.trailers = dict(self._call.trailing_metadata() or ())


def closed_loop(service, count, name):
    """So many requests, AT_ONCE at a time; returns the answers and how many ended per second.

    Who is refused comes back when told to.
    """
    answers, places = [], threading.Semaphore(AT_ONCE)

    def one(i):
        while True:
            answer = Answer(service, request(f"{name}-{i}", seed=i))
            answer.join()
            if answer.code != grpc.StatusCode.RESOURCE_EXHAUSTED:
                break
            time.sleep(int(answer.trailers["grpc-retry-pushback-ms"]) / 1e3)
        answers.append((i, answer))
        places.release()

    threads = []
    start = time.monotonic()
    for i in range(count):
        places.acquire()
        threads.append(threading.Thread(target=one, args=(i,)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    return dict(answers), count / (time.monotonic() - start)


class OverloadTest(unittest.TestCase):
    def _crowd(self, flags, reason):
        """Every refusal is for `reason`; returns how many were served."""
        with Service(golden_model("tiny-llama-q"), workers=1, coordinator_flags=flags) as service:
            total = service.load().blocks.total
            closed_loop(service, WARM_UP, "warm-up")
            alone, peak = closed_loop(service, MEASURED, "alone")
            self.assertEqual({answer.code for answer in alone.values()}, {grpc.StatusCode.OK})

            before = Page(service.ports["metrics_port"])
            answers = []
            start = time.monotonic()
            for i in range(REQUESTS):
                if i < REQUESTS - BURST:
                    time.sleep(max(0.0, start + i / (OVERLOAD * peak) - time.monotonic()))
                answers.append(Answer(service, request(f"crowd-{i}", seed=i % MEASURED)))
            for answer in answers:
                answer.join()
            took_s = time.monotonic() - start
            load = service.await_idle()
            after = Page(service.ports["metrics_port"])

            codes = collections.Counter(answer.code for answer in answers)
            served, refused = codes[grpc.StatusCode.OK], codes[grpc.StatusCode.RESOURCE_EXHAUSTED]
            rejection = after.quantile("bitshard_rejection_seconds", 0.99, since=before)
            ttft = after.quantile("bitshard_time_to_first_token_seconds", 0.99, since=before)
            print(f"{' '.join(flags)}: {peak:.1f} requests/s at the most; then {REQUESTS - BURST} came at "
                  f"{OVERLOAD * peak:.1f}/s and {BURST} at once: {served} served, {served / took_s:.1f}/s, "
                  f"{refused} refused; p99 by the server's clock: {rejection * 1e3:.3f} ms until a refusal, "
                  f"{ttft * 1e3:.0f} ms until a first token")

            # Each ended once, in one of two ways.
            self.assertEqual(served + refused, REQUESTS, codes)
            self.assertGreater(refused, 0)
            for i, answer in enumerate(answers):
                if answer.code == grpc.StatusCode.OK:
                    self.assertEqual(answer.tokens, alone[i % MEASURED].tokens, f"crowd-{i}")
                else:
                    self.assertEqual(answer.tokens, [])
                    self.assertGreater(int(answer.trailers["grpc-retry-pushback-ms"]), 0)

            def counted(name, **labels):
                return after.sum(name, **labels) - before.sum(name, **labels)

            self.assertEqual(counted("bitshard_requests_received_total"), REQUESTS)
            self.assertEqual(counted("bitshard_requests_total"), served)
            self.assertEqual(counted("bitshard_admission_rejections_total"), refused)
            self.assertEqual(counted("bitshard_admission_rejections_total", reason=reason), refused)
            self.assertEqual(counted("bitshard_rejection_seconds_count"), refused)
            self.assertEqual((load.running, load.waiting, load.waiting_tokens, load.blocks.used), (0, 0, 0, 0))
            self.assertEqual(load.blocks.free + load.blocks.cached, total)
            return served

    def test_a_full_queue_refuses_and_the_rest_is_served(self):
        served = self._crowd([f"--max-running={MAX_RUNNING}", f"--max-waiting={MAX_WAITING}"], "queue_full")
        self.assertGreaterEqual(served, MAX_RUNNING + MAX_WAITING)

    def test_a_bound_on_the_wait_refuses_and_the_rest_is_served(self):
        served = self._crowd([f"--max-running={MAX_RUNNING}", f"--max-queue-wait={MAX_WAIT}"], "queue_wait")
        self.assertGreaterEqual(served, MAX_RUNNING)


if __name__ == "__main__":
    case_report.main()
