"""Sampling parameters through real processes and a public client: what each of them promises about the answer."""

import math
import unittest

import grpc

import case_report
from live_service import Service, golden_model, pb

PROMPT = list(range(20, 60))
VOCAB_STEP = 7


class SamplingTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.service = Service(golden_model("tiny-llama-q"), workers=3)
        cls.stub = cls.service.inference

    @classmethod
    def tearDownClass(cls):
        left = cls.service.close()
        assert not left, f"processes outlived the service: {left}"

    def complete(self, max_tokens=24, **fields):
        sampling = fields.pop("sampling", pb.Sampling())
        stop = fields.pop("stop", pb.Stopping(ignore_eos=True))
        output = fields.pop("output", pb.OutputOptions(token_ids=True, logprobs=True))
        return self.stub.Complete(pb.CompleteRequest(
            tokens=pb.TokenIds(ids=PROMPT), max_tokens=max_tokens, sampling=sampling, stop=stop, output=output, **fields))

    def tokens(self, **fields):
        return list(self.complete(**fields).choices[0].token_ids)

    def test_allowed_and_banned_tokens_bound_what_is_chosen(self):
        allowed = list(range(5, 200, VOCAB_STEP))
        for temperature in (0, 1.5):
            ids = self.tokens(sampling=pb.Sampling(temperature=temperature, seed=1, allowed_token_ids=allowed,
                                                   banned_token_ids=allowed[:3]))
            self.assertEqual(len(ids), 24)
            self.assertTrue(set(ids) <= set(allowed[3:]), ids)
        free = self.tokens()
        without = self.tokens(sampling=pb.Sampling(banned_token_ids=[free[0]]))
        self.assertNotIn(free[0], without)

    def test_bias_decides(self):
        self.assertEqual(self.tokens(max_tokens=5, sampling=pb.Sampling(logit_bias={33: 100.0})), [33] * 5)
        free = self.tokens(max_tokens=1)
        self.assertNotEqual(self.tokens(max_tokens=1, sampling=pb.Sampling(logit_bias={free[0]: -100.0})), free)

    def test_penalties_keep_tokens_from_coming_again(self):
        # Two tokens far above all others: frequency makes them take turns, presence only once.
        far = {33: 60.0, 44: 60.0}
        ids = self.tokens(max_tokens=12, sampling=pb.Sampling(logit_bias=far, frequency_penalty=2))
        self.assertEqual(set(ids), {33, 44})
        self.assertLessEqual(abs(ids.count(33) - ids.count(44)), 6)
        greedy = self.tokens(max_tokens=24)
        repelled = self.tokens(max_tokens=24, sampling=pb.Sampling(repetition_penalty=2))
        self.assertGreaterEqual(len(set(repelled)), len(set(greedy)))
        self.assertNotEqual(repelled, greedy)

    def test_min_tokens_holds_the_end_back(self):
        wanted = self.tokens(max_tokens=1)[0]
        stop = pb.Stopping(ignore_eos=True, token_ids=[wanted])
        self.assertEqual(self.tokens(stop=stop), [wanted])
        stop.min_tokens = 6
        answer = self.complete(stop=stop, sampling=pb.Sampling(logit_bias={wanted: 100.0})).choices[0]
        self.assertEqual(len(answer.token_ids), 7)
        self.assertNotIn(wanted, answer.token_ids[:6])
        self.assertEqual(answer.finished.token_id, wanted)

    def test_logprobs_are_those_of_the_raw_logits(self):
        free = self.complete(max_tokens=1).choices[0]
        forced = self.complete(max_tokens=1, sampling=pb.Sampling(allowed_token_ids=list(free.token_ids), temperature=2,
                                                                  seed=3, presence_penalty=2)).choices[0]
        self.assertEqual(list(forced.token_ids), list(free.token_ids))
        self.assertEqual(forced.logprobs[0].chosen.logprob, free.logprobs[0].chosen.logprob)
        self.assertLess(forced.logprobs[0].chosen.logprob, 0)

    def test_prompt_logprobs_equal_score_and_come_again_though_the_prompt_is_cached(self):
        score = self.stub.Score(pb.ScoreRequest(tokens=pb.TokenIds(ids=PROMPT), top_logprobs=2))
        output = pb.OutputOptions(token_ids=True, top_logprobs=2, prompt_logprobs=True)
        for _ in range(2):
            answer = self.complete(output=output)
            self.assertEqual([entry.SerializeToString() for entry in answer.prompt_logprobs],
                             [entry.SerializeToString() for entry in score.logprobs])
        self.assertEqual(list(answer.choices[0].token_ids), self.tokens())
        messages = list(self.stub.Generate(pb.GenerateRequest(
            tokens=pb.TokenIds(ids=PROMPT), max_tokens=4, output=output, stop=pb.Stopping(ignore_eos=True))))
        self.assertEqual(len(messages[0].prompt_logprobs), len(PROMPT))
        self.assertFalse(any(message.prompt_logprobs for message in messages[1:]))

    def test_not_a_number_is_refused_by_name(self):
        for field in ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"):
            for value in (math.nan, math.inf, -math.inf):
                with self.assertRaises(grpc.RpcError) as raised:
                    self.complete(sampling=pb.Sampling(**{field: value}))
                self.assertEqual(raised.exception.code(), grpc.StatusCode.INVALID_ARGUMENT, field)
                self.assertIn(f"sampling.{field}", raised.exception.details())


if __name__ == "__main__":
    case_report.main()
