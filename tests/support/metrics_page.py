"""A Prometheus page, read by the Prometheus project's own parser."""

import time
import urllib.request

from prometheus_client.parser import text_string_to_metric_families


class Page:
    """One scrape. Names are those of the series: a histogram has _bucket, _count and _sum."""

    def __init__(self, port, host="127.0.0.1"):
        with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=10) as answer:
            self.text = answer.read().decode()
        self.families = {}
        self.samples = {}  # name -> [(labels, value)]
        for family in text_string_to_metric_families(self.text):
            # The parser takes _total off the names of counters.
            name = family.name + "_total" if family.type == "counter" else family.name
            if name in self.families:
                raise AssertionError(f"{name} stands twice on the page")
            self.families[name] = family
            for sample in family.samples:
                self.samples.setdefault(sample.name, []).append((sample.labels, sample.value))

    def sum(self, name, **labels):
        """Of all series of that name with these labels. A name that is not there is an error."""
        return sum(value for have, value in self.samples[name]
                   if all(have.get(key) == wanted for key, wanted in labels.items()))

    def labels(self, name, label):
        """The values that the label has."""
        return {have[label] for have, _ in self.samples[name]}

    def quantile(self, name, q, since=None):
        """Of a histogram's observations (since an earlier page), as histogram_quantile() of Prometheus has it."""
        counts = {}
        for labels, value in self.samples[name + "_bucket"]:
            bound = float(labels["le"])
            counts[bound] = counts.get(bound, 0) + value
        if since is not None:
            for labels, value in since.samples[name + "_bucket"]:
                counts[float(labels["le"])] -= value
        bounds = sorted(counts)
        rank = q * counts[bounds[-1]]
        low, below = 0.0, 0.0
        for bound in bounds:
            if counts[bound] >= rank and counts[bound] > below:
                return low + (bound - low) * (rank - below) / (counts[bound] - below)
            low, below = bound, counts[bound]
        return low


def settled(port, timeout=30):
    """The page once every call of an idle service is counted as over: a moment after its client has the answer."""
    end = time.monotonic() + timeout
    while True:
        page = Page(port)
        if time.monotonic() > end or (
                page.sum("bitshard_e2e_request_latency_seconds_count") ==
                page.sum("bitshard_time_to_first_token_seconds_count") + page.sum("bitshard_ended_without_token_total")
                and page.sum("bitshard_grpc_server_started_total", grpc_service="bitshard.v1.Inference") ==
                page.sum("bitshard_grpc_server_handled_total", grpc_service="bitshard.v1.Inference")):
            return page
        time.sleep(0.05)
