"""Holds mutants.py and mutate.py to what they say, and mutants of the kernels to the kernels' tests."""

import contextlib
import dataclasses
import io
import os
import tempfile
import unittest

import case_report
import mutants
import mutate

_SOURCE = """\
// for (int i = 0; i < n; ++i) __syncthreads();
#define TWICE(x) ((x) + 1)
static_assert(sizeof(int) == 4 + 1);
template <int kCount>
void Run(const int (&x)[kCount - 1]) {
  float sums[kCount + 1];
  for (int i = 0; i < n;
       i += 32) {
    if (lane % 32 == 0) x[i + 1] = fmaf(total, factors.before, y);  // __syncthreads();
    if (row >= rows) return;
    __syncthreads();
    CpAsyncWait<kStages>();
    v[lane % 4][i & 1] = 0 + 1.0f;
  }
}
"""
# Of _SOURCE's mutants: kind, and the line that changes as it then is.
_EXPECTED = [
    ("off by one", "void Run(const int (&x)[kCount - (true ? 0 : 1)]) {"),
    ("off by one", "  float sums[kCount + (true ? 0 : 1)];"),
    ("loop from 1", "  for (int i = (true ? 1 : 0); i < n;"),
    ("loop < to <=", "  for (int i = 0; i < true + n;"),
    ("halve stride", "       i += 32 / (true ? 2 : 1)) {"),
    ("drop lane guard", "    if (true || lane % 32 == 0) x[i + 1] = fmaf(total, factors.before, y);  // __syncthreads();"),
    ("off by one", "    if (lane % 32 == 0) x[i + (true ? 0 : 1)] = fmaf(total, factors.before, y);  // __syncthreads();"),
    ("drop rescale",
     "    if (lane % 32 == 0) x[i + 1] = fmaf(total, (true ? 1.0f : factors.before), y);  // __syncthreads();"),
    ("drop row guard", "    if (!true) if (row >= rows) return;"),
    ("drop barrier", "    if (!true) __syncthreads();"),
    ("weaken copy wait", "    if (true) CpAsyncWait<(kStages) + 1>(); else CpAsyncWait<kStages>();"),
    ("fragment index", "    v[lane % (true ? 2 : 4)][i & 1] = 0 + 1.0f;"),
    ("buffer index", "    v[lane % 4][i & (true ? 0 : 1)] = 0 + 1.0f;"),
]
_CONSTANTS = 2


class Mutants(unittest.TestCase):
    def setUp(self):
        self.root = self.enterContext(tempfile.TemporaryDirectory())
        os.makedirs(os.path.join(self.root, mutants.KERNELS))
        self.write(f"{mutants.KERNELS}/a.cu", _SOURCE)
        self.made = mutants.find_mutants(self.root)

    def write(self, path, text):
        with open(os.path.join(self.root, path), "w", encoding="utf-8") as file:
            file.write(text)
        return os.path.join(self.root, path)

    def test_each_kind_changes_its_one_place(self):
        self.assertEqual([mutant.kind for mutant in self.made], [kind for kind, _ in _EXPECTED])  # nothing in comments
        for mutant, (_, line) in zip(self.made, _EXPECTED):
            text = mutants.with_mutants(_SOURCE, [dataclasses.replace(mutant, constant=True)])
            changed = [new for new, old in zip(text.split("\n"), _SOURCE.split("\n")) if new != old]
            self.assertEqual(changed, [line])
            self.assertEqual(text.split("\n")[mutant.line - 1], line)

    def test_a_source_holds_all_that_need_not_be_constants(self):
        switched = [mutant for mutant in self.made if not mutant.constant]
        self.assertEqual(len(self.made) - len(switched), _CONSTANTS)
        mutants.write_overlay(self.root, os.path.join(self.root, "all"), switched)
        with open(os.path.join(self.root, "all", mutants.KERNELS, "a.cu"), encoding="utf-8") as file:
            text = file.read()
        for mutant in switched:
            self.assertEqual(text.count(f"BITSHARD_MUTANT({mutant.number})"), 1, mutant.kind)
        self.assertNotIn("true", text)

    def test_the_table_names_one_mutant_a_line(self):
        table = self.write("good", "# a comment\na.cu\tbuffer index\tv[lane % 4][i & 1] = 0 + 1.0f;\twhy\n")
        self.assertEqual(mutants.equivalent_mutants(table, self.made), {self.made[-1].number: "why"})
        for kind, code in [("buffer index", "gone();"), ("off by one", ""), ("no such kind", "i & 1] = 0 + 1.0f;")]:
            table = self.write("bad", f"a.cu\t{kind}\t{code}\twhy\n")
            with self.assertRaisesRegex(ValueError, "bad:1: a.cu: .* mutants are so"):
                mutants.equivalent_mutants(table, self.made)


class Scores(unittest.TestCase):
    def test_what_does_not_compile_or_is_equivalent_is_no_mutant(self):
        def mutant(name):
            return mutants.Mutant(1, f"{mutants.KERNELS}/{name}", "off by one", 1, 0, 0, "", False, "")

        tried = [(mutant("norm.cu"), "race in shared memory"), (mutant("prepare.cuh"), None),
                 (mutant("linear.cu"), "does not compile"), (mutant("linear_w4.cu"), "no end")]
        with contextlib.redirect_stdout(io.StringIO()) as out:
            self.assertEqual(mutate.report(tried, [mutant("norm.cu")]), (2, 3))
        self.assertEqual(out.getvalue().split("\n")[:2],
                         ["linear: 1 of 1 mutants found, 100.0 %; 0 equivalent ones besides",
                          "norm and prepare: 1 of 2 mutants found, 50.0 %; 1 equivalent ones besides"])


class Kept(unittest.TestCase):
    def setUp(self):
        self.root = self.enterContext(tempfile.TemporaryDirectory())
        os.makedirs(os.path.join(self.root, mutants.KERNELS))
        self.write(f"{mutants.KERNELS}/a.cu", _SOURCE)
        self.write("inputs.link", f"{self.root}/lib.a\n-lm\n")
        self.write("lib.a", "tests")
        self.made = mutants.find_mutants(self.root)

    def write(self, path, text):
        with open(os.path.join(self.root, path), "w", encoding="utf-8") as file:
            file.write(text)

    def folder(self, tests="*"):
        return mutate.kept_folder(os.path.join(self.root, "keep"), self.root, os.path.join(self.root, "inputs"), self.made,
                                  tests)

    def test_a_run_goes_on_with_what_an_ended_one_found(self):
        path = os.path.join(self.folder(), "outcomes")
        ended = mutate.Outcomes(path)
        with ended.file:
            ended.add(self.made[0], "wrong results")
            ended.add(self.made[1], None)
            ended.file.write(f"{self.made[2].number}\twro")  # ended here
        next_one = mutate.Outcomes(path)
        with next_one.file:
            self.assertEqual(next_one.of, {self.made[0].number: "wrong results", self.made[1].number: None})

    def test_other_sources_tests_and_wishes_have_another_folder(self):
        first = self.folder()
        self.assertEqual(self.folder(), first)
        self.assertNotEqual(self.folder("CudaRows.*"), first)
        self.write("lib.a", "other tests")
        of_other_tests = self.folder()
        self.write(f"{mutants.KERNELS}/a.h", "int more;")
        self.made = self.made[1:]
        self.assertEqual(len({first, of_other_tests, self.folder()}), 3)


class Kernels(unittest.TestCase):
    def test_the_table_names_mutants_that_are_there(self):
        mutants.equivalent_mutants(f"{mutate.HERE}/equivalent_mutants.tsv", mutants.find_mutants(os.getcwd()))

    def test_their_tests_find_a_sample(self):
        # Some units and the tests of two types of cache: a minute of compiling and running.
        found, tried = mutate.main(["--units=attention,kv_append,linear_w4,norm,rope", "--sample=10", "--seed=1",
                                    "--tests=*/bf16:*/int8:CudaAttentionFold.*:CudaRows.*:CudaRope.*:CudaSegments.*"])
        self.assertEqual(tried, 10)
        self.assertEqual(found, 10)


if __name__ == "__main__":
    case_report.main()
