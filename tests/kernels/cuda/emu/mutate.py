#!/usr/bin/env python3
"""Plants small faults in the CUDA kernels and counts how many the kernels' own tests find in check mode.

For each mutant one .cu is compiled and linked with the prebuilt rest (deploy/bazel/link_inputs.bzl); the tests whose suite
has a word of the file's name run first, then all. A mutant that no test finds is printed with its line: either it is
equivalent, or a test is missing.

usage: bazel build //tests/kernels/cuda/emu:mutation_test
       cd bazel-bin/tests/kernels/cuda/emu/mutation_test.runfiles/bitshard
       python3 tests/kernels/cuda/emu/mutate.py [--sample=N] [--seed=S] [--kernel=NAME] [--list]
Without --sample all of them, which takes an hour or more.
"""

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time

KERNELS = "kernels/cuda"
CHECK_FLAGS = [
    "-std=c++20", "-O1", "-g1", "-gdwarf-4", "-w", "-ffp-contract=off", "-fno-tree-sra", "-fsanitize=thread",
    "--param=tsan-instrument-func-entry-exit=0", "-U_FORTIFY_SOURCE",
]

# kind, what to replace, by what
MUTATIONS = [
    ("drop barrier", r"__syncthreads\(\);", ""),
    ("drop warp barrier", r"__syncwarp\(\);", ""),
    ("drop release", r"GridRelease\(\);", ""),
    ("drop acquire", r"GridAcquire\(\);", ""),
    ("drop dependency wait", r"GridDependencyWait\(\);", ""),
    ("drop copy commit", r"CpAsyncCommit\(\);", ";"),
    ("weaken copy wait", r"CpAsyncWait<(\d)>\(\);", lambda m: f"CpAsyncWait<{int(m.group(1)) + 1}>();"),
    ("loop < to <=", r"(for \([^;]*;[^;<]*) < ([^;]*;)", r"\1 <= \2"),
    ("loop from 1", r"for \((\w+) (\w+) = 0;", r"for (\1 \2 = 1;"),
    ("halve stride", r"\+= (4|8|16|32|64|128|256|k\w+|blockDim\.x)\b(?=\))", r"+= (\1) / 2"),
    ("drop lane guard", r"if \((lane|t|thread|warp|threadIdx\.x) == 0\)", "if (true)"),
    ("drop row guard", r"if \([^()]*>= [^()]*\) return;", ""),
    ("buffer index", r"& 1\b|% 2\b", lambda m: m.group(0)[0] + (" 0" if m.group(0)[0] == "&" else " 1")),
    ("fragment index", r"\b(lane|t) (% 4|/ 4|% 8|/ 8|& 3|& 7|>> 2|>> 3)(?!\d)",
     lambda m: m.group(1) + " " + {"% 4": "% 2", "/ 4": "/ 8", "% 8": "% 4", "/ 8": "/ 4", "& 3": "& 1", "& 7": "& 3",
                                  ">> 2": ">> 3", ">> 3": ">> 2"}[m.group(2)]),
    ("drop rescale", r"fmaf\((\w+), [\w.]+,", r"fmaf(\1, 1.0f,"),
    ("off by one", r"(?<=[\w)\]]) [+-] 1\b(?!\.)", ""),
]


def find_mutants(root):
    """(kind, path, line number, mutated text) of every place where a mutation applies, in a fixed order."""
    mutants = []
    for name in sorted(os.listdir(os.path.join(root, KERNELS))):
        if not name.endswith((".cu", ".cuh")):
            continue
        path = f"{KERNELS}/{name}"
        with open(os.path.join(root, path), encoding="utf-8") as file:
            lines = file.read().split("\n")
        for number, line in enumerate(lines, 1):
            code = line.split("//")[0]
            if not code.strip() or code.lstrip().startswith(("#", "static_assert")):
                continue
            for kind, pattern, replacement in MUTATIONS:
                for match in re.finditer(pattern, code):
                    changed = code[:match.start()] + match.expand(replacement) if isinstance(replacement, str) else \
                        code[:match.start()] + replacement(match)
                    text = "\n".join(lines[:number - 1] + [changed + code[match.end():]] + lines[number:])
                    mutants.append((kind, path, number, text))
    return mutants


def includes_of(root, path, seen=None):
    """All files of the kernels' room that `path` includes, itself too."""
    seen = set() if seen is None else seen
    if path not in seen and os.path.exists(os.path.join(root, path)):
        seen.add(path)
        with open(os.path.join(root, path), encoding="utf-8") as file:
            for name in re.findall(r'#include "(kernels/cuda/[^"]*)"', file.read()):
                includes_of(root, name, seen)
    return seen


def _lines(path):
    with open(path, encoding="utf-8") as file:
        return [line for line in file.read().split("\n") if line]


class Runner:
    """Compiles a .cu against an overlay of mutated files, links, runs."""

    def __init__(self, root, inputs, work):
        self.root = root
        self.work = work
        self.link = _lines(inputs + ".link")
        self.includes = [f"-I{root}"]
        for folder in _lines(inputs + ".include"):
            self.includes += ["-isystem", folder]
        self.program = os.path.join(work, "tests")
        self.suites = []

    def build(self, unit, mutated=None):
        """None, or the compiler's first error. `unit` is the .cu; `mutated` is (path, text)."""
        overlay = os.path.join(self.work, "overlay")
        shutil.rmtree(overlay, ignore_errors=True)
        os.makedirs(os.path.join(overlay, KERNELS))
        if mutated:
            with open(os.path.join(overlay, mutated[0]), "w", encoding="utf-8") as file:
                file.write(mutated[1])
        source, made = os.path.join(self.work, "unit.cc"), os.path.join(self.work, "unit.o")
        with open(source, "w", encoding="utf-8") as file:
            file.write(f'#include "{unit}"\n')
        compiled = subprocess.run(["g++", *CHECK_FLAGS, f"-I{overlay}", *self.includes, "-c", source, "-o", made],
                                  capture_output=True, text=True, cwd=self.root, check=False)
        if compiled.returncode:
            return (re.findall(r".*error:.*", compiled.stderr) or ["compiler died"])[0]
        linked = subprocess.run(
            ["g++", made, "-Wl,--start-group", *self.link, "-Wl,--end-group", "-pthread", "-ldl", "-lm", "-o", self.program],
            cwd=self.root, capture_output=True, text=True, check=False)
        return linked.stderr[-2000:] if linked.returncode else None

    def list_suites(self):
        out = subprocess.run([self.program, "--gtest_list_tests"], capture_output=True, text=True, check=True).stdout
        self.suites = [line.split(".")[0].strip() for line in out.split("\n") if line and not line.startswith((" ", "Running"))]

    def run(self, suites, timeout):
        """What went wrong, or None when all tests pass."""
        command = [self.program, "--gtest_fail_fast", "--gtest_brief=1"]
        if suites:
            command.append("--gtest_filter=" + ":".join(f"{suite}.*" for suite in suites))
        try:
            result = subprocess.run(command, cwd=self.root, capture_output=True, text=True, errors="replace",
                                    timeout=timeout, check=False)
        except subprocess.TimeoutExpired:
            return "no end"
        if result.returncode == 0:
            return None
        if result.returncode < 0:
            return f"signal {-result.returncode}"
        kinds = re.findall(r"^([a-z ]+) in .* at \S+: ", result.stdout, re.MULTILINE)
        return ", ".join(sorted(set(kinds))) or "wrong results"

    def suites_for(self, unit):
        """The suites that have a word of the file's name in theirs."""
        words = [word for word in re.split(r"[_.]", os.path.basename(unit)) if len(word) > 2]
        return [suite for suite in self.suites if any(word in suite.lower() for word in words)]


def main(argv=None):
    """The number of mutants tried and found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", default="tests/kernels/cuda/emu/mutants", help="what the rule link_inputs has written")
    parser.add_argument("--sample", type=int, default=0, help="so many mutants, drawn by --seed; 0: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kernel", default="", help="only files whose name has this in it")
    parser.add_argument("--list", action="store_true", help="print the mutants and stop")
    arguments = parser.parse_args(argv)

    root = os.getcwd()
    mutants = [mutant for mutant in find_mutants(root) if arguments.kernel in os.path.basename(mutant[1])]
    if not mutants:
        sys.exit(f"no mutants in {root}/{KERNELS} for --kernel={arguments.kernel}: run from the root")
    if arguments.list:
        for kind, path, number, _ in mutants:
            print(f"{path}:{number}: {kind}")
        print(f"{len(mutants)} mutants")
        return 0, 0
    draw = random.Random(arguments.seed)
    if arguments.sample:
        draw.shuffle(mutants)
    units = sorted(f"{KERNELS}/{name}" for name in os.listdir(os.path.join(root, KERNELS)) if name.endswith(".cu"))

    with tempfile.TemporaryDirectory() as work:
        runner = Runner(root, arguments.inputs, work)
        error = runner.build(units[0])
        if error:
            sys.exit(f"the kernels do not build as they are: {error}")
        runner.list_suites()
        started = time.monotonic()
        error = runner.run([], None)
        if error:
            sys.exit(f"the tests fail without any mutant: {error}")
        patience = 10 * (time.monotonic() - started) + 30

        found = tried = skipped = 0
        for kind, path, number, text in mutants:
            if arguments.sample and tried == arguments.sample:
                break
            with_it = [unit for unit in units if path in includes_of(root, unit)]
            unit = draw.choice(with_it) if with_it else None
            if unit is None or runner.build(unit, (path, text)):
                skipped += 1  # does not compile, or nobody includes it
                continue
            tried += 1
            suites = runner.suites_for(unit)
            outcome = (runner.run(suites, patience) if suites else None) or runner.run([], patience)
            found += outcome is not None
            print(f"{path}:{number}: {kind}: {outcome or 'NOT FOUND'}", flush=True)
    print(f"{found} of {tried} mutants found, {skipped} do not compile")
    return tried, found


if __name__ == "__main__":
    main()
