"""What a run of load_client was worth: tokens of answers that came in time, while the load lasted."""

from load_client import percentile

RAMP = 0.25  # of the time under load: what begins is not counted, queue and batch fill


def window(calls):
    """(begin, end) of the time under load, in seconds of the run: after the ramp, until no more calls are sent."""
    last = max(call.sent_s for call in calls)
    return RAMP * last, last


def goodput(calls, begin_s, end_s, slo_s=None):
    """Tokens a second of answers that ended well, and began within the SLO where there is one. An answer's tokens are taken
    to come evenly from its first to its end."""
    tokens = 0.0
    for call in calls:
        if call.code != "OK" or (slo_s is not None and call.ttft_s > slo_s):
            continue
        overlap = min(call.end_s, end_s) - max(call.first_s, begin_s)
        length = call.end_s - call.first_s
        if length > 0:
            tokens += call.tokens * max(0.0, overlap) / length
        elif begin_s <= call.end_s < end_s:
            tokens += call.tokens
    return tokens / (end_s - begin_s)


def figures(calls, slo_s=None):
    """The figures of one run."""
    begin, end = window(calls)
    served = [call for call in calls if call.code == "OK"]
    inside = [call for call in served if begin <= call.sent_s]
    refused = [call for call in calls if call.code == "RESOURCE_EXHAUSTED"]
    gaps = [(call.end_s - call.first_s) / (call.tokens - 1) for call in served if call.tokens > 1]
    return {
        "calls": len(calls), "served": len(served), "refused": len(refused),
        "failed": len(calls) - len(served) - len(refused),
        "seconds": end - begin,
        "goodput": goodput(calls, begin, end, slo_s),
        "ttft_p50_s": percentile([call.ttft_s for call in served], 0.5),
        "ttft_p99_s": percentile([call.ttft_s for call in served], 0.99),
        "steady_ttft_p99_s": percentile([call.ttft_s for call in inside], 0.99),
        "token_gap_p50_s": percentile(gaps, 0.5),
        "late_p99_s": percentile([call.sent_s - call.due_s for call in calls if call.attempts == 1], 0.99),
    }
