"""SmolLM2 on two worker processes, asked by clients that nobody here wrote: grpcio with generated stubs, and buf curl."""

import json
import os
import pathlib
import subprocess
import sys
import unittest

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from google.rpc import error_details_pb2, status_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

import case_report
from live_service import Service, Stream, admin_pb, pb, smollm2


def rich_details(error):
    """The google.rpc details of an error, by type name."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            status = status_pb2.Status.FromString(value)
            found = {}
            for detail in status.details:
                for kind in (error_details_pb2.BadRequest, error_details_pb2.ErrorInfo, error_details_pb2.RetryInfo):
                    if detail.Is(kind.DESCRIPTOR):
                        message = kind()
                        detail.Unpack(message)
                        found[kind.DESCRIPTOR.name] = message
            return found
    return {}


def smaps(pid):
    """{first address: (bytes, resident bytes)} of a process's mappings."""
    found, address, size = {}, None, 0
    for line in open(f"/proc/{pid}/smaps"):
        head = line.split(maxsplit=1)[0]
        if "-" in head and not head.endswith(":"):
            begin, end = (int(part, 16) for part in head.split("-"))
            address, size = begin, end - begin
        elif head == "Rss:":
            found[address] = (size, 1024 * int(line.split()[1]))
    return found


class ServiceTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.service = Service(smollm2(), workers=2)
        cls.stub = cls.service.inference

    @classmethod
    def tearDownClass(cls):
        left = cls.service.close()
        assert not left, f"processes outlived the service: {left}"

    def test_python_client_streams_an_answer_token_by_token(self):
        stream = Stream(self.stub, pb.GenerateRequest(text="The capital of France is", max_tokens=16))
        stream.join()
        self.assertEqual(stream.code, grpc.StatusCode.OK, stream.details)
        self.assertIn("Paris", stream.text)
        self.assertGreater(len(stream.messages), 4, "the answer came in one piece: it does not stream")
        self.assertEqual(stream.gaps, [])
        self.assertEqual(stream.finished.reason, pb.FINISH_REASON_LENGTH)
        self.assertEqual(stream.finished.usage.completion_tokens, 16)
        self.assertEqual(stream.finished.usage.prompt_tokens, 5)

    def test_two_workers_hold_uneven_parts(self):
        status = self.service.status()
        self.assertEqual(status.world, 2)
        weights = [rank.weight_bytes for rank in status.ranks]
        self.assertEqual(len(weights), 2)
        self.assertEqual(len(set(self.service.worker_pids())), 2)
        self.assertNotEqual(weights[0], weights[1])

    def test_chat_goes_through_the_models_template(self):
        request = pb.CompleteRequest(
            chat=pb.Chat(messages=[pb.ChatMessage(role="user", content="Name three primary colours.")]), max_tokens=48)
        answer = self.stub.Complete(request)
        self.assertIn("red", answer.choices[0].text.lower())
        self.assertNotIn("<|im_end|>", answer.choices[0].text)

    def test_same_seed_gives_the_same_answer_and_complete_equals_generate(self):
        sampling = pb.Sampling(temperature=1.0, top_p=0.95, seed=42)
        texts = set()
        for _ in range(2):
            stream = Stream(self.stub, pb.GenerateRequest(text="Once upon a time", max_tokens=24, sampling=sampling))
            stream.join()
            texts.add(stream.text)
        texts.add(self.stub.Complete(
            pb.CompleteRequest(text="Once upon a time", max_tokens=24, sampling=sampling)).choices[0].text)
        self.assertEqual(len(texts), 1, texts)

    def test_stop_string_ends_the_text_before_it(self):
        whole = self.stub.Complete(pb.CompleteRequest(text="The capital of France is", max_tokens=16)).choices[0].text
        stop = whole[5:8]
        cut = self.stub.Complete(pb.CompleteRequest(
            text="The capital of France is", max_tokens=16, stop=pb.Stopping(strings=[stop]))).choices[0]
        self.assertEqual(cut.text, whole[:whole.index(stop)])
        self.assertEqual(cut.finished.stop, stop)

    def test_scores_of_a_text_are_the_logprobs_of_its_generation(self):
        prompt = "The capital of France is"
        stream = Stream(self.stub, pb.GenerateRequest(
            text=prompt, max_tokens=12, output=pb.OutputOptions(top_logprobs=3, token_ids=True)))
        stream.join()
        ids = list(self.stub.Tokenize(pb.TokenizeRequest(text=prompt)).token_ids)
        answer = self.stub.Score(pb.ScoreRequest(tokens=pb.TokenIds(ids=ids + stream.tokens), top_logprobs=3))
        self.assertEqual(len(answer.logprobs), len(ids) + 12)
        self.assertFalse(answer.logprobs[0].chosen.HasField("logprob"))
        self.assertEqual(answer.usage.prompt_tokens, len(ids) + 12)
        for scored, generated in zip(answer.logprobs[len(ids):], stream.logprobs):
            # The same bits, whether the token was drawn or given.
            self.assertEqual(scored.chosen.logprob, generated.chosen.logprob)
            self.assertEqual([(t.token_id, t.logprob) for t in scored.top],
                             [(t.token_id, t.logprob) for t in generated.top])
        text = self.stub.Score(pb.ScoreRequest(text=prompt, first_token=3))
        self.assertEqual([t.chosen.token_id for t in text.logprobs], ids)
        self.assertEqual([t.chosen.HasField("logprob") for t in text.logprobs], [i >= 3 for i in range(len(ids))])
        self.assertEqual(text.logprobs[3].chosen.logprob, answer.logprobs[3].chosen.logprob)

    def test_score_keeps_the_status_contract(self):
        cases = {
            "input": pb.ScoreRequest(),
            "top_logprobs": pb.ScoreRequest(text="abc", top_logprobs=21),
            "tokens.ids[1]": pb.ScoreRequest(tokens=pb.TokenIds(ids=[1, 1 << 30])),
            "first_token": pb.ScoreRequest(tokens=pb.TokenIds(ids=[1, 2]), first_token=2),
            "tokens.ids": pb.ScoreRequest(tokens=pb.TokenIds(ids=[1] * 8193)),
        }
        for field, request in cases.items():
            with self.assertRaises(grpc.RpcError, msg=field) as raised:
                self.stub.Score(request)
            self.assertEqual(raised.exception.code(), grpc.StatusCode.INVALID_ARGUMENT, field)
            details = rich_details(raised.exception)
            self.assertEqual([v.field for v in details["BadRequest"].field_violations], [field])
        self.assertEqual(details["ErrorInfo"].reason, "PROMPT_TOO_LONG")
        with self.assertRaises(grpc.RpcError) as raised:
            self.stub.Score(pb.ScoreRequest(tokens=pb.TokenIds(ids=list(range(100, 4100)))), timeout=0.2)
        self.assertEqual(raised.exception.code(), grpc.StatusCode.DEADLINE_EXCEEDED)
        load = self.service.await_idle(timeout=10)
        self.assertEqual((load.running, load.waiting, load.blocks.used), (0, 0, 0))

    def test_kernel_report_names_every_op_and_what_was_measured(self):
        report = self.service.admin.GetKernelReport(admin_pb.GetKernelReportRequest(), timeout=5)
        self.assertEqual([rank.rank for rank in report.ranks], [0, 1])
        for rank in report.ranks:
            by_op = {}
            for binding in rank.kernels:
                by_op.setdefault(binding.op, []).append(binding)
                self.assertNotEqual(binding.kernel, "")
                self.assertNotEqual(binding.speed, admin_pb.KERNEL_SPEED_UNSPECIFIED)
                self.assertIn(binding.kernel, binding.text)
            self.assertEqual(sum(b.layers for b in by_op["linear"]), 30 * 7)
            self.assertEqual(sum(b.layers for b in by_op["attention"]), 30)
            self.assertEqual(sum(b.layers for b in by_op["lm_head"]), 1)
            self.assertTrue(any(b.format.startswith("int4") and b.activations == "a16" for b in by_op["linear"]))
            self.assertTrue(all(p.gmacs_per_s > 0 for p in rank.probe))
            self.assertIn("a16", {p.activations for p in rank.probe})

    def test_memory_report_equals_the_process_own_page_tables(self):
        self.stub.Complete(pb.CompleteRequest(text="The capital of France is", max_tokens=4))  # touches some KV
        report = self.service.admin.GetMemoryReport(admin_pb.GetMemoryReportRequest(), timeout=5)
        page = os.sysconf("SC_PAGESIZE")
        for rank in report.ranks:
            mappings = smaps(rank.pid)
            sizes, resident = {}, {}
            for mapping in rank.mappings:
                size, rss = mappings[mapping.address]
                self.assertEqual(size, mapping.bytes, mapping.part)
                sizes[mapping.part] = sizes.get(mapping.part, 0) + size
                resident[mapping.part] = resident.get(mapping.part, 0) + rss
            self.assertEqual(sizes["kv_cache"], rank.kv_cache_bytes)
            self.assertEqual(sizes["workspace"], rank.workspace_bytes)
            self.assertEqual(resident["weights"], rank.weight_resident_bytes)
            self.assertEqual(resident["workspace"], rank.workspace_resident_bytes)
            # The arena is all there is of packed weights: 211 matrices, each piece aligned to 64 bytes.
            arena = rank.weight_bytes - rank.vector_bytes
            self.assertGreaterEqual(resident["weights"] + page, arena)
            self.assertLessEqual(resident["weights"], arena + 211 * 3 * 64 + page)
            self.assertLessEqual(rank.weight_bytes, 1.05 * rank.read_bytes + rank.padding_bytes)
            # Loading peaks at most 64 MiB above what stays.
            self.assertLessEqual(rank.peak_resident_bytes - rank.resident_bytes, 64 << 20)
            parts = rank.weight_resident_bytes + rank.kv_cache_resident_bytes + rank.workspace_resident_bytes
            self.assertEqual(parts + rank.other_bytes, rank.resident_bytes)
            self.assertLess(rank.age.seconds, 10)

    def test_status_tells_what_the_bring_up_was_made_of(self):
        for rank in self.service.status().ranks:
            times = {field.name: value.ToTimedelta().total_seconds() for field, value in rank.bring_up.ListFields()}
            total = times.pop("total")
            self.assertGreater(times["load"], 0)
            phases = sum(v for k, v in times.items() if k not in ("kernel_probe", "read", "pack"))
            self.assertAlmostEqual(phases, total, delta=0.05)

    def test_logprobs_come_with_alternatives(self):
        stream = Stream(self.stub, pb.GenerateRequest(
            text="The capital of France is", max_tokens=3, output=pb.OutputOptions(top_logprobs=5, token_ids=True)))
        stream.join()
        self.assertEqual(len(stream.logprobs), 3)
        self.assertEqual(len(stream.tokens), 3)
        for entry, token in zip(stream.logprobs, stream.tokens):
            self.assertEqual(entry.chosen.token_id, token)
            self.assertEqual(len(entry.top), 5)
            self.assertEqual(entry.top[0].token_id, token)  # greedy
            self.assertLess(entry.top[0].logprob, 0)

    def test_buf_curl_streams_an_answer_through_reflection(self):
        buf = pathlib.Path(sys.executable).parent / "buf"
        address = f"http://127.0.0.1:{self.service.ports['port']}"
        request = json.dumps({"text": "The capital of France is", "maxTokens": 8})
        # Its cache goes where the test may write.
        environment = dict(os.environ, HOME=os.environ.get("TEST_TMPDIR", "/tmp"))
        result = subprocess.run(
            [str(buf), "curl", "--protocol", "grpc", "--http2-prior-knowledge", "-d", request,
             f"{address}/bitshard.v1.Inference/Generate"],
            capture_output=True, text=True, timeout=60, env=environment, check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        decoder, rest, messages = json.JSONDecoder(), result.stdout.strip(), []
        while rest:
            message, end = decoder.raw_decode(rest)
            messages.append(message)
            rest = rest[end:].strip()
        self.assertGreater(len(messages), 3)
        self.assertIn("Paris", "".join(m.get("text", "") for m in messages))
        self.assertEqual(messages[-1]["finished"]["reason"], "FINISH_REASON_LENGTH")

    def test_tokenize_and_detokenize_round_trip(self):
        text = "Grüße, 世界! 😀 1234"
        ids = self.stub.Tokenize(pb.TokenizeRequest(text=text)).token_ids
        self.assertEqual(self.stub.Detokenize(pb.DetokenizeRequest(token_ids=ids)).text, text)

    def test_lists_its_model(self):
        models = self.stub.ListModels(pb.ListModelsRequest()).models
        self.assertEqual(len(models), 1)
        self.assertEqual(models[0].vocabulary_size, 49152)
        self.assertIn("q4_1", models[0].weight_formats)
        self.assertTrue(models[0].chat)

    def test_health_names_its_services(self):
        stub = health_pb2_grpc.HealthStub(grpc.insecure_channel(f"127.0.0.1:{self.service.ports['health_port']}"))
        for name in ("", "startup", "readiness", "liveness"):
            answer = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=5)
            self.assertEqual(answer.status, health_pb2.HealthCheckResponse.SERVING, name)
        with self.assertRaises(grpc.RpcError) as raised:
            stub.Check(health_pb2.HealthCheckRequest(service="nonsense"), timeout=5)
        self.assertEqual(raised.exception.code(), grpc.StatusCode.NOT_FOUND)

    def test_reflection_lists_the_services(self):
        services = ProtoReflectionDescriptorDatabase(self.service.channel).get_services()
        self.assertIn("bitshard.v1.Inference", services)
        health = grpc.insecure_channel(f"127.0.0.1:{self.service.ports['health_port']}")
        self.assertIn("grpc.health.v1.Health", ProtoReflectionDescriptorDatabase(health).get_services())

    def test_wrong_fields_are_all_named(self):
        request = pb.GenerateRequest(text="x", max_tokens=0, sampling=pb.Sampling(temperature=float("nan"), top_p=2))
        with self.assertRaises(grpc.RpcError) as raised:
            list(self.stub.Generate(request))
        self.assertEqual(raised.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
        fields = {v.field for v in rich_details(raised.exception)["BadRequest"].field_violations}
        self.assertEqual(fields, {"max_tokens", "sampling.temperature", "sampling.top_p"})

    def test_malformed_bytes_are_the_callers_fault(self):
        raw = self.service.channel.unary_stream("/bitshard.v1.Inference/Generate")
        for what, payload in {"no protobuf": b"\xff\xff\xff", "no UTF-8": b"\x1a\x02\xc3\x28"}.items():
            with self.assertRaises(grpc.RpcError, msg=what) as raised:
                list(raw(payload, timeout=5))
            self.assertEqual(raised.exception.code(), grpc.StatusCode.INVALID_ARGUMENT, what)

    def test_unknown_model_is_not_found(self):
        with self.assertRaises(grpc.RpcError) as raised:
            self.stub.Complete(pb.CompleteRequest(text="x", model="no-such-model", max_tokens=1))
        self.assertEqual(raised.exception.code(), grpc.StatusCode.NOT_FOUND)
        self.assertIn("no-such-model", raised.exception.details())

    def test_what_is_not_built_says_what_is(self):
        with self.assertRaises(grpc.RpcError) as raised:
            self.stub.Complete(pb.CompleteRequest(text="x", max_tokens=1, adapter="a-style"))
        self.assertEqual(raised.exception.code(), grpc.StatusCode.UNIMPLEMENTED)
        self.assertIn("adapter", raised.exception.details())

    def test_context_overflow_is_refused(self):
        with self.assertRaises(grpc.RpcError) as raised:
            self.stub.Complete(pb.CompleteRequest(text="x", max_tokens=1 << 30))
        self.assertEqual(raised.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)

    def test_cancel_and_deadline_give_all_blocks_back(self):
        long = pb.GenerateRequest(text="Once upon a time", max_tokens=400, stop=pb.Stopping(ignore_eos=True))
        cancelled = Stream(self.stub, long, cancel_after_tokens=3)
        late = Stream(self.stub, long, timeout=0.5)
        cancelled.join()
        late.join()
        self.assertEqual(cancelled.code, grpc.StatusCode.CANCELLED)
        self.assertEqual(late.code, grpc.StatusCode.DEADLINE_EXCEEDED)
        load = self.service.await_idle(timeout=10)
        self.assertEqual((load.running, load.waiting, load.blocks.used), (0, 0, 0))
        self.assertEqual(load.blocks.free + load.blocks.cached, load.blocks.total)

    def test_metrics_page_counts(self):
        before = self.service.metrics()
        self.stub.Complete(pb.CompleteRequest(text="The capital of France is", max_tokens=4))
        after = self.service.metrics()

        def total(samples, name):
            return sum(v for k, v in samples.items() if k.split("{")[0] == name)

        self.assertEqual(total(after, "bitshard_generation_tokens_total") - total(before, "bitshard_generation_tokens_total"), 4)
        self.assertEqual(total(after, "bitshard_prompt_tokens_total") - total(before, "bitshard_prompt_tokens_total"), 5)
        for name in ("bitshard_time_to_first_token_seconds_count", "bitshard_inter_token_latency_seconds_count",
                     "bitshard_requests_running", "bitshard_requests_waiting", "bitshard_kv_blocks", "bitshard_worker_up"):
            self.assertTrue(any(k.split("{")[0] == name for k in after), name)


if __name__ == "__main__":
    case_report.main()
