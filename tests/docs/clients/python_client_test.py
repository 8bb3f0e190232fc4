"""The Python client for threads (docs/clients/python), through the cases that every client must pass."""

import subprocess
import sys
import unittest

import case_report
import client_stubs  # noqa: F401  makes bitshard_client importable
import bitshard_client as bitshard
from client_cases import Cases, Outcome
from live_service import ROOT, Service, golden_model


def client_options(tls=None, **options):
    if tls is not None:
        pem = {name: open(path, "rb").read() for name, path in tls.items() if name != "server_name"}
        options["tls"] = bitshard.TlsOptions(server_name=tls["server_name"], **pem)
    return bitshard.ClientOptions(**options)


def failed(outcome, error):
    outcome.code, outcome.message, outcome.reason = error.code.name, error.message, error.reason
    outcome.retry_after, outcome.quota = error.retry_after, list(error.quota)
    outcome.request_id = error.request_id
    outcome.fields = [(v.field, v.description) for v in error.fields]
    return outcome


class ThreadCaller:
    @staticmethod
    def generate(target, request, timeout=None, cancel_after=None, on_message=None, **options):
        outcome = Outcome()
        with bitshard.Client(target, client_options(**options)) as client, client.generate(request, timeout) as stream:
            try:
                for message in stream:
                    outcome.messages.append(message)
                    if on_message:
                        on_message(len(outcome.messages))
                    if len(outcome.messages) == cancel_after:
                        outcome.state = stream.resume_state()
                        stream.cancel()
            except bitshard.BitshardError as error:
                failed(outcome, error)
            outcome.resumes, outcome.request_id = stream.resumes, stream.request_id
        return outcome

    @staticmethod
    def complete(target, request, timeout=None, **options):
        outcome = Outcome()
        with bitshard.Client(target, client_options(**options)) as client:
            try:
                outcome.response = client.complete(request, timeout)
            except bitshard.BitshardError as error:
                failed(outcome, error)
        return outcome


def received(service):
    return [v for k, v in service.metrics().items() if k.startswith("bitshard_requests_received_total")]


class PythonClientTest(Cases, unittest.TestCase):
    caller = ThreadCaller

    def test_other_methods_answer(self):
        with bitshard.Client(f"127.0.0.1:{self.port}") as client:
            model = client.list_models()[0]
            self.assertEqual(model.vocabulary_size, 512)
            tokens = client.tokenize(bitshard.pb.TokenizeRequest(text="def main"))
            self.assertEqual(client.detokenize(bitshard.pb.DetokenizeRequest(token_ids=tokens.token_ids)).text, "def main")
            scores = client.score(bitshard.pb.ScoreRequest(text="def main"))
            self.assertEqual([p.chosen.token_id for p in scores.logprobs], list(tokens.token_ids))
            client.abort("no-such-request")

    def test_errors_are_of_their_own_class(self):
        with bitshard.Client(f"127.0.0.1:{self.port}") as client:
            with self.assertRaises(bitshard.PromptTooLong):
                client.complete(bitshard.pb.CompleteRequest(text="x", max_tokens=1 << 20))
            with self.assertRaises(bitshard.ModelNotFound):
                client.tokenize(bitshard.pb.TokenizeRequest(text="x", model="no-such"))
            with self.assertRaises(bitshard.InvalidRequest) as raised:
                next(client.generate(bitshard.pb.GenerateRequest()))
            self.assertEqual(raised.exception.fields[0].field, "prompt")
            with self.assertRaises(bitshard.NotImplementedByService):
                client.complete(bitshard.pb.CompleteRequest(text="x", max_tokens=1, adapter="lora"))
            with self.assertRaises(bitshard.DeadlineExceeded):
                client.complete(bitshard.pb.CompleteRequest(text="x"), timeout=1e-6)

    def test_a_stream_ends_with_its_block(self):
        request = bitshard.pb.GenerateRequest(text="x", max_tokens=1900, stop=bitshard.pb.Stopping(ignore_eos=True))
        with bitshard.Client(f"127.0.0.1:{self.port}") as client:
            with client.generate(request) as stream:
                next(stream)
            self.assertEqual(list(stream), [])
            load = self.service.await_idle(timeout=10)
            self.assertEqual((load.running, load.blocks.used), (0, 0))

    def test_calls_go_in_turn_to_all_addresses(self):
        with Service(golden_model("tiny-llama-q"), workers=1) as other:
            target = f"ipv4:127.0.0.1:{self.port},127.0.0.1:{other.ports['port']}"
            with bitshard.Client(target) as client:
                # The one that is connected first gets all of them until the other is.
                first = [sum(received(service)) for service in (other, self.service)]

                def both_answer():
                    client.complete(bitshard.pb.CompleteRequest(text="x", max_tokens=1), timeout=30)
                    return all(sum(received(service)) > count for service, count in zip((other, self.service), first))

                self._await(both_answer)
                before = sum(received(other))
                for _ in range(8):
                    client.complete(bitshard.pb.CompleteRequest(text="x", max_tokens=1), timeout=30)
                self.assertEqual(sum(received(other)) - before, 4)

    def test_a_closed_client_says_so(self):
        client = bitshard.Client(f"127.0.0.1:{self.port}")
        endless = bitshard.pb.GenerateRequest(text="x", max_tokens=1900, stop=bitshard.pb.Stopping(ignore_eos=True))
        begun, idle = client.generate(endless), client.generate(endless)
        next(begun)
        client.close()
        for call in (lambda: list(begun), lambda: next(idle), client.list_models,
                     lambda: next(client.generate(endless))):
            with self.assertRaises(bitshard.Cancelled) as raised:
                call()
            self.assertIn("closed", raised.exception.message)
        self.service.await_idle(timeout=10)

    def test_stubs_that_are_missing_are_named(self):
        code = ("import sys; sys.path.insert(0, sys.argv[1])\n"
                "try:\n  import bitshard_client\n"
                "except ImportError as error:\n  print(error)")
        result = subprocess.run([sys.executable, "-c", code, str(ROOT / "docs/clients/python")], text=True,
                                capture_output=True, timeout=60, check=True)
        self.assertIn("python -m grpc_tools.protoc -Ibitshard_client=proto", result.stdout)

    def test_bad_options_are_refused(self):
        for options in ({"default_timeout": 0}, {"max_attempts": 6}, {"connections": 0}, {"max_resumes": -1},
                        {"keepalive_time": -1}, {"keepalive_timeout": 0}, {"retry_tokens": 0}, {"retry_token_ratio": 0}):
            with self.assertRaises(ValueError, msg=str(options)):
                bitshard.ClientOptions(**options)


if __name__ == "__main__":
    case_report.main()
