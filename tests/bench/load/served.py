"""`bitshard serve` as processes for a benchmark, with nothing but Python's own library."""

import os
import re
import signal
import subprocess
import tempfile
import time
import urllib.request

READY_TIMEOUT_S = 120


class Scrape:
    """One look at the coordinator's metrics page."""

    def __init__(self, port):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        # (name, labels as they stand, value)
        self.samples = [(name, labels or "", float(value)) for name, labels, value in
                        re.findall(r"^([a-z_:]+)(\{[^}]*\})? (\S+)$", text, re.MULTILINE)]

    def sum(self, name, *labels):
        """Of the series of that name with these labels, each written as label="value"."""
        return sum(value for have, with_labels, value in self.samples
                   if have == name and all(label in with_labels for label in labels))

    def quantile(self, name, q, since):
        """Of what a histogram observed since an earlier look, as histogram_quantile() of Prometheus has it."""
        counts = {}
        for sign, scrape in ((1, self), (-1, since)):
            for have, labels, value in scrape.samples:
                if have == name + "_bucket":
                    bound = float(re.search(r'le="([^"]+)"', labels).group(1))
                    counts[bound] = counts.get(bound, 0) + sign * value
        bounds = sorted(counts)
        if not bounds or counts[bounds[-1]] == 0:
            return None
        rank, low, below = q * counts[bounds[-1]], 0.0, 0.0
        for bound in bounds:
            if counts[bound] >= rank and counts[bound] > below:
                return low if bound == float("inf") else low + (bound - low) * (rank - below) / (counts[bound] - below)
            low, below = bound, counts[bound]
        return low


class Served:
    """with Served(bin_dir, model, coordinator_flags=("--max-running=16",)) as service: ... service.address"""

    def __init__(self, bin_dir, model, workers=2, threads=1, coordinator_flags=()):
        self.folder = tempfile.TemporaryDirectory(prefix="bitshard-bench-")
        self.ports_path = os.path.join(self.folder.name, "ports")
        self.log_path = os.path.join(self.folder.name, "log")
        self.command = [f"{bin_dir}/bitshard", "serve", model, f"--workers={workers}", f"--threads={threads}", "--port=0",
                        f"--bin-dir={bin_dir}", f"--port-file={self.ports_path}", "--log-level=warning"]
        if coordinator_flags:
            self.command.append("--coordinator-flags=" + ",".join(coordinator_flags))
        self.process, self.ports = None, {}

    def __enter__(self):
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)
        try:
            self._await_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.folder.cleanup()

    @property
    def address(self):
        return f"127.0.0.1:{self.ports['port']}"

    def scrape(self):
        return Scrape(int(self.ports["metrics_port"]))

    def _await_ready(self):
        end = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < end:
            if self.process.poll() is not None:
                break
            if os.path.exists(self.ports_path):
                with open(self.ports_path, encoding="utf-8") as file:
                    self.ports = dict(line.strip().split("=", 1) for line in file if "=" in line)
                try:
                    if self.scrape().sum("bitshard_group_state", 'state="ready"') == 1:
                        return
                except OSError:
                    pass
            time.sleep(0.05)
        with open(self.log_path, encoding="utf-8", errors="replace") as log:
            raise RuntimeError(f"{' '.join(self.command)} is not ready:\n{log.read()[-3000:]}")
