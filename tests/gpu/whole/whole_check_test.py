"""check.sh from its first line to its last, from a bundle that pack.sh packed, without a GPU: its programs are the real ones
on the emulator and the fakes of CUDA, cuBLAS and NCCL, at small sizes. Only what NVIDIA makes has stubs: nvidia-smi, ncu, and
a compute-sanitizer that runs the emulator's check build of a program in place of the program. Times and rates mean nothing.
"""

import csv
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import case_report

GPU = "tests/gpu"
PROGRAMS = {
    "bitshard": "coordinator/tools/bitshard",
    "bitshard-coordinator": "coordinator/bitshard-coordinator",
    "bitshard-worker": "tests/support/bitshard-worker-emulated",
    "ceilings": GPU + "/whole/ceilings_emulated",
    "faults": GPU + "/whole/faults_emulated",
    "kernel_cases": GPU + "/kernel_cases_emulated",
    "kernels_on_gpu": "tests/kernels/cuda/gather_test",
    "nccl_check": GPU + "/whole/nccl_check_emulated",
    "ptx_vectors": GPU + "/ptx_vectors_emulated",
    "roofline": GPU + "/whole/roofline_emulated",
}
MODEL = "tests/golden/models/tiny-llama-q"

# In place of the large models that `bitshard bench` is asked for.
TINY = {
    "architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16", "hidden_size": 256, "num_hidden_layers": 1,
    "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 1024, "vocab_size": 2048,
    "max_position_embeddings": 8192, "rope_theta": 10000.0, "rms_norm_eps": 1e-6, "hidden_act": "silu",
    "tie_word_embeddings": False,
}

TOOLS = {
    "nvidia-smi": 'echo "580.1, 143771 MiB, 1980 MHz, 9.0, Disabled, NVIDIA emulated"',
    "ldconfig": """
echo "	libnccl.so.2 (libc6,x86-64) => $ROOT/no/libnccl.so.2"
echo "	libcublas.so.13 (libc6,x86-64) => $ROOT/tests/gpu/libfake_cublas.so\"""",
    # The command behind its own options; planted faults and races show in the check builds. These look for all that the four
    # tools look for, so that one run of kernel_cases serves them.
    "compute-sanitizer": """
while [[ $1 != env ]]; do shift; done
words=() once=
for word in "$@"; do
  [[ $word != */bin/kernel_cases ]] || { word=$ROOT/tests/gpu/kernel_cases_counted; once=$HOME/sanitized; }
  words+=("$word")
done
[[ -n $once ]] || exec "${words[@]}"
[[ -e $once.status ]] || { status=0; "${words[@]}" > "$once" 2>&1 || status=$?; echo "$status" > "$once.status"; }
cat "$once"
exit "$(< "$once.status")\"""",
    "ncu": 'exec "$PYTHON" "$NCU" "$@"',
    # The system's, with ten times the limits of a GPU, over sizes that an emulator gets through.
    "timeout": """
words=("$1" "$2" "$(($3 * 10))")
for word in "${@:4}"; do
  case "$word" in
    --synthetic=llama-3.1-*) word=--synthetic=$TINY ;;
    --prefill=*) word=--prefill=32 ;;
    --context=*) word=--context=0,64 ;;
    --concurrent=*) word=--concurrent= ;;
    --repeat=*) words+=(--decode=8) ;;
    --coordinator-flags=*) word=--coordinator-flags=--token-budget=128,--max-running=4 ;;
    large) continue ;;
  esac
  words+=("$word")
done
exec /usr/bin/timeout "${words[@]}\"""",
}


def ncu(words):
    """What a stub for ncu prints: the emulator's counters under ncu's names, in the form of `ncu --csv --page raw`."""
    program = words[words.index("env"):] if "env" in words else []
    here = pathlib.Path(os.environ["BUNDLE"])
    columns = {"launch__grid_size": "blocks", "op_ld.sum": "read sectors", "op_st.sum": "write sectors",
               "conflicts_pipe_lsu_mem_shared.sum": "shared conflicts", "op_hmma.sum": "mma", "bytes_read.sum": "unique bytes"}
    if not program:
        asked = subprocess.run([here / "bin/kernel_cases", "metrics"], check=True, stdout=subprocess.PIPE, text=True).stdout
        for name in sorted({metric.partition(".")[0] for metric in asked.strip().split(",")}):
            print(f"{name}   Counter")
        return
    subprocess.run(program, check=True)
    metrics = words[words.index("--metrics") + 1].split(",")
    writer = csv.writer(sys.stdout, quoting=csv.QUOTE_ALL)
    writer.writerow(["ID", "Kernel Name", *metrics])
    writer.writerow(["", "", *("unit" for _ in metrics)])
    number = 0
    with open(here / "counters_emulated.tsv", encoding="utf-8") as file:
        for line in csv.DictReader(file, delimiter="\t"):
            for launch in range(int(line["launches"])):
                names = [next((column for end, column in columns.items() if metric.endswith(end)), None) for metric in metrics]
                writer.writerow([number, "Kernel", *(line[name] if name and launch == 0 else 0 for name in names)])
                number += 1


class WholeCheckTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        root = os.getcwd()
        cls.folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")))
        cases = cls.folder / "cases"
        cases.write_text(f"#!/bin/bash\nexec {GPU}/kernel_cases_emulated ${{@/#large/}}\n", encoding="utf-8")
        cases.chmod(0o755)
        archive = cls.folder / "bundle.tar.gz"
        subprocess.run([GPU + "/pack.sh", "30000000", "0", archive, GPU + "/check.sh", GPU + "/same_answer.sh",
                        GPU + "/ptx_vectors_emulated", cases, GPU + "/kernel_cases_counted",
                        *sorted(pathlib.Path(MODEL).iterdir()), "--", *(f"{name}={path}" for name, path in PROGRAMS.items())],
                       check=True)
        subprocess.run(["tar", "-xzf", archive, "-C", cls.folder], check=True)
        tiny = cls.folder / "tiny"
        tiny.mkdir()
        (tiny / "config.json").write_text(json.dumps(TINY), encoding="utf-8")
        tools = cls.folder / "tools"
        tools.mkdir()
        for name, does in TOOLS.items():
            (tools / name).write_text(f"#!/bin/bash\n{does}\n", encoding="utf-8")
            (tools / name).chmod(0o755)
        # Programs of the system but xz, which the machine with the GPU need not have.
        for name in os.listdir("/usr/bin"):
            if name not in TOOLS and not name.startswith("xz"):
                (tools / name).symlink_to("/usr/bin/" + name)
        cls.environment = {
            "PATH": str(tools), "CUDA_HOME": "/nowhere", "HOME": str(cls.folder), "ROOT": root, "TINY": str(tiny),
            "PYTHON": sys.executable, "NCU": os.path.abspath(__file__), "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "BUNDLE": str(cls.folder / "bundle"), "BITSHARD_FAKE_CUDA_BYTES": str(1 << 30)}
        done = subprocess.run([cls.folder / "bundle/check.sh", cls.folder / "out"], env=cls.environment, check=False,
                              timeout=270, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        cls.code, cls.text = done.returncode, done.stdout
        print(cls.text)
        cls.lines = {line.split()[0]: line for line in cls.read("summary.txt").splitlines()}

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    @classmethod
    def read(cls, name):
        return (cls.folder / "out" / name).read_text(encoding="utf-8")

    def test_every_phase_ran_and_said_what_came_out(self):
        shown = subprocess.run([self.folder / "bundle/check.sh", "--dry-run"], env=self.environment, check=True,
                               stdout=subprocess.PIPE, text=True).stdout
        names = [line.split("\t")[0] for line in shown.splitlines()[1:]]
        self.assertGreater(len(names), 18)
        self.assertEqual([name for name in names if name not in self.lines], [])
        # An emulator is below the bars of a GPU; all else holds.
        failed = [name for name in names if not re.match(r"\S+ +ok ", self.lines[name])]
        self.assertLessEqual(set(failed), {"roofline", "e2e_verdict"}, self.text)
        self.assertIn("e2e_verdict", failed)
        self.assertRegex(self.lines["e2e_verdict"], r" FAILED .* the bar is 0\.60: BELOW")
        self.assertTrue(self.text.endswith(f"\n{len(failed)} phases failed\n"), self.text)
        self.assertEqual(self.code, 1)
        for name, said in {
            "machine": "NVIDIA emulated", "ceilings": "TFLOP/s by cuBLAS", "kernels": r"PASSED.* \d+ tests",
            "cases": r" 0 failed; 1\.0000 of all values have the emulator's bits", "ptx": "^.* 0 of [0-9]+ fields",
            "planted_memcheck": "exit status 9;", "planted_racecheck": "exit status 9;", "planted_initcheck": "exit status 9;",
            "memcheck": r"\d+ launches", "racecheck": r"\d+ launches", "roofline": r"\d+ lines, \d+ of \d+ with a bar",
            "counters": "0 mismatches", "answer": "the same answer, ", "nccl": "0 of 14 checks failed"}.items():
            self.assertRegex(self.lines[name], said)

    def test_its_files_hold_the_results(self):
        self.assertIn('"cublas": ""', self.read("ceilings.json"))
        kernels = self.read("kernels.tsv").splitlines()
        self.assertGreater(len(kernels), 80)
        self.assertGreater(len(self.read("roofline.tsv").splitlines()), 100)
        counters = self.read("counters.tsv")
        self.assertIn("\tok\n", counters)
        self.assertNotIn("OTHER GRID", counters)
        documents = [json.loads(line) for line in self.read("e2e.json").splitlines()]
        self.assertEqual(len(documents), 3)
        self.assertIn("rank 0's share of 8", documents[2]["service"]["note"])
        self.assertGreater(os.path.getsize(self.folder / "out/ptx.bin"), 1 << 20)

    def test_the_summary_is_its_last_output(self):
        self.assertTrue(self.text.endswith(self.read("summary.txt")), self.text)


if __name__ == "__main__":
    if "NCU" in os.environ:
        ncu(sys.argv[1:])
    else:
        case_report.main()
