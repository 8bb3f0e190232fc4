"""Answers that are broken off by real faults and resumed by their callers: a worker is killed in mid-stream, the whole
service dies and another one, with another number of workers, takes its answers over, a half-open stream is replaced. Each
answer, greedy, drawn, with penalties, stop strings or a grammar, is to the bit what one unbroken call gives. And what
callers hear with status events while they wait, are pushed out, or lose their worker."""

import os
import signal
import time
import unittest

import grpc
from google.rpc import error_details_pb2, status_pb2

import case_report
from live_service import Service, Stream, golden_model, pb

TOKENS = 1900  # of an answer, near what the model's context has; those that break have had fewer
BROKEN_AFTER = 25


def sampling(**fields):
    return pb.Sampling(temperature=1, **fields)


def requests():
    """Of every kind; none ends by itself before max_tokens, so that none ends before the fault."""
    base = dict(text="def main(", max_tokens=TOKENS, output=pb.OutputOptions(token_ids=True),
                stop=pb.Stopping(ignore_eos=True))
    word = "[a-z]{1,12}( [a-z]{1,12})*"
    kinds = {
        "greedy": {},
        "drawn": {"sampling": sampling()},
        "drawn from few": {"sampling": sampling(top_k=40, top_p=0.9, min_p=0.01, seed=11)},
        "penalties and biases": {"sampling": sampling(repetition_penalty=1.2, frequency_penalty=0.5, presence_penalty=0.4,
                                                      logit_bias={70: 3.0, 71: -3.0}, banned_token_ids=[90, 91, 92])},
        "logprobs": {"sampling": sampling(), "output": pb.OutputOptions(token_ids=True, top_logprobs=3)},
        "grammar": {"sampling": sampling(), "constraint": pb.Constraint(regex=word),
                    "stop": pb.Stopping(min_tokens=TOKENS)},
        "stop string of the end": {"sampling": sampling(), "stop": pb.Stopping(ignore_eos=True, strings=["\u00f6\u00e4 never"],
                                                                               min_tokens=10)},
        "raw control tokens": {"sampling": sampling(), "output": pb.OutputOptions(token_ids=True, skip_special_tokens=False)},
    }
    return {name: pb.GenerateRequest(**{**base, **fields}) for name, fields in kinds.items()}


def resumed(stream, **fields):
    """The request again, with what came of it."""
    again = pb.GenerateRequest()
    again.CopyFrom(stream.request)
    again.resume.CopyFrom(pb.Resume(
        output_ids=list(stream.request.resume.output_ids) + stream.tokens, seed=stream.started.seed,
        model_fingerprint=stream.started.model_fingerprint, **fields))
    return again


def error_info(call):
    status = status_pb2.Status.FromString(dict(call.trailing_metadata()).get("grpc-status-details-bin", b""))
    for detail in status.details:
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info):
            return info.reason
    return None


def await_tokens(streams, count, timeout=60):
    end = time.monotonic() + timeout
    while any(s.token_count < count and s.code is None for s in streams) and time.monotonic() < end:
        time.sleep(0.002)


def states(stream):
    seen = []
    for status in stream.statuses:
        name = pb.RequestState.Name(status.state).removeprefix("REQUEST_STATE_")
        if not seen or seen[-1] != name:
            seen.append(name)
    return seen


class ResumeTest(unittest.TestCase):
    def _break(self, service, fault):
        """A stream of each kind, all ended by the fault."""
        wanted = requests()
        # Its grammar is compiled first, which takes longer than any wait for a step.
        streams = {"grammar": Stream(service.inference, wanted.pop("grammar"))}
        await_tokens(streams.values(), BROKEN_AFTER)
        streams |= {name: Stream(service.inference, request) for name, request in wanted.items()}
        await_tokens(streams.values(), BROKEN_AFTER)
        for name, stream in streams.items():
            self.assertIsNone(stream.code, f"{name}: {stream.details}")
        fault()
        for name, stream in streams.items():
            stream.join(60)
            self.assertEqual(stream.code, grpc.StatusCode.UNAVAILABLE, f"{name}: {stream.details}")
            self.assertGreaterEqual(len(stream.tokens), BROKEN_AFTER)
            self.assertLess(len(stream.tokens), TOKENS)
            self.assertEqual(stream.gaps, [])
        return streams

    def _resume(self, service, broken):
        """Each goes on where it stopped, to what an unbroken call gives."""
        rest = {name: Stream(service.inference, resumed(stream)) for name, stream in broken.items()}
        for name, stream in rest.items():
            stream.join(120)
            self.assertEqual(stream.code, grpc.StatusCode.OK, f"{name}: {stream.details}")
        unbroken = {}
        for name, stream in broken.items():
            request = pb.GenerateRequest()
            request.CopyFrom(stream.request)
            request.sampling.seed = stream.started.seed
            unbroken[name] = Stream(service.inference, request)
        for name, stream in unbroken.items():
            stream.join(120)
            self.assertEqual(stream.code, grpc.StatusCode.OK, f"{name}: {stream.details}")
            first, second = broken[name], rest[name]
            print(f"{name}: {len(first.tokens)} + {len(second.tokens)} tokens")
            self.assertEqual(second.gaps, [], name)
            self.assertEqual(first.tokens + second.tokens, stream.tokens, name)
            self.assertEqual(first.text + second.text, stream.text, name)
            self.assertEqual(len(first.logprobs), len(first.tokens) if name == "logprobs" else 0)
            for mine, its in zip(list(first.logprobs) + list(second.logprobs), stream.logprobs, strict=True):
                self.assertEqual(mine.SerializeToString(deterministic=True), its.SerializeToString(deterministic=True), name)
            self.assertEqual(second.finished.reason, stream.finished.reason)
            usage = second.finished.usage
            self.assertEqual(usage.completion_tokens, stream.finished.usage.completion_tokens)
            self.assertEqual(usage.prompt_tokens, stream.finished.usage.prompt_tokens)
            self.assertEqual(usage.resumed_tokens, len(first.tokens))
            self.assertEqual(second.started.seed, first.started.seed)

    def test_a_killed_worker_and_its_callers_resume(self):
        with Service(golden_model("tiny-llama"), workers=2) as service:
            victim = service.worker_pids()[1]
            broken = self._break(service, lambda: os.kill(victim, signal.SIGKILL))
            service.await_ready()
            self._resume(service, broken)
            load = service.await_idle()
            self.assertEqual(load.blocks.free + load.blocks.cached, load.blocks.total)
            self._accounts(service, len(broken))

    def _accounts(self, service, broken):
        samples = service.metrics()

        def total(name):
            return sum(v for k, v in samples.items() if k.split("{")[0] == "bitshard_" + name)

        self.assertEqual(total("requests_received_total"), 3 * broken)
        self.assertEqual(total("requests_total"), 3 * broken)
        self.assertEqual(total("request_generation_tokens_sum"), total("generation_tokens_total"))
        # Every token was generated once and the broken ones' in the unbroken calls again, and at most one or two were on
        # their way to each caller when its stream broke.
        self.assertLessEqual(abs(total("generation_tokens_total") - 2 * broken * TOKENS), 4 * broken)
        self.assertEqual(total("time_to_first_token_seconds_count") + total("ended_without_token_total"),
                         total("e2e_request_latency_seconds_count"))

    def test_another_service_with_other_workers_takes_answers_over(self):
        with Service(golden_model("tiny-llama"), workers=2) as service:
            pid = service.coordinator_pid()
            broken = self._break(service, lambda: os.kill(pid, signal.SIGKILL))
        with Service(golden_model("tiny-llama"), workers=3) as service:
            self._resume(service, broken)
        with Service(golden_model("tiny-llama-q"), workers=1) as service:
            other = Stream(service.inference, resumed(broken["drawn"]))
            other.join(60)
            self.assertEqual(other.code, grpc.StatusCode.FAILED_PRECONDITION, other.details)
            self.assertIn(broken["drawn"].started.model_fingerprint, other.details)
            with self.assertRaises(grpc.RpcError) as raised:
                list(service.inference.Generate(resumed(broken["drawn"])))
            self.assertEqual(error_info(raised.exception), "MODEL_CHANGED")


class OneServiceTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # Room for two answers of 300 tokens and a half.
        cls.service = Service(golden_model("tiny-llama"), workers=2,
                              coordinator_flags=["--kv-blocks=48", "--max-running=3"])
        cls.stub = cls.service.inference

    @classmethod
    def tearDownClass(cls):
        cls.service.close()

    def _request(self, **fields):
        return pb.GenerateRequest(**{**dict(text="def main(", max_tokens=300, sampling=sampling(seed=5),
                                            output=pb.OutputOptions(token_ids=True), stop=pb.Stopping(ignore_eos=True)),
                                     **fields})

    def _run(self, request):
        stream = Stream(self.stub, request, timeout=120)
        stream.join()
        self.assertEqual(stream.code, grpc.StatusCode.OK, stream.details)
        return stream

    def test_a_stop_string_that_the_break_cuts_in_two(self):
        text = self._run(self._request(max_tokens=60)).text
        stop = text[len(text) // 2:][:12]
        request = self._request(max_tokens=60, stop=pb.Stopping(ignore_eos=True, strings=[stop]))
        stopped = self._run(request)
        self.assertEqual(stopped.finished.stop, stop)
        for cut in range(max(0, len(stopped.tokens) - 6), len(stopped.tokens) + 1):
            with self.subTest(cut=cut):
                again = pb.GenerateRequest()
                again.CopyFrom(request)
                again.resume.output_ids.extend(stopped.tokens[:cut])
                rest = self._run(again)
                self.assertEqual(rest.tokens, stopped.tokens[cut:])
                self.assertTrue(stopped.text.endswith(rest.text))
                self.assertEqual(rest.finished.stop, stopped.finished.stop)
        again.resume.output_ids.append(70)
        with self.assertRaises(grpc.RpcError) as raised:
            list(self.stub.Generate(again))
        self.assertEqual(raised.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
        self.assertIn("stop string", raised.exception.details())

    def test_tokens_that_the_grammar_refuses_are_the_callers_fault(self):
        request = self._request(constraint=pb.Constraint(regex="[a-f]{5,20}"), stop=pb.Stopping())
        whole = self._run(request)
        request.resume.output_ids.extend(whole.tokens[:1])
        self.assertEqual(self._run(request).tokens, whole.tokens[1:])
        digit = self.stub.Tokenize(pb.TokenizeRequest(text="7", add_special=False)).token_ids[-1]
        request.resume.output_ids.append(digit)
        with self.assertRaises(grpc.RpcError) as raised:
            list(self.stub.Generate(request))
        self.assertEqual(raised.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
        self.assertIn("resume.output_ids[1]", raised.exception.details())
        self.assertIn("constraint", raised.exception.details())

    def test_each_of_several_choices_is_resumed_by_itself(self):
        request = self._request(choices=3, max_tokens=40)
        whole = self._run(request)
        for index in range(3):
            again = pb.GenerateRequest()
            again.CopyFrom(request)
            tokens = whole.choices[index].tokens
            again.resume.CopyFrom(pb.Resume(output_ids=tokens[:13 + index], seed=whole.started.seed, choice=index))
            rest = self._run(again)
            self.assertEqual(list(rest.choices), [index])
            self.assertEqual(rest.choices[index].tokens, tokens[13 + index:])
            self.assertEqual(rest.gaps, [])

    def test_a_half_open_stream_is_replaced(self):
        whole = self._run(self._request(max_tokens=700))
        request = self._request(request_id="half-open", max_tokens=700)
        half_open = Stream(self.stub, request)
        await_tokens([half_open], 20)
        self.assertIsNone(half_open.code)
        # What the caller knows of, not all that is on its way.
        known = half_open.tokens[:20]
        twice = Stream(self.stub, request)
        twice.join(30)
        self.assertEqual(twice.code, grpc.StatusCode.ALREADY_EXISTS, twice.details)
        again = pb.GenerateRequest()
        again.CopyFrom(request)
        again.resume.CopyFrom(pb.Resume(output_ids=known, seed=half_open.started.seed, supersede=True))
        rest = self._run(again)
        half_open.join(30)
        self.assertEqual(half_open.code, grpc.StatusCode.CANCELLED)
        self.assertIn("superseded", half_open.details)
        self.assertEqual(known + rest.tokens, whole.tokens)
        self.assertGreater(rest.finished.usage.resumed_tokens, 0)

    def test_callers_hear_of_the_queue_and_of_preemptions(self):
        def preemptions():
            return sum(v for k, v in self.service.metrics().items() if k.startswith("bitshard_preemptions_total"))

        before = preemptions()
        request = self._request(output=pb.OutputOptions(token_ids=True, status_events=True))
        streams = []
        for seed in range(8):
            request.sampling.seed = seed
            copy = pb.GenerateRequest()
            copy.CopyFrom(request)
            streams.append(Stream(self.stub, copy))
        for stream in streams:
            stream.join(120)
            self.assertEqual(stream.code, grpc.StatusCode.OK, stream.details)
            self.assertEqual(stream.gaps, [])
            self.assertEqual(len(stream.tokens), 300)
            self.assertIn("PREFILL", states(stream))
        print("\n".join(str(states(stream)) for stream in streams))
        queued = [s for s in streams if states(s)[0] == "QUEUED"]
        self.assertGreaterEqual(len(queued), 4, "of 8 at most 3 run at once")
        self.assertGreater(max(status.queue_position for s in queued for status in s.statuses), 2)
        self.assertLess(max(status.queue_position for s in queued for status in s.statuses), 8)
        self.assertGreater(preemptions(), before, "the cache was meant to be too small")
        self.assertTrue(any("PREEMPTED" in states(stream) for stream in streams))
        # What was told made no difference.
        again = self._request()
        again.sampling.seed = 7
        self.assertEqual(self._run(again).tokens, streams[7].tokens)


if __name__ == "__main__":
    case_report.main()
