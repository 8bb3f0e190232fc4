"""Holds mutate.py to what it says, and a few mutants of the kernels to the kernels' tests."""

import os
import tempfile
import unittest

import case_report
import mutate

_SOURCE = """
  for (int i = 0; i < n; i += 32) {
    if (lane == 0) x[i + 1] = fmaf(total, factors.before, y);  // __syncthreads();
    if (row >= rows) return;
    __syncthreads();
    CpAsyncWait<1>();
    v[lane % 4][i & 1] = 0;
  }
"""
# kind -> a line of what it makes of _SOURCE
_EXPECTED = {
    "loop < to <=": "  for (int i = 0; i <= n; i += 32) {",
    "loop from 1": "  for (int i = 1; i < n; i += 32) {",
    "halve stride": "  for (int i = 0; i < n; i += (32) / 2) {",
    "drop lane guard": "    if (true) x[i + 1] = fmaf(total, factors.before, y);",
    "drop rescale": "    if (lane == 0) x[i + 1] = fmaf(total, 1.0f, y);",
    "off by one": "    if (lane == 0) x[i] = fmaf(total, factors.before, y);",
    "drop row guard": "",
    "drop barrier": "",
    "weaken copy wait": "    CpAsyncWait<2>();",
    "fragment index": "    v[lane % 2][i & 1] = 0;",
    "buffer index": "    v[lane % 4][i & 0] = 0;",
}


class Mutants(unittest.TestCase):
    def test_each_kind_changes_its_one_place(self):
        with tempfile.TemporaryDirectory() as root:
            os.makedirs(os.path.join(root, mutate.KERNELS))
            with open(os.path.join(root, mutate.KERNELS, "a.cu"), "w", encoding="utf-8") as file:
                file.write(_SOURCE)
            mutants = mutate.find_mutants(root)
        made = {kind: text.split("\n") for kind, _, _, text in mutants}
        self.assertEqual(len(mutants), len(_EXPECTED))  # one each, nothing in comments
        self.assertEqual(set(made), set(_EXPECTED))
        for kind, line in _EXPECTED.items():
            changed = [new.rstrip() for new, old in zip(made[kind], _SOURCE.split("\n")) if new != old]
            self.assertEqual(changed, [line], kind)

    def test_the_kernels_tests_find_a_sample(self):
        tried, found = mutate.main(["--sample=4", "--seed=1"])
        self.assertEqual(tried, 4)
        self.assertGreaterEqual(found, 3)  # one may be equivalent


if __name__ == "__main__":
    case_report.main()
