"""The C++ client (docs/clients/cpp), as the program client_probe, through the cases that every client must pass."""

import subprocess
import unittest

import case_report
from client_cases import Cases, Outcome
from live_service import ROOT, pb

PROBE = str(ROOT / "tests/docs/clients/client_probe")


class ProbeCaller:
    @staticmethod
    def generate(target, request, timeout=None, cancel_after=None, on_message=None, **options):
        return _run(target, request, timeout, options, on_message, [f"--cancel_after={cancel_after or 0}"])

    @staticmethod
    def complete(target, request, timeout=None, **options):
        return _run(target, request, timeout, options, None, ["--complete"])


def _run(target, request, timeout, options, on_message, flags):
    options.update(options.pop("tls", {}))
    command = [PROBE, f"--target={target}", f"--timeout={-1 if timeout is None else timeout}", *flags,
               *(f"--{name}={value}" for name, value in options.items())]
    outcome = Outcome()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as probe:
        probe.stdin.write(request.SerializeToString())
        probe.stdin.close()
        for line in probe.stdout:
            _read(line.decode().rstrip("\n"), outcome)
            if on_message and line.startswith(b"message "):
                on_message(len(outcome.messages))
    if probe.returncode != 0:
        raise RuntimeError(f"client_probe ended with {probe.returncode}")
    return outcome


def _read(line, outcome):
    kind, _, value = line.partition(" ")
    if kind == "message":
        outcome.messages.append(pb.GenerateResponse.FromString(bytes.fromhex(value)))
    elif kind == "response":
        outcome.response = pb.CompleteResponse.FromString(bytes.fromhex(value))
    elif kind == "state":
        outcome.state = pb.Resume.FromString(bytes.fromhex(value))
    elif kind == "code":
        outcome.code = value
    elif kind == "error":
        outcome.message = bytes.fromhex(value).decode()
    elif kind == "reason":
        outcome.reason = value
    elif kind == "retry_after":
        outcome.retry_after = float(value)
    elif kind == "field":
        outcome.fields.append(tuple(bytes.fromhex(value).decode().split("\t")))
    elif kind == "quota":
        outcome.quota.append(bytes.fromhex(value).decode())
    elif kind == "resumes":
        outcome.resumes = int(value)
    elif kind == "id":
        outcome.request_id = value
    else:
        raise RuntimeError(f"client_probe said: {line}")


class CppClientTest(Cases, unittest.TestCase):
    caller = ProbeCaller

    def test_the_example_answers(self):
        example = subprocess.run([str(ROOT / "docs/clients/example"), f"127.0.0.1:{self.port}", "def main"],
                                 capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(example.returncode, 0, example.stderr)
        self.assertRegex(example.stderr, r"\[FINISH_REASON_(STOP|LENGTH), \d+ \+ \d+ tokens, request req-[0-9a-f]{16}\]")


if __name__ == "__main__":
    case_report.main()
