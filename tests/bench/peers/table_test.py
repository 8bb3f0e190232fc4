"""The table of against_llama_cpp.sh says PASS and MISS where it should."""

import unittest

import case_report
import runs
import table

PEER = {"default": [10, 30, 20], "flash attention off": [24, 25, 26], "flash attention on": []}


def row(name, ours, binding=True):
    cells = table.comparison_row(name, name, PEER, ours, (0.5, None), binding)
    return dict(zip(table.HEAD, cells))


class TableTest(unittest.TestCase):
    def test_every_row_has_a_gate_and_work_on_both_sides(self):
        self.assertEqual(set(table.GATES), set(runs.CASES))
        for _, rows in runs.PEER_SETTINGS.values():
            self.assertLessEqual(set(rows), set(runs.CASES))

    def test_ratios_are_of_medians_against_default_and_best(self):
        cells = row("decode, context 0", [60, 40, 50])
        self.assertEqual(cells["llama.cpp default"], "20.0")
        self.assertEqual((cells["its best"], cells["setting"]), ("25.0", "flash attention off"))
        self.assertEqual((cells["bitshard"], cells["x default"], cells["x best"]), ("50.0", "2.50", "2.00"))
        self.assertEqual((cells["of read peak"], cells["of int peak"]), ("50.0 %", "-"))

    def test_a_gate_is_against_the_best_setting(self):
        self.assertEqual(row("decode, context 0", [50])["result"], "PASS")
        self.assertEqual(row("decode, context 0", [49.9])["result"], "MISS")  # 2.5 times the default

    def test_two_gates_must_both_hold(self):
        self.assertEqual(row("decode at 2,048", [80])["result"], "PASS")
        self.assertEqual(row("decode at 2,048", [79])["result"], "MISS")  # 3.16 times the best, below 4 times the default
        self.assertEqual(row("decode at 2,048", [80])["gate"], "4x default, 1.6x best")

    def test_without_vnni_gates_do_not_bind(self):
        self.assertEqual(row("decode, context 0", [10], binding=False)["result"], "(miss)")
        self.assertEqual(row("decode, context 0", [100], binding=False)["result"], "(pass)")

    def test_two_workers_against_one(self):
        passed = dict(zip(table.HEAD, table.two_workers_row([10, 10], [16, 17], True)))
        self.assertEqual((passed["x best"], passed["result"]), ("1.65", "PASS"))
        missed = dict(zip(table.HEAD, table.two_workers_row([10, 10], [15.9], True)))
        self.assertEqual(missed["result"], "MISS")

    def test_columns_are_aligned(self):
        lines = table.aligned([("a", "bbb"), ("cccc", "d")]).splitlines()
        self.assertEqual(lines, ["a     bbb", "cccc    d"])


if __name__ == "__main__":
    case_report.main()
