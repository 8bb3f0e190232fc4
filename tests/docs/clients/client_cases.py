"""What every client library must do, as test cases: against a real service, behind a proxy that breaks connections.

A test mixes Cases into a TestCase and gives `caller`, an object with
  generate(target, request, timeout=None, cancel_after=None, on_message=None, **options) -> Outcome
  complete(target, request, timeout=None, **options) -> Outcome
`options` are fields of ClientOptions (`tls`: paths by name); `cancel_after` messages the stream is cancelled; `on_message`
is called with the number of messages so far.
"""

import dataclasses
import os
import random
import signal
import subprocess
import tempfile
import threading
import time

from chaos_proxy import UNCUT, ChaosProxy, Silent, mutual_tls
from live_service import Service, Stream, free_port, golden_model, pb

PATIENCE_S = 60  # only a hang takes so long


@dataclasses.dataclass
class Outcome:
    """How a call went, in words that all clients share."""

    messages: list = dataclasses.field(default_factory=list)  # that the caller got
    response: object = None  # of Complete
    code: str = "OK"
    message: str = ""
    reason: str = ""
    retry_after: float | None = None
    fields: list = dataclasses.field(default_factory=list)
    quota: list = dataclasses.field(default_factory=list)
    request_id: str = ""
    resumes: int = 0
    state: object = None  # pb.Resume at the end

    def of(self, choice=0):
        return [m for m in self.messages if m.choice == choice]

    def text(self, choice=0):
        return "".join(m.text for m in self.of(choice))

    def tokens(self, choice=0):
        return [token for m in self.of(choice) for token in m.token_ids]

    def logprobs(self, choice=0):
        return [(p.chosen.token_id, p.chosen.logprob) for m in self.of(choice) for p in m.logprobs]


def request(seed, max_tokens=96, **fields):
    rng = random.Random(seed)
    return pb.GenerateRequest(
        tokens=pb.TokenIds(ids=[rng.randrange(7, 512) for _ in range(rng.randint(1, 40))]), max_tokens=max_tokens,
        sampling=pb.Sampling(temperature=1, seed=seed), stop=pb.Stopping(ignore_eos=True),
        output=pb.OutputOptions(token_ids=True, logprobs=True), **fields)


def address(port):
    return f"127.0.0.1:{port}"


def make_certificates(folder):
    """An authority, and a server and a client that it vouches for: {name: path}."""
    def openssl(*args):
        subprocess.run(["openssl", *args], check=True, capture_output=True, cwd=folder)

    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=test authority")
    for name in ("server", "client"):
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}.bitshard.test",
                "-addext", f"subjectAltName=DNS:{name}.bitshard.test")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                "-out", f"{name}.pem", "-days", "2", "-copy_extensions", "copy")
    return {path: os.path.join(folder, path) for path in os.listdir(folder)}


class Cases:
    caller = None

    @classmethod
    def setUpClass(cls):
        cls.service = Service(golden_model("tiny-llama-q"), workers=1)
        cls.port = int(cls.service.ports["port"])

    @classmethod
    def tearDownClass(cls):
        left = cls.service.close()
        assert not left, f"processes outlived the service: {left}"

    def _reference(self, what, service=None):
        """The same request through bare stubs, undisturbed."""
        stream = Stream((service or self.service).inference, what, timeout=PATIENCE_S)
        stream.join()
        self.assertEqual(stream.code.name, "OK", stream.details)
        return stream

    def _assert_whole(self, outcome, reference):
        self.assertEqual(outcome.code, "OK", outcome.message)
        self._assert_prefix(outcome, reference)
        self.assertEqual(outcome.tokens(), reference.tokens)
        self.assertEqual(outcome.text(), reference.text)
        ends = [m.finished for m in outcome.messages if m.HasField("finished")]
        self.assertEqual([end.reason for end in ends], [reference.finished.reason])
        self.assertEqual(ends[0].usage.completion_tokens, reference.finished.usage.completion_tokens)

    def _assert_prefix(self, outcome, reference):
        """What came, came once and in its place."""
        count = 0
        for message in outcome.messages:
            if message.token_count:
                self.assertEqual(message.token_index, count)
                self.assertEqual(len(message.token_ids), message.token_count)
            count += message.token_count
        self.assertEqual(outcome.tokens(), reference.tokens[:count])
        self.assertTrue(reference.text.startswith(outcome.text()))
        logprobs = [(p.chosen.token_id, p.chosen.logprob) for p in reference.logprobs]
        self.assertEqual(outcome.logprobs(), logprobs[:count])
        self.assertLessEqual(sum(m.HasField("started") for m in outcome.messages), 1)

    def test_a_stream_is_what_the_service_sends(self):
        what = request(1)
        outcome = self.caller.generate(address(self.port), what, timeout=PATIENCE_S, connections=2)
        self._assert_whole(outcome, self._reference(what))
        self.assertEqual(outcome.resumes, 0)
        self.assertEqual(outcome.messages[0].started.request_id, outcome.request_id)
        what.output.token_ids = False
        outcome = self.caller.generate(address(self.port), what, timeout=PATIENCE_S)
        self.assertEqual(outcome.text(), self._reference(what).text)
        self.assertEqual(outcome.tokens(), [])

    def test_a_stream_that_breaks_goes_on_with_nothing_lost_or_doubled(self):
        rng = random.Random(20261129)
        resumes = 0
        for seed in range(8):
            what = request(seed, max_tokens=500)  # longer than all that passes before the cuts
            reference = self._reference(what)
            cuts = [rng.randrange(300, 7000) for _ in range(3)] + [UNCUT]
            with ChaosProxy(self.port, cuts) as proxy:
                outcome = self.caller.generate(address(proxy.port), what, timeout=PATIENCE_S)
            with self.subTest(seed=seed, cuts=cuts, resumes=outcome.resumes):
                self._assert_whole(outcome, reference)
            resumes += outcome.resumes
        print(f"{resumes} resumes")
        self.assertGreater(resumes, 0, "the proxy no longer cuts in the middle of answers")

    def test_several_choices_go_on_too(self):
        what = request(5, max_tokens=300, choices=3)
        reference = self._reference(what)
        with ChaosProxy(self.port, [4000, 2500, UNCUT]) as proxy:
            outcome = self.caller.generate(address(proxy.port), what, timeout=PATIENCE_S)
        self.assertEqual(outcome.code, "OK", outcome.message)
        self.assertGreater(outcome.resumes, 0)
        for choice in range(3):
            single = request(5, max_tokens=300)
            single.sampling.seed = reference.started.choice_seeds[choice]
            alone = self._reference(single)
            self.assertEqual(outcome.tokens(choice), alone.tokens)
            self.assertEqual(outcome.text(choice), alone.text)
            self.assertEqual(sum(m.HasField("finished") for m in outcome.of(choice)), 1)

    def test_another_process_can_go_on(self):
        what = request(2)
        reference = self._reference(what)
        first = self.caller.generate(address(self.port), what, timeout=PATIENCE_S, cancel_after=7)
        self.assertEqual(first.code, "CANCELLED")
        self._assert_prefix(first, reference)
        what.resume.CopyFrom(first.state)
        second = self.caller.generate(address(self.port), what, timeout=PATIENCE_S)
        self.assertEqual(second.code, "OK", second.message)
        self.assertGreater(len(first.tokens()), 0)
        self.assertEqual(first.tokens() + second.tokens(), reference.tokens)
        self.assertEqual(first.text() + second.text(), reference.text)

    def test_tries_are_bounded(self):
        what = request(3, max_tokens=1000)
        with ChaosProxy(self.port, [0]) as proxy:  # it never begins: by gRPC
            outcome = self.caller.generate(address(proxy.port), what, timeout=PATIENCE_S, max_resumes=2)
        self.assertEqual((outcome.code, outcome.resumes), ("UNAVAILABLE", 0), outcome.message)
        self.assertRegex(outcome.message, r" \(after \d+\.\d s, 0 tokens, 0 resumes\)$")
        with ChaosProxy(self.port, [1500, 0]) as proxy:  # it has begun: by the deadline alone
            start = time.monotonic()
            outcome = self.caller.generate(address(proxy.port), what, timeout=4, max_resumes=1, max_attempts=1)
            self.assertLess(time.monotonic() - start, PATIENCE_S / 2)
        self.assertIn(outcome.code, ("UNAVAILABLE", "DEADLINE_EXCEEDED"), outcome.message)
        self.assertGreater(outcome.resumes, 1)
        self._assert_prefix(outcome, self._reference(what))

    def test_an_answer_waits_for_a_service_that_is_away(self):
        what = request(14, max_tokens=1000)
        with ChaosProxy(self.port, [1500, 0, 0, 0, UNCUT]) as proxy:
            outcome = self.caller.generate(address(proxy.port), what, timeout=PATIENCE_S, max_resumes=1, max_attempts=1)
        self._assert_whole(outcome, self._reference(what))
        self.assertGreater(outcome.resumes, 1)

    def test_a_service_that_starts_is_waited_for_if_wanted(self):
        port = free_port()
        what = request(15)
        for wait, code, timeout in ((False, "UNAVAILABLE", PATIENCE_S), (True, "DEADLINE_EXCEEDED", 4)):
            streamed = self.caller.generate(address(port), what, timeout=timeout, wait_for_ready=wait)
            whole = self.caller.complete(address(port), complete_request(what), timeout=timeout, wait_for_ready=wait)
            self.assertRegex(whole.message, r" \(after \d+\.\d s, 1 call\)$")
            print(f"wait_for_ready={wait}: {streamed.message}")
            self.assertEqual((streamed.code, whole.code), (code,) * 2, streamed.message)
            self.assertEqual(streamed.resumes, 0)

    def test_a_call_without_time_says_so(self):
        streamed = self.caller.generate(address(self.port), request(16), timeout=0)
        whole = self.caller.complete(address(self.port), complete_request(request(16)), timeout=0)
        self.assertEqual((streamed.code, whole.code), ("DEADLINE_EXCEEDED",) * 2)
        for message in (streamed.message, whole.message):
            self.assertTrue(message.startswith("the timeout is 0 or less"), message)
        self.assertRegex(whole.message, r" \(after 0\.0 s, 0 calls\)$")

    def test_a_whole_answer_has_a_request_id(self):
        what = complete_request(request(17))
        self.assertFalse(what.HasField("request_id"))
        outcome = self.caller.complete(address(self.port), what, timeout=PATIENCE_S)
        self.assertRegex(outcome.response.started.request_id, "^req-[0-9a-f]{16}$")
        what.max_tokens = 0
        self.assertRegex(self.caller.complete(address(self.port), what).request_id, "^req-[0-9a-f]{16}$")
        self.assertFalse(what.HasField("request_id"))

    def test_no_resumes_are_made_when_none_are_wanted(self):
        what = request(4, max_tokens=1000)
        with ChaosProxy(self.port, [1500, UNCUT]) as proxy:
            outcome = self.caller.generate(address(proxy.port), what, timeout=PATIENCE_S, max_resumes=0)
        self.assertEqual((outcome.code, outcome.resumes), ("UNAVAILABLE", 0), outcome.message)

    def test_what_goes_on_keeps_its_deadline(self):
        what = request(6, max_tokens=1000)
        with ChaosProxy(self.port, [1500, Silent(0)]) as proxy:
            start = time.monotonic()
            outcome = self.caller.generate(address(proxy.port), what, timeout=3)
            self.assertLess(time.monotonic() - start, PATIENCE_S / 2)
        # During a try, or the next one would have come too late.
        self.assertIn(outcome.code, ("DEADLINE_EXCEEDED", "UNAVAILABLE"), outcome.message)
        self.assertGreater(outcome.resumes, 0)
        self._assert_prefix(outcome, self._reference(what))

    def test_a_call_without_a_timeout_gets_the_default(self):
        what = request(7)
        with ChaosProxy(self.port, [Silent(0)]) as proxy:
            streamed = self.caller.generate(address(proxy.port), what, default_timeout=0.5)
            whole = self.caller.complete(address(proxy.port), complete_request(what), default_timeout=0.5)
        self.assertEqual((streamed.code, whole.code), ("DEADLINE_EXCEEDED",) * 2)

    def test_cancel_frees_the_request(self):
        outcome = self.caller.generate(address(self.port), request(8, max_tokens=1500), timeout=PATIENCE_S, cancel_after=5)
        self.assertEqual(outcome.code, "CANCELLED")
        self.assertEqual(len(outcome.messages), 5)
        load = self.service.await_idle(timeout=10)
        self.assertEqual((load.running, load.waiting, load.blocks.used), (0, 0, 0))

    def test_a_whole_answer_survives_a_lost_connection(self):
        what = complete_request(request(9, max_tokens=1500))
        expected = self.service.inference.Complete(what, timeout=PATIENCE_S)
        with ChaosProxy(self.port) as proxy:
            outcomes = []
            call = threading.Thread(target=lambda: outcomes.append(
                self.caller.complete(address(proxy.port), what, timeout=PATIENCE_S)))
            call.start()
            while self.service.load().running == 0:
                self.assertTrue(call.is_alive(), "the answer was there before the connection could be cut")
            proxy.cut_all()
            call.join()
        self.assertEqual(outcomes[0].code, "OK", outcomes[0].message)
        self.assertEqual(outcomes[0].response.choices[0].token_ids, expected.choices[0].token_ids)
        self.assertGreater(proxy.connections, 1)

    def test_errors_say_what_the_service_said(self):
        wrong = pb.GenerateRequest(text="x", max_tokens=0, sampling=pb.Sampling(top_p=2))
        for outcome in (self.caller.generate(address(self.port), wrong, timeout=PATIENCE_S),
                        self.caller.complete(address(self.port), complete_request(wrong), timeout=PATIENCE_S)):
            self.assertEqual(outcome.code, "INVALID_ARGUMENT")
            self.assertEqual(sorted(field for field, _ in outcome.fields), ["max_tokens", "sampling.top_p"])
            self.assertTrue(all(description for _, description in outcome.fields))
        outcome = self.caller.generate(address(self.port), pb.GenerateRequest(text="x", max_tokens=1 << 20), timeout=PATIENCE_S)
        self.assertEqual((outcome.code, outcome.reason), ("INVALID_ARGUMENT", "PROMPT_TOO_LONG"))
        outcome = self.caller.complete(address(self.port), pb.CompleteRequest(text="x", model="no-such"), timeout=PATIENCE_S)
        self.assertEqual((outcome.code, outcome.reason), ("NOT_FOUND", "MODEL_NOT_FOUND"))
        self.assertIn("no-such", outcome.message)
        self.assertNotIn("(after", outcome.message)

    def test_overload_is_waited_out_as_the_service_asks(self):
        with Service(golden_model("tiny-llama-q"), workers=1,
                     coordinator_flags=["--max-running=1", "--max-waiting=2"]) as service:
            what, target = request(10), address(service.ports["port"])
            reference = self._reference(what, service)
            crowd = []
            for i in range(3):  # the first one runs, two wait
                crowd.append(Stream(service.inference, request(20 + i, max_tokens=1900), timeout=PATIENCE_S))
                self._await(lambda: service.load().running == 1)
            self._await(lambda: service.load().waiting == 2)
            refused = self.caller.generate(target, what, timeout=PATIENCE_S, max_attempts=1)
            self.assertEqual((refused.code, refused.reason), ("RESOURCE_EXHAUSTED", "QUEUE_FULL"))
            self.assertGreater(refused.retry_after, 0)
            self.assertTrue(refused.quota)

            outcomes = []
            call = threading.Thread(target=lambda: outcomes.append(
                self.caller.generate(target, what, timeout=PATIENCE_S)))
            call.start()
            self._await(lambda: rejections(service) >= 2)  # the refused one, and the first try of this
            for stream in crowd:
                stream.cancel()
            call.join()
            self._assert_whole(outcomes[0], reference)
            self.assertEqual(outcomes[0].resumes, 0)

    def test_mutual_tls(self):
        with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as folder:
            pem = make_certificates(folder)
            with ChaosProxy(self.port, tls=mutual_tls(pem["server.pem"], pem["server.key"], pem["ca.pem"])) as proxy:
                tls = {"root_certificates": pem["ca.pem"], "server_name": "server.bitshard.test"}
                what = complete_request(request(11))
                with_key = self.caller.complete(
                    address(proxy.port), what, timeout=PATIENCE_S,
                    tls={**tls, "private_key": pem["client.key"], "certificate_chain": pem["client.pem"]})
                self.assertEqual(with_key.code, "OK", with_key.message)
                without = self.caller.complete(address(proxy.port), what, timeout=PATIENCE_S, tls=tls, max_attempts=1)
                self.assertEqual(without.code, "UNAVAILABLE", without.message)

    def test_an_answer_survives_the_death_of_a_worker(self):
        with Service(golden_model("tiny-llama-q"), workers=2) as service:
            what = request(12, max_tokens=1800)
            reference = self._reference(what, service)
            victim = service.worker_pids()[1]
            outcome = self.caller.generate(
                address(service.ports["port"]), what, timeout=PATIENCE_S,
                on_message=lambda count: os.kill(victim, signal.SIGKILL) if count == 20 else None)
            print(f"{outcome.resumes} resumes")
            self._assert_whole(outcome, reference)
            self.assertNotIn(victim, service.worker_pids())

    def test_an_answer_goes_on_at_another_replica(self):
        with Service(golden_model("tiny-llama-q"), workers=1) as first, \
                Service(golden_model("tiny-llama-q"), workers=1) as second:
            replicas = [first, second]
            target = "ipv4:" + ",".join(address(replica.ports["port"]) for replica in replicas)
            what = request(13, max_tokens=1800)
            reference = self._reference(what, first)

            def kill_the_one_that_answers(count):
                if count == 20:
                    busy, = [replica for replica in replicas if replica.load().running == 1]
                    os.kill(busy.coordinator_pid(), signal.SIGKILL)
                    replicas.remove(busy)

            outcome = self.caller.generate(target, what, timeout=PATIENCE_S, on_message=kill_the_one_that_answers)
            self.assertEqual(len(replicas), 1)
            self.assertGreater(outcome.resumes, 0)
            self._assert_whole(outcome, reference)
            # What is gone is left out.
            for seed in range(4):
                outcome = self.caller.generate(target, request(seed, max_tokens=4), timeout=PATIENCE_S)
                self.assertEqual(outcome.code, "OK", outcome.message)

    def _await(self, condition):
        end = time.monotonic() + PATIENCE_S
        while not condition():
            self.assertLess(time.monotonic(), end, "it never came to be")
            time.sleep(0.01)


def complete_request(what):
    return pb.CompleteRequest.FromString(what.SerializeToString())  # field for field the same


def rejections(service):
    return sum(v for k, v in service.metrics().items() if k.startswith("bitshard_admission_rejections_total"))
