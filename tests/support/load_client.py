"""Runs tests/bench/load's load_client and reads what became of its calls."""

import dataclasses
import json
import subprocess


@dataclasses.dataclass
class Call:
    """Times in seconds since the run began; first_s is None when no token came."""
    due_s: float
    sent_s: float
    first_s: float
    end_s: float
    tokens: int
    attempts: int
    code: str  # as gRPC names it
    message: str
    pushback_ms: int  # None: no such trailer
    digest: str  # equal for equal answers

    @property
    def ttft_s(self):
        return None if self.first_s is None else self.first_s - self.sent_s


def percentile(values, p):
    """The least value that at least the share p of the values do not exceed; None of nothing."""
    ordered = sorted(values)
    if not ordered:
        return None
    return ordered[min(len(ordered) - 1, max(0, -int(-p * len(ordered) // 1) - 1))]


def flags(**settings):
    """prompt_tokens=8 is --prompt-tokens=8."""
    return [f"--{name.replace('_', '-')}={str(value).lower() if isinstance(value, bool) else value}"
            for name, value in settings.items()]


class LoadClient:
    """A run that is under way. With blockers the caller hears of its two stops through await_line and ends them with go."""

    def __init__(self, program, **settings):
        self.process = subprocess.Popen([str(program), *flags(**settings)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True)

    def await_line(self, wanted):
        line = self.process.stdout.readline().strip()
        if line != wanted:
            self.process.kill()
            raise RuntimeError(f"load_client said {line!r} instead of {wanted!r}: {self.process.stderr.read()[-2000:]}")

    def go(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def document(self, timeout=600):
        """What it printed at its end."""
        try:
            out, errors = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        if self.process.returncode != 0:
            raise RuntimeError(f"load_client ended with {self.process.returncode}: {errors.strip()[-2000:]}")
        return json.loads(out)

    def calls(self, timeout=600):
        return [Call(**call) for call in self.document(timeout)["calls"]]


def run(program, timeout=600, **settings):
    """The calls of a whole run."""
    return LoadClient(program, **settings).calls(timeout)
