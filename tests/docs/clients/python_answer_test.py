"""How the Python client takes an answer apart and together again (bitshard_client/answer.py), without a service; the C++ twin
is answer_test.cc.
"""

import random
import unittest

import grpc

import case_report
import client_stubs  # noqa: F401  makes bitshard_client importable
import bitshard_client as bitshard
from bitshard_client import answer, pb

CODE = grpc.StatusCode


def failed(kind=bitshard.Unavailable, code=CODE.UNAVAILABLE, **more):
    return kind(code, "it broke", **more)


def request(**fields):
    return pb.GenerateRequest(text="x", request_id="mine", **fields)


def tokens(index, ids, **fields):
    return pb.GenerateResponse(token_index=index, token_count=len(ids), token_ids=ids, **fields)


class AnswerTest(unittest.TestCase):
    def test_ids_are_asked_for_and_kept_from_a_caller_who_did_not(self):
        one = answer.Answer(request(), 5)
        self.assertTrue(one.request().output.token_ids)
        given = one.take(tokens(0, [7, 8]))
        self.assertEqual([(m.token_count, list(m.token_ids)) for m in given], [(2, [])])
        self.assertEqual(one.resume_state().output_ids, [7, 8])
        self.assertEqual(one.resume_state(pending=1).output_ids, [7])

    def test_deltas_wait_for_the_tokens_that_cover_them(self):
        one = answer.Answer(request(), 5)
        first = pb.GenerateResponse(text="a", started=pb.Started(seed=3, model_fingerprint="f"))
        self.assertEqual(one.take(first), [])
        one.broke(failed())
        resume = one.request().resume
        self.assertEqual((list(resume.output_ids), resume.seed, resume.model_fingerprint, resume.supersede), ([], 3, "f", True))
        self.assertEqual(one.take(pb.GenerateResponse(text="a", started=pb.Started(seed=3))), [])
        given = one.take(tokens(0, [7]))
        self.assertEqual([(m.text, m.HasField("started"), m.token_count) for m in given], [("a", True, 0), ("", False, 1)])

    def test_what_comes_twice_or_leaves_a_gap_is_a_fault(self):
        for wrong in (tokens(0, [8]), tokens(2, [8]), tokens(1, [8], choice=1), pb.GenerateResponse(token_index=1, token_count=1)):
            one = answer.Answer(request(), 5)
            one.take(tokens(0, [7]))
            with self.assertRaises(bitshard.ServerError, msg=str(wrong)):
                one.take(wrong)

    def test_it_goes_on_after_what_passes_only(self):
        def goes_on(error, accepted=True, **fields):
            one = answer.Answer(pb.GenerateRequest(**fields), 5)
            if accepted:
                one.accepted()
            try:
                return one.broke(error) >= 0
            except bitshard.BitshardError as raised:
                self.assertIs(raised, error)
                return False

        self.assertTrue(goes_on(failed()))
        self.assertFalse(goes_on(failed(), accepted=False))  # left to gRPC
        self.assertTrue(goes_on(failed(bitshard.DuplicateRequest, CODE.ALREADY_EXISTS), accepted=False))
        self.assertTrue(goes_on(failed(bitshard.SlowReader, CODE.RESOURCE_EXHAUSTED)))
        self.assertTrue(goes_on(failed(bitshard.DuplicateRequest, CODE.ALREADY_EXISTS)))
        self.assertFalse(goes_on(failed(bitshard.DuplicateRequest, CODE.ALREADY_EXISTS), request_id="mine"))
        for kind in (bitshard.InvalidRequest, bitshard.DeadlineExceeded, bitshard.Cancelled, bitshard.ServerError,
                     bitshard.PreconditionFailed):
            self.assertFalse(goes_on(failed(kind)), kind)
        self.assertFalse(goes_on(failed(bitshard.Overloaded, CODE.RESOURCE_EXHAUSTED, retry_after=1.5)))
        begun = answer.Answer(request(), 2)
        begun.accepted()
        begun.broke(failed())
        self.assertEqual(begun.broke(failed(bitshard.Overloaded, CODE.RESOURCE_EXHAUSTED, retry_after=1.5)), 1.5)
        with self.assertRaises(bitshard.Unavailable):  # twice is all
            begun.broke(failed())

    def test_each_choice_goes_on_by_a_call_of_its_own(self):
        one = answer.Answer(request(choices=3), 5)
        one.take(tokens(0, [7], choice=1, finished=pb.Finished()))
        one.broke(failed())
        for choice in (0, 2):
            self.assertFalse(one.complete)
            self.assertEqual(one.request().resume.choice, choice)
            with self.assertRaises(bitshard.ServerError):
                one.went_on()
            one.take(tokens(0, [7], choice=choice, finished=pb.Finished()))
            one.went_on()
        self.assertTrue(one.complete)

    def test_a_status_is_of_no_choice(self):
        status = pb.GenerateResponse(status=pb.StatusEvent(), started=pb.Started(seed=3))
        one = answer.Answer(request(choices=2), 5)
        one.take(tokens(0, [7], finished=pb.Finished()))
        self.assertEqual([m.HasField("status") for m in one.take(status)], [True])
        one.take(tokens(0, [7], choice=1, finished=pb.Finished()))
        self.assertTrue(one.complete)
        resumed = answer.Answer(request(resume=pb.Resume(choice=1, output_ids=[7])), 5)
        self.assertEqual([m.HasField("status") for m in resumed.take(status)], [True])
        self.assertEqual(resumed.started.seed, 3)
        resumed.take(tokens(1, [8], choice=1, finished=pb.Finished()))
        self.assertTrue(resumed.complete)

    def test_breaks_are_counted_from_the_last_token(self):
        one, status = answer.Answer(request(), 2), pb.GenerateResponse(status=pb.StatusEvent())
        for index in range(10):  # each brings a token
            one.request()
            one.take(tokens(index, [7]))
            self.assertLessEqual(one.broke(failed()), 0.1)
        delays = []
        for _ in range(20):  # the service is away
            one.request()
            delays.append(one.broke(failed()))
        self.assertGreaterEqual(delays[-1], 2.5)
        self.assertLessEqual(max(delays), 5)
        self.assertEqual(one.resumes, 30)
        one.request()
        one.take(status)
        one.broke(failed())  # the second without a token
        one.request()
        one.take(status)
        with self.assertRaises(bitshard.Unavailable):
            one.broke(failed())

    def test_the_end_tells_what_came_and_what_broke_it(self):
        one = answer.Answer(request(), 2)
        one.take(tokens(0, [7, 8]))
        one.broke(failed())
        late = failed(bitshard.DeadlineExceeded, CODE.DEADLINE_EXCEEDED)
        one.tell(late, 0.32)
        self.assertEqual(late.message,
                         "it broke (after 0.3 s, 2 tokens, 1 resumes; last broken by UNAVAILABLE: it broke)")
        cancelled = failed(bitshard.Cancelled, CODE.CANCELLED)
        one.tell(cancelled, 0.32)
        self.assertEqual(cancelled.message, "it broke")

    def test_an_end_that_is_none_is_a_fault(self):
        one = answer.Answer(request(), 5)
        one.take(tokens(0, [7]))
        with self.assertRaises(bitshard.ServerError):
            one.went_on()

    def test_pieces_come_once_wherever_streams_break(self):
        for seed in range(300):
            rng = random.Random(seed)
            deltas = [[rng.choice("abcdef") for _ in range(rng.randrange(4))] for _ in range(rng.randint(1, 20))]
            one, given = answer.Answer(request(), 100), []
            while not one.complete:
                stream = self._stream(rng, deltas, len(one.request().resume.output_ids))
                one.accepted()
                for message in stream[:rng.randrange(len(stream) + 3)]:
                    given += one.take(message)
                if not one.complete:
                    one.broke(failed())
            with self.subTest(seed=seed):
                self.assertEqual("".join(m.text for m in given), "".join(sum(deltas, [])))
                covered = [m for m in given if m.token_count]
                self.assertEqual([m.token_index for m in covered],
                                 [sum(m.token_count for m in covered[:i]) for i in range(len(covered))])
                self.assertEqual(sum(m.token_count for m in covered), len(deltas))

    @staticmethod
    def _stream(rng, deltas, token):
        """From `token` on as the service sends it: deltas, and with the last of them the tokens that they are of."""
        stream = []
        while token < len(deltas):
            group = min(len(deltas) - token, rng.randint(1, 3))  # a slow reader's tokens share messages
            texts = sum(deltas[token:token + group], [])
            stream += [pb.GenerateResponse(text=text) for text in texts[:-1]]
            stream.append(tokens(token, [100 + i for i in range(token, token + group)], **({"text": texts[-1]} if texts else {})))
            token += group
        return stream + [pb.GenerateResponse(finished=pb.Finished())]


if __name__ == "__main__":
    case_report.main()
