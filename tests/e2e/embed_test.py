"""Embed through real processes and a public client: vectors, errors, refusals, Abort, and its place in the metrics."""

import math
import threading
import time
import unittest

import grpc

import case_report
from live_service import Service, golden_model, pb
from metrics_page import Page, settled

PROMPT = list(range(20, 60))
VOCABULARY = 512


def ids(*lists):
    return [pb.TokenIds(ids=one) for one in lists]


def length(values):
    return math.sqrt(sum(x * x for x in values))


class EmbedTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.service = Service(golden_model("tiny-llama-q"), workers=3)
        cls.stub = cls.service.inference
        cls.model = cls.stub.ListModels(pb.ListModelsRequest()).models[0]

    @classmethod
    def tearDownClass(cls):
        left = cls.service.close()
        assert not left, f"processes outlived the service: {left}"

    def embed(self, timeout=60, **fields):
        return self.stub.Embed(pb.EmbedRequest(**fields), timeout=timeout)

    def vectors(self, **fields):
        return [list(one.values) for one in self.embed(**fields).embeddings]

    def refused(self, **fields):
        with self.assertRaises(grpc.RpcError) as raised:
            self.embed(**fields)
        return raised.exception.code(), raised.exception.details()

    def test_a_vector_for_each_input_in_their_order_and_the_same_bits_alone(self):
        inputs = ids(PROMPT, PROMPT[:1], PROMPT[10:] + [7], PROMPT)
        for pooling in (pb.POOLING_LAST, pb.POOLING_MEAN):
            answer = self.embed(tokens=inputs, pooling=pooling)
            self.assertEqual([one.prompt_tokens for one in answer.embeddings], [40, 1, 31, 40])
            self.assertEqual(answer.usage.prompt_tokens, 112)
            self.assertEqual(answer.usage.completion_tokens, 0)
            together = [list(one.values) for one in answer.embeddings]
            self.assertEqual({len(one) for one in together}, {self.model.embedding_size})
            self.assertEqual(together[0], together[3])
            self.assertNotEqual(together[0], together[2])
            for one, values in zip(inputs, together):
                self.assertEqual(self.vectors(tokens=[one], pooling=pooling), [values])
        self.assertNotEqual(self.vectors(tokens=inputs, pooling=pb.POOLING_MEAN)[0], self.vectors(tokens=inputs)[0])

    def test_texts_are_tokenized_as_prompts_are(self):
        texts = ["The capital of France", "is"]
        tokens = [self.stub.Tokenize(pb.TokenizeRequest(text=text)).token_ids for text in texts]
        self.assertEqual(self.vectors(texts=texts), self.vectors(tokens=ids(*tokens)))

    def test_the_mean_is_that_of_the_last_ones_of_all_beginnings(self):
        beginnings = self.vectors(tokens=ids(*(PROMPT[:n] for n in range(1, len(PROMPT) + 1))), normalize=False)
        mean = self.vectors(tokens=ids(PROMPT), pooling=pb.POOLING_MEAN, normalize=False)[0]
        for i, value in enumerate(mean):
            column = [row[i] for row in beginnings]
            self.assertAlmostEqual(value, math.fsum(column) / len(column), delta=1e-6 * max(map(abs, column)))

    def test_vectors_have_length_one_unless_asked_not_to_and_dimensions_cut_them(self):
        raw = self.vectors(tokens=ids(PROMPT), normalize=False)[0]
        scaled = self.vectors(tokens=ids(PROMPT))[0]
        self.assertGreater(abs(length(raw) - 1), 1e-3)
        self.assertAlmostEqual(length(scaled), 1, delta=1e-6)
        for x, y in zip(raw, scaled):
            self.assertAlmostEqual(x / length(raw), y, delta=1e-6)
        self.assertEqual(self.vectors(tokens=ids(PROMPT), normalize=False, dimensions=5)[0], raw[:5])
        cut = self.vectors(tokens=ids(PROMPT), dimensions=5)[0]
        self.assertEqual(len(cut), 5)
        self.assertAlmostEqual(length(cut), 1, delta=1e-6)

    def test_what_is_wrong_is_named(self):
        context = self.model.context_tokens
        for fields, words in (
                ({}, ["texts"]),
                ({"texts": ["a"], "tokens": ids([1])}, ["tokens", "not both"]),
                ({"tokens": ids([5], [])}, ["tokens[1].ids", "must not be empty"]),
                ({"tokens": ids([5], [self.model.vocabulary_size])}, ["tokens[1].ids[0]", "vocabulary"]),
                ({"tokens": ids([5] * (context + 1))}, ["tokens[0].ids", f"{context + 1} tokens", "in pieces"]),
                ({"tokens": ids([5]), "dimensions": self.model.embedding_size + 1}, ["dimensions"]),
                ({"tokens": ids([5]), "pooling": 9}, ["pooling"]),
                ({"texts": ["a"] * 513}, ["texts", "at most 512, not 513"])):
            code, details = self.refused(**fields)
            self.assertEqual(code, grpc.StatusCode.INVALID_ARGUMENT, details)
            for word in words:
                self.assertIn(word, details)
        self.assertEqual(self.refused(tokens=ids([5]), model="another")[0], grpc.StatusCode.NOT_FOUND)
        self.assertEqual(len(self.vectors(tokens=ids([5] * context))), 1, "a full context is not too much")

    def test_generations_beside_it_have_their_tokens(self):
        request = pb.CompleteRequest(tokens=pb.TokenIds(ids=PROMPT), max_tokens=24, stop=pb.Stopping(ignore_eos=True),
                                     output=pb.OutputOptions(token_ids=True, logprobs=True))
        alone = self.stub.Complete(request).choices[0]
        wanted = self.vectors(tokens=ids(PROMPT), pooling=pb.POOLING_MEAN)[0]
        answers, vectors = [], []
        threads = [threading.Thread(target=lambda: answers.append(self.stub.Complete(request, timeout=60).choices[0]))
                   for _ in range(4)]
        threads += [threading.Thread(target=lambda: vectors.extend(
            self.vectors(tokens=ids(*[PROMPT] * 8), pooling=pb.POOLING_MEAN))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(vectors, [wanted] * 32)
        self.assertEqual(len(answers), 4)
        for answer in answers:
            self.assertEqual(list(answer.token_ids), list(alone.token_ids))
            self.assertEqual([one.chosen.logprob for one in answer.logprobs], [one.chosen.logprob for one in alone.logprobs])

    def test_abort_and_a_deadline_end_all_inputs(self):
        many = ids(*([[7 + (i * 31 + j) % 400 for j in range(500)] for i in range(300)]))
        call = self.stub.Embed.future(pb.EmbedRequest(request_id="long", tokens=many, pooling=pb.POOLING_MEAN), timeout=60)
        while not (self.service.load().running or call.done()):
            time.sleep(0.005)
        code, details = self.refused(request_id="long", tokens=ids([5]))
        self.assertEqual(code, grpc.StatusCode.ALREADY_EXISTS, details)
        self.stub.Abort(pb.AbortRequest(request_ids=["long"]))
        self.assertEqual(call.code(), grpc.StatusCode.CANCELLED)
        with self.assertRaises(grpc.RpcError) as raised:
            self.embed(timeout=0.5, tokens=many, pooling=pb.POOLING_MEAN)
        self.assertIn(raised.exception.code(), (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED))
        load = self.service.await_idle()
        self.assertEqual((load.running, load.waiting, load.blocks.used), (0, 0, 0))

    def test_each_input_is_one_request_in_the_metrics(self):
        self.service.await_idle()
        before = settled(self.service.ports["metrics_port"])
        self.vectors(tokens=ids(PROMPT, PROMPT[:5], [9]), pooling=pb.POOLING_MEAN)
        self.refused(tokens=ids([5], []))
        self.service.await_idle()
        after = settled(self.service.ports["metrics_port"])

        def grown(name, **labels):
            return after.sum(name, **labels) - before.sum(name, **labels)

        self.assertEqual(grown("bitshard_ended_without_token_total"), 3)
        self.assertEqual(grown("bitshard_requests_received_total", api="own"), 4)
        self.assertEqual(grown("bitshard_requests_total", grpc_code="OK"), 3)
        self.assertEqual(grown("bitshard_admission_rejections_total", reason="bad_request"), 1)
        self.assertEqual(grown("bitshard_prompt_tokens_total"), len(PROMPT) + 6)
        self.assertEqual(grown("bitshard_generation_tokens_total"), 0)
        self.assertEqual(after.sum("bitshard_requests_validating"), 0)


class EmbedOverloadTest(unittest.TestCase):
    def test_a_full_queue_refuses_all_inputs_of_a_call_and_nothing_is_lost(self):
        flags = ("--max-running=2", "--max-waiting=8")
        with Service(golden_model("tiny-llama-q"), workers=1, coordinator_flags=flags) as service:
            stub = service.inference
            request = pb.EmbedRequest(tokens=ids(*([[7 + i] * 400 for i in range(6)])), pooling=pb.POOLING_MEAN)
            wanted = stub.Embed(request).embeddings
            calls = [stub.Embed.future(request, timeout=60) for _ in range(24)]
            codes = [call.code() for call in calls]
            self.assertEqual(set(codes), {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED})
            for call, code in zip(calls, codes):
                if code == grpc.StatusCode.OK:
                    self.assertEqual(list(call.result().embeddings), list(wanted))
                else:
                    self.assertIn("grpc-retry-pushback-ms", dict(call.trailing_metadata()))
                    self.assertIn("the queue is full", call.details())
            load = service.await_idle()
            self.assertEqual((load.running, load.waiting, load.blocks.used), (0, 0, 0))
            refused = codes.count(grpc.StatusCode.RESOURCE_EXHAUSTED)
            page = Page(service.ports["metrics_port"])
            self.assertEqual(page.sum("bitshard_admission_rejections_total", reason="queue_full"), 6 * refused)
            self.assertEqual(page.sum("bitshard_requests_received_total"), 6 * 25)


if __name__ == "__main__":
    case_report.main()
