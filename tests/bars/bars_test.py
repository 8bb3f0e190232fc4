"""Holds the kernels to tests/bars/kernels.tsv, and shows that each kind of worsening is found."""

import os
import sys
import tempfile
import unittest

import bars
import case_report
import kernel_figures

FIGURES = sys.argv.pop(1)
SASS = """
Fatbin elf code:
================
arch = sm_90a
code version = [1,8]

\tcode for sm_90a
\t\tFunction : _ZN8bitshard4cuda5SmallILi4ELi2EEEvPKjPf
\t.headerflags\t@"EF_CUDA_TEXMODE_UNIFIED"
        /*0000*/                   LDC R1, c[0x0][0x28] ;   /* 0x00000a00ff017b82 */
                                                            /* 0x000fe20000000800 */
        /*0008*/                   PREEXIT ;                             /* 0x000000000000782d */
        /*0010*/                   LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ;  /* 0x0 */
        /*0020*/                   LOP3.LUT R8, R4, 0xf000f, RZ, 0xc0, !PT ;  /* 0x0 */
        /*0024*/               @P1 BRA 0x30 ;  /* 0x0 */
        /*0028*/                   FFMA R5, R5, R5, R5 ;  /* 0x0 */
        /*0030*/                   HMMA.16816.F32 R12, R8, R10, R12 ;  /* 0x0 */
        /*0040*/              @!PT LDS RZ, [RZ] ;  /* 0x0 */
        /*0050*/                   STL [R1], R4 ;  /* 0x0 */
        /*0060*/               @P0 BRA 0x20 ;  /* 0x0 */
        /*0070*/                   LDG.E.U16 R4, desc[UR4][R2.64] ;  /* 0x0 */
        /*0080*/              @!P1 BRA 0x10 ;  /* 0x0 */
        /*0090*/                   EXIT ;  /* 0x0 */
        /*00a0*/                   BRA 0xa0;  /* 0x0 */
        /*00b0*/                   NOP;  /* 0x0 */
"""
PTXAS = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_ZN8bitshard4cuda5SmallILi4ELi2EEEvPKjPf' for 'sm_90a'
ptxas info    : Function properties for _ZN8bitshard4cuda5SmallILi4ELi2EEEvPKjPf
    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Function properties for _ZN8bitshard4cuda4HelpEv
    64 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 4608 bytes smem
"""
ROW = {"source": "kernels/cuda/small.cu", "kernel": "Small<4, 2>", "architecture": "sm_90a", "registers": 40,
       "stack_bytes": 8, "spill_bytes": 8, "shared_bytes": 4608, "instructions": 13, "ldg128": 1, "ldg_narrow": 1,
       "hmma": 1, "imma": 0, "ldsm": 0, "ldgsts": 0, "preexit": 1, "local": 1, "loop_instructions": 5,
       "loop_hmma": 1, "loop_imma": 0, "loop_alu": 1, "loop_ldg": 0, "loop_closing": 1}


def rows_of(*rows):
    return {tuple(row[name] for name in bars.KEY): {n: v for n, v in row.items() if n not in bars.KEY} for row in rows}


class ReadingIsRight(unittest.TestCase):

    def test_figures_of_a_kernel(self):
        self.assertEqual(kernel_figures.table("kernels/cuda/small.cu", SASS, PTXAS), [ROW])

    def test_integer_products_pay_for_all_their_terms(self):
        # Past the one FFMA there are three more, or none.
        more = "        /*0029*/  @P2 BRA 0x30 ;\n" + "".join(f"        /*002{i}*/  FFMA R5, R5, R5, R5 ;\n" for i in "abc")
        sass = SASS.replace("        /*0030*/", more + "        /*0030*/")
        for opcode, closing in (("HMMA.16816.F32", 2), ("IMMA.16832.U8.S8", 5)):
            with self.subTest(opcode):
                row, = kernel_figures.table("kernels/cuda/small.cu", sass.replace("HMMA.16816.F32", opcode), PTXAS)
                self.assertEqual(row["loop_closing"], closing)

    def test_products_that_wait_for_each_other_are_an_error(self):
        warning = ("ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to "
                   "insufficient register resources\n")
        with self.assertRaisesRegex(SystemExit, "wait for each other"):
            kernel_figures.table("x.cu", SASS, warning + PTXAS)

    def test_a_kernel_that_ptxas_did_not_name_is_an_error(self):
        with self.assertRaises(SystemExit):
            kernel_figures.table("kernels/cuda/small.cu", SASS, "")

    def test_each_disassembler_has_a_folder_of_its_own(self):
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "cuobjdump")
            with open(program, "w", encoding="utf-8") as file:
                file.write('#!/bin/sh\necho "$TMPDIR $(ls -A "$TMPDIR" | wc -l)"\ntouch "$TMPDIR/tmpxft_00000004"\n')
            os.chmod(program, 0o700)
            seen = [kernel_figures.dump_sass(folder, "linear.o").split() for _ in range(2)]
        self.assertNotEqual(seen[0][0], seen[1][0])
        for scratch, files in seen:
            self.assertEqual(files, "0")
            self.assertFalse(os.path.exists(scratch))

    def test_names_without_namespaces_and_parameters(self):
        for demangled, short in (
                ("bitshard::cuda::Gather(bitshard::cuda::GatherArgs)", "Gather"),
                ("void bitshard::cuda::(anonymous namespace)::Norm<true>(float const*)", "Norm<true>"),
                ("void bitshard::cuda::Attention<(bitshard::KvKind)1, 128>(int (*)(float))", "Attention<(KvKind)1, 128>")):
            self.assertEqual(kernel_figures.short_name(demangled), short)

    def test_a_table_comes_back_as_written(self):
        self.assertEqual(bars.read(bars.write("13.0.88", rows_of(ROW))), ("13.0.88", rows_of(ROW)))

    def test_no_compiler_is_told_with_its_reason(self):
        with self.assertRaisesRegex(bars.NoCompiler, "no CUDA compiler"):
            bars.read("none\tno CUDA compiler here\n")


class WorseIsFound(unittest.TestCase):

    def check(self, column, change):
        found = bars.worse(rows_of(ROW), rows_of({**ROW, column: ROW[column] + change}))
        self.assertEqual(len(found), 1, found)
        self.assertIn(f"Small<4, 2> sm_90a: {column} ", found[0])
        self.assertEqual(bars.worse(rows_of(ROW), rows_of({**ROW, column: ROW[column] - change})), [])
        self.assertEqual(len(bars.better(rows_of(ROW), rows_of({**ROW, column: ROW[column] - change}))), 1)

    def test_more_of_what_costs(self):
        for column in bars.LESS_IS_BETTER:
            with self.subTest(column):
                self.check(column, 1)

    def test_fewer_wide_loads_and_tensor_core_instructions(self):
        for column in bars.MORE_IS_BETTER:
            with self.subTest(column):
                self.check(column, -1)

    def test_spills_and_local_memory_with_any_compiler(self):
        clean = rows_of({**ROW, "spill_bytes": 0, "local": 0})
        for table in ({}, clean):
            self.assertEqual(len(bars.spilling(table, rows_of(ROW))), 2)
        self.assertEqual(bars.spilling({}, clean), [])
        self.assertEqual(bars.spilling(rows_of(ROW), rows_of(ROW)), [])

    def test_kernels_on_one_side_only(self):
        other = {**ROW, "kernel": "Other"}
        self.assertEqual(len(bars.missing(rows_of(ROW), rows_of(other))), 2)
        # Architectures that only --config=cuda_all compiles have no bars.
        self.assertEqual(bars.missing(rows_of(ROW), rows_of(ROW, {**ROW, "architecture": "sm_120"})), [])


class Kernels(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        with open(bars.TABLE, encoding="utf-8") as file:
            cls.table_version, cls.bars = bars.read(file.read())
        cls.no_compiler = ""
        try:
            with open(FIGURES, encoding="utf-8") as file:
                cls.version, cls.figures = bars.read(file.read())
        except bars.NoCompiler as error:
            cls.no_compiler = str(error)

    def setUp(self):
        if self.no_compiler:
            self.skipTest(self.no_compiler)

    def of_the_tables_compiler(self):
        if self.version != self.table_version:
            self.skipTest(f"the table is of nvcc {self.table_version}, this is {self.version}")

    def show(self, lines, hint):
        if lines:
            self.fail(hint + ":\n" + "\n".join(lines))

    def test_none_spills_but_those_that_the_table_names(self):
        self.assertTrue(self.figures)
        self.show(bars.spilling(self.bars, self.figures), "registers do not suffice")

    def test_none_is_worse_than_the_table(self):
        self.of_the_tables_compiler()
        self.show(bars.worse(self.bars, self.figures), "worse than tests/bars/kernels.tsv")

    def test_the_table_names_them_all(self):
        self.of_the_tables_compiler()
        self.show(bars.missing(self.bars, self.figures), "bars.py --update writes the table")


if __name__ == "__main__":
    case_report.main()
