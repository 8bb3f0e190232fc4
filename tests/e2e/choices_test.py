"""Several choices through real processes and a public client: each is the request of its own that its seed names, bit for
bit; the prompt is computed once; a cancel frees every block; and a request is counted once, whatever it asked for."""

import collections
import random
import struct
import time
import unittest

import grpc

import case_report
from live_service import Service, Stream, golden_model, pb
from metrics_page import Page, settled

VOCABULARY = 512
PROMPT = [random.Random(3).randrange(7, VOCABULARY) for _ in range(70)]
MAX_RUNNING = 12


def bits(logprobs):
    return [struct.pack("<f", entry.chosen.logprob) + b"".join(
        struct.pack("<If", top.token_id, top.logprob) for top in entry.top) for entry in logprobs]


def of_choice(choice):
    return (list(choice.token_ids), choice.text, bits(choice.logprobs), choice.finished.reason,
            choice.finished.WhichOneof("matched"))


def request(kind=pb.CompleteRequest, **fields):
    defaults = {"tokens": pb.TokenIds(ids=PROMPT), "max_tokens": 24, "stop": pb.Stopping(ignore_eos=True),
                "output": pb.OutputOptions(token_ids=True, top_logprobs=2)}
    return kind(**{**defaults, **fields})


class ChoicesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.service = Service(golden_model("tiny-llama-q"), workers=2,
                              coordinator_flags=["--kv-blocks=256", f"--max-running={MAX_RUNNING}"])
        cls.stub = cls.service.inference

    @classmethod
    def tearDownClass(cls):
        left = cls.service.close()
        assert not left, f"processes outlived the service: {left}"

    def tearDown(self):
        load = self.service.await_idle()
        self.assertEqual((load.running, load.waiting, load.running_choices, load.waiting_choices, load.blocks.used), (0,) * 5)

    def test_each_is_a_request_of_its_own(self):
        for sampling in (pb.Sampling(), pb.Sampling(temperature=1.2, seed=5), pb.Sampling(temperature=0.8, top_p=0.9, seed=6),
                         pb.Sampling(temperature=1.5, top_k=40, frequency_penalty=0.5, seed=2**64 - 1)):
            for stop in (pb.Stopping(ignore_eos=True), pb.Stopping(strings=["e", " t"])):
                answer = self.stub.Complete(request(choices=4, sampling=sampling, stop=stop))
                seeds = list(answer.started.choice_seeds)
                self.assertEqual(seeds, [(answer.started.seed + i * 0x9E3779B97F4A7C15) % 2**64 for i in range(4)])
                self.assertEqual([choice.choice for choice in answer.choices], [0, 1, 2, 3])
                singles = []
                for seed in seeds:
                    sampling.seed = seed
                    singles.append(self.stub.Complete(request(sampling=sampling, stop=stop)).choices[0])
                self.assertEqual([of_choice(c) for c in answer.choices], [of_choice(c) for c in singles])
                usage = answer.usage
                self.assertEqual(usage.prompt_tokens, len(PROMPT))
                self.assertEqual(usage.completion_tokens, sum(len(c.token_ids) for c in answer.choices))
                texts = {tuple(c.token_ids) for c in answer.choices}
                if sampling.temperature == 0:
                    self.assertEqual(len(texts), 1, "greedy choices are the same")
                elif stop.ignore_eos:
                    self.assertEqual(len(texts), 4, "drawn ones are not")

    def test_a_stream_has_them_in_turns(self):
        asked = request(pb.GenerateRequest, choices=5, max_tokens=60, sampling=pb.Sampling(temperature=1.2, seed=11),
                        output=pb.OutputOptions(token_ids=True, top_logprobs=2, prompt_logprobs=True))
        stream = Stream(self.stub, asked)
        stream.join()
        self.assertEqual((stream.code, stream.gaps), (grpc.StatusCode.OK, []), stream.details)
        whole = self.stub.Complete(request(choices=5, max_tokens=60, sampling=asked.sampling))
        self.assertEqual(len(stream.choices), 5)
        for expected in whole.choices:
            got = stream.choices[expected.choice]
            self.assertEqual((got.tokens, got.text, bits(got.logprobs)),
                             (list(expected.token_ids), expected.text, bits(expected.logprobs)))
            self.assertEqual(got.finished.reason, expected.finished.reason)
            self.assertEqual(len(got.prompt_logprobs), len(PROMPT) if expected.choice == 0 else 0, "once")
        self.assertEqual(stream.usage.completion_tokens, 5 * 60)
        last_of_first = len(stream.order) - 1 - stream.order[::-1].index(0)
        self.assertLess(stream.order.index(4), last_of_first, f"one after the other: {stream.order}")

    def test_the_prompt_is_computed_once(self):
        rng = random.Random(17)
        prompt = pb.TokenIds(ids=[rng.randrange(7, VOCABULARY) for _ in range(160)])
        before = Page(self.service.ports["metrics_port"])
        answer = self.stub.Complete(request(tokens=prompt, choices=8, max_tokens=2))
        after = Page(self.service.ports["metrics_port"])
        computed = sum(page.sum("bitshard_step_tokens_sum") * sign for page, sign in ((after, 1), (before, -1)))
        # Then a token for each choice, and for the later ones the last block, at whose end they begin.
        self.assertEqual(computed, 160 + 8 + 7 * 16)
        self.assertEqual(answer.usage.cached_tokens, 0)
        self.assertEqual(after.sum("bitshard_prompt_tokens_total") - before.sum("bitshard_prompt_tokens_total"), 160)

    def test_a_cancel_frees_all_of_them(self):
        total = self.service.load().blocks.total
        for after in (0, 1, 7, 60):
            stream = Stream(self.stub, request(pb.GenerateRequest, choices=6, max_tokens=400,
                                               sampling=pb.Sampling(temperature=1, seed=after)), cancel_after_tokens=after)
            stream.join()
            self.assertEqual(stream.code, grpc.StatusCode.CANCELLED)
            self.assertEqual(stream.gaps, [])
            load = self.service.await_idle()
            self.assertEqual(load.blocks.free + load.blocks.cached, total)

    def test_abort_and_deadline_end_all_of_them(self):
        stream = Stream(self.stub, request(pb.GenerateRequest, request_id="many", choices=6, max_tokens=400))
        end = time.monotonic() + 30
        while stream.token_count == 0 and time.monotonic() < end:
            time.sleep(0.005)
        self.stub.Abort(pb.AbortRequest(request_ids=["many"]))
        stream.join()
        self.assertEqual(stream.code, grpc.StatusCode.CANCELLED)
        late = Stream(self.stub, request(pb.GenerateRequest, choices=6, max_tokens=400), timeout=0.1)
        late.join()
        self.assertEqual(late.code, grpc.StatusCode.DEADLINE_EXCEEDED)

    def test_how_many_there_may_be(self):
        for choices, word in ((0, "choices"), (129, "128"), (MAX_RUNNING + 1, "--max-running")):
            with self.assertRaises(grpc.RpcError) as refused:
                self.stub.Complete(request(choices=choices))
            self.assertEqual(refused.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
            self.assertIn(word, refused.exception.details())
        self.assertEqual(len(self.stub.Complete(request(choices=MAX_RUNNING)).choices), MAX_RUNNING)

    def test_choices_are_bound_by_a_constraint_each(self):
        constraint = pb.Constraint(regex="[a-z]{2,8}( [a-z]{2,5}){2}")
        answer = self.stub.Complete(request(choices=4, sampling=pb.Sampling(temperature=1.3, seed=4), stop=pb.Stopping(),
                                            max_tokens=60, constraint=constraint))
        texts = [choice.text for choice in answer.choices]
        for choice in answer.choices:
            if choice.finished.reason == pb.FINISH_REASON_STOP:
                self.assertRegex(choice.text, "^[a-z]{2,8}( [a-z]{2,5}){2}$")
            single = self.stub.Complete(request(
                sampling=pb.Sampling(temperature=1.3, seed=answer.started.choice_seeds[choice.choice]), stop=pb.Stopping(),
                max_tokens=60, constraint=constraint)).choices[0]
            self.assertEqual(of_choice(choice), of_choice(single))
        self.assertGreater(len(set(texts)), 1, texts)

    def test_metrics_count_the_request_once(self):
        def values(page):
            names = ("request_params_n_count", "request_params_n_sum", "request_generation_tokens_sum", "generation_tokens_total",
                     "request_prompt_tokens_sum", "inter_token_latency_seconds_count", "time_to_first_token_seconds_count",
                     "ended_without_token_total", "e2e_request_latency_seconds_count", "requests_total", "requests_received_total",
                     "admission_rejections_total")
            return collections.Counter({name: page.sum("bitshard_" + name) for name in names})

        self.service.await_idle()
        before = values(settled(self.service.ports["metrics_port"]))
        rng = random.Random(5)
        streams, asked = [], []
        for i in range(40):
            asked.append(request(pb.GenerateRequest, choices=rng.randint(1, 5), max_tokens=rng.randint(1, 30),
                                 tokens=pb.TokenIds(ids=PROMPT[:rng.randint(1, 70)]),
                                 sampling=pb.Sampling(temperature=1, seed=i)))
            streams.append(Stream(self.stub, asked[-1]))
        for stream in streams:
            stream.join()
            self.assertEqual((stream.code, stream.gaps), (grpc.StatusCode.OK, []), stream.details)
        now = values(settled(self.service.ports["metrics_port"]))
        grown = {name: now[name] - before[name] for name in now}
        choices = sum(one.choices for one in asked)
        tokens = sum(one.choices * one.max_tokens for one in asked)
        self.assertEqual(sum(stream.usage.completion_tokens for stream in streams), tokens)
        for name in ("request_params_n_count", "time_to_first_token_seconds_count", "e2e_request_latency_seconds_count",
                     "requests_total", "requests_received_total"):
            self.assertEqual(grown[name], 40, name)
        self.assertEqual(grown["request_params_n_sum"], choices)
        self.assertEqual(grown["request_generation_tokens_sum"], tokens)
        self.assertEqual(grown["generation_tokens_total"], tokens)
        self.assertEqual(grown["request_prompt_tokens_sum"], sum(len(one.tokens.ids) for one in asked))
        self.assertEqual(grown["inter_token_latency_seconds_count"], tokens - choices, "a gap within each choice")
        self.assertEqual(grown["ended_without_token_total"] + grown["admission_rejections_total"], 0)


if __name__ == "__main__":
    case_report.main()
