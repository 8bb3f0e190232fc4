"""Figures of runs whose calls are made up."""

import unittest

import case_report
import goodput
from load_client import Call


def call(sent, first, end, tokens=10, code="OK"):
    return Call(due_s=sent, sent_s=sent, first_s=first, end_s=end, tokens=tokens, attempts=1, code=code, message="",
                pushback_ms=None, digest="")


class GoodputTest(unittest.TestCase):
    def test_tokens_count_as_far_as_they_come_within_the_window(self):
        calls = [call(0, 0, 10, tokens=100)]
        self.assertEqual(goodput.goodput(calls, 0, 10), 10)
        self.assertEqual(goodput.goodput(calls, 5, 10), 10)
        self.assertEqual(goodput.goodput(calls, 5, 15), 5)
        self.assertEqual(goodput.goodput(calls, 10, 20), 0)

    def test_answers_that_came_at_once_count_where_they_came(self):
        calls = [call(0, 3, 3, tokens=1)]
        self.assertEqual(goodput.goodput(calls, 0, 4), 0.25)
        self.assertEqual(goodput.goodput(calls, 4, 8), 0)

    def test_what_failed_or_began_late_is_worth_nothing(self):
        calls = [call(0, 1, 2), call(0, 3, 4), call(0, None, 1, tokens=0, code="RESOURCE_EXHAUSTED"),
                 call(0, 1, 2, tokens=5, code="UNAVAILABLE")]
        self.assertEqual(goodput.goodput(calls, 0, 10), 2)
        self.assertEqual(goodput.goodput(calls, 0, 10, slo_s=2), 1)
        self.assertEqual(goodput.goodput(calls, 0, 10, slo_s=0.5), 0)

    def test_figures_leave_the_ramp_out(self):
        calls = [call(i, i + 1, i + 2) for i in range(101)]
        calls[0].first_s, calls[0].end_s = 60, 61
        calls += [call(50, None, 50, tokens=0, code="RESOURCE_EXHAUSTED"), call(50, 51, 52, tokens=1, code="INTERNAL")]
        figures = goodput.figures(calls)
        self.assertEqual((figures["calls"], figures["served"], figures["refused"], figures["failed"]), (103, 101, 1, 1))
        self.assertEqual(figures["seconds"], 75)
        # One answer of 10 tokens a second, and the one that began late.
        self.assertAlmostEqual(figures["goodput"], 10 + 10 / 75, delta=0.2)
        self.assertEqual(figures["ttft_p50_s"], 1)
        self.assertEqual(figures["ttft_p99_s"], 1)
        self.assertEqual(goodput.figures(calls[:1] + calls[101:])["ttft_p99_s"], 60)
        self.assertEqual(figures["steady_ttft_p99_s"], 1)
        self.assertAlmostEqual(figures["token_gap_p50_s"], 1 / 9)


if __name__ == "__main__":
    case_report.main()
