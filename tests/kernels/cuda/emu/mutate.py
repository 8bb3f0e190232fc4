#!/usr/bin/env python3
"""Plants small faults in the CUDA kernels (mutants.py) and counts those that the kernels' own tests find.

The kernels are compiled once, with all mutants, and linked with the prebuilt rest (deploy/bazel/link_inputs.bzl): every
access checked, as in X_check_test, and shifts, indices and elements of local arrays, which the sanitizers check in X_test. The
program must pass without a mutant; that run also says which tests come by which mutant. Then each mutant has a process of its
own with those tests, the short ones first. A mutant that must be a constant is compiled alone, in one unit after another.

A mutant that no test finds is printed with its code: a test is missing, or it is equivalent and belongs in
equivalent_mutants.tsv with the reason.

usage: bazel build //tests/kernels/cuda/emu:mutation_test
       cd bazel-bin/tests/kernels/cuda/emu/mutation_test.runfiles/bitshard
       python3 tests/kernels/cuda/emu/mutate.py [--kernel=NAME] [--jobs=N] [--keep=FOLDER]
All mutants: about half an hour of one core. With --keep a run that was ended goes on where it was.
"""

import argparse
import concurrent.futures
import contextlib
import dataclasses
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile

import mutants

HERE = "tests/kernels/cuda/emu"
FLAGS = [
    "-std=c++20", "-O1", "-w", "-ffp-contract=off", "-fno-tree-sra", "-U_FORTIFY_SOURCE",
    # bounds-strict lets an element of a class one past the end be named; object-size lets no one read or write it.
    "-fsanitize=thread,bounds-strict,shift,object-size", "-fsanitize-undefined-trap-on-error",
    "--param=tsan-instrument-func-entry-exit=0",
    "-fno-aggressive-loop-optimizations",  # a mutant's loop must not end where its array does
]
SHORT_MS = 1000  # of tests that run first, together

# Of the report: the files whose names begin so.
GROUPS = [
    ("attention", ("attend", "attention")), ("KV append", ("kv_",)), ("linear", ("linear", "dequant")),
    ("norm and prepare", ("norm", "prepare")), ("others", ("",)),
]


@dataclasses.dataclass
class Test:
    name: str
    milliseconds: int
    reached: frozenset  # mutants' numbers


def _lines(path):
    with open(path, encoding="utf-8") as file:
        return [line for line in file.read().split("\n") if line]


def _write_whole(path, text):
    """At once: who ends in between leaves nothing."""
    with open(path + ".part", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(path + ".part", path)


class Kitchen:
    """Compiles units of kernels against an overlay, links them with the prebuilt rest, runs the tests."""

    def __init__(self, root, inputs, work):
        self.root = root
        self.work = work
        self.rest = _lines(inputs + ".link")
        self.includes = [f"-I{root}"]
        for folder in _lines(inputs + ".include"):
            self.includes += ["-isystem", folder]
        # Without a PATH the emulator finds no addr2line, which is slow: nobody reads where a mutant's faults are.
        self.environment = {**os.environ, "PATH": os.path.join(work, "empty")}

    def compile(self, unit, overlay):
        """(object, None) or (None, the compiler's words)."""
        stem = os.path.join(self.work, os.path.basename(overlay) + "." + os.path.basename(unit))
        with open(stem + ".cc", "w", encoding="utf-8") as file:
            file.write(f'#include "{unit}"\n')
        done = subprocess.run(["g++", *FLAGS, f"-I{overlay}", *self.includes, "-c", stem + ".cc", "-o", stem + ".o"],
                              capture_output=True, text=True, cwd=self.root, check=False)
        return (None, done.stderr or "the compiler died") if done.returncode else (stem + ".o", None)

    def link(self, objects, program):
        subprocess.run(["g++", *objects, "-Wl,--start-group", *self.rest, "-Wl,--end-group", "-pthread", "-ldl", "-lm",
                        "-o", program], cwd=self.root, check=True)

    def record(self, program, tests, jobs):
        """What those tests come by, without a mutant; `jobs` processes share them out."""
        def words(job):
            kept = f"{program}.record.{job}.of.{jobs}"
            if not os.path.exists(kept):
                done = subprocess.run([program, "--gtest_brief=1", f"--gtest_filter={tests}"], cwd=self.root, check=False,
                                      capture_output=True, text=True, errors="replace",
                                      env={**self.environment, "BITSHARD_MUTANT": "record",
                                           "GTEST_TOTAL_SHARDS": str(jobs), "GTEST_SHARD_INDEX": str(job)})
                if done.returncode:
                    sys.exit(f"the tests fail without any mutant (exit status {done.returncode}):\n"
                             f"{done.stdout[-4000:]}{done.stderr}")
                _write_whole(kept, done.stdout)
            with open(kept, encoding="utf-8") as file:
                return file.read()

        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            lines = re.findall(r"^record (\w+) (\S+) (\d+)(.*)$", "\n".join(pool.map(words, range(jobs))), re.MULTILINE)
        recorded = [Test(name, int(milliseconds), frozenset(map(int, numbers.split())))
                    for how, name, milliseconds, numbers in lines if how == "passed"]
        if not recorded:
            sys.exit(f"no test passes of --tests={tests}")
        return recorded

    def run(self, program, number, tests):
        """What went wrong, or None when they pass."""
        seconds = 10 + 5 * sum(test.milliseconds for test in tests) // 1000  # of CPU: other programs do not count
        command = ["/bin/sh", "-c", 'ulimit -t "$0"; exec "$@"', str(seconds), program, "--gtest_brief=1",
                   "--gtest_fail_fast", "--gtest_filter=" + ":".join(test.name for test in tests)]
        try:
            done = subprocess.run(command, cwd=self.root, capture_output=True, text=True, errors="replace",
                                  env={**self.environment, "BITSHARD_MUTANT": str(number)}, timeout=60 * seconds, check=False)
        except subprocess.TimeoutExpired:
            return "no end"
        if done.returncode == 0:
            return None
        if done.returncode < 0:
            name = {4: "sanitizer", 9: "no end", 24: "no end"}  # SIGILL is its trap; the limit kills or warns
            return name.get(-done.returncode, f"signal {-done.returncode}")
        kinds = re.findall(r"^([a-z ]+) in \S.* at ", done.stdout, re.MULTILINE)
        return ", ".join(sorted(set(kinds))) or "wrong results"

    def try_tests(self, program, number, tests):
        """The same, the short tests before the others."""
        tests = sorted(tests, key=lambda test: test.milliseconds)
        short, spent = [], 0
        for test in tests:
            spent += test.milliseconds
            if short and spent > SHORT_MS:
                break
            short.append(test)
        outcome = self.run(program, number, short) if short else None
        return outcome or (self.run(program, number, tests[len(short):]) if tests[len(short):] else None)


def build_switched(kitchen, units, wanted, jobs):
    """One program with all of `wanted` that can be chosen at run time, and those that turn out to want constants."""
    overlay, program = os.path.join(kitchen.work, "all"), os.path.join(kitchen.work, "tests")
    late, late_numbers = [], program + ".constants"  # written when all is linked
    if os.path.exists(late_numbers):
        numbers = set(_lines(late_numbers))
        return program, [dataclasses.replace(mutant, constant=True) for mutant in wanted if str(mutant.number) in numbers]
    for _ in range(5):
        shutil.rmtree(overlay, ignore_errors=True)
        mutants.write_overlay(kitchen.root, overlay, [mutant for mutant in wanted if mutant not in late])
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            made = list(pool.map(lambda unit: kitchen.compile(unit, overlay), units))
        errors = "".join(error for _, error in made if error)
        if not errors:
            kitchen.link([made_object for made_object, _ in made], program)
            _write_whole(late_numbers, "".join(f"{mutant.number}\n" for mutant in late))
            return program, [dataclasses.replace(mutant, constant=True) for mutant in late]
        lines = {(path, int(line)) for path, line in re.findall(r"^(\S+):(\d+):\d+: error:", errors, re.MULTILINE)}
        more = [mutant for mutant in wanted if (mutant.path, mutant.line) in lines and mutant not in late]
        if not more:
            break
        late += more
    sys.exit(f"the kernels do not compile with mutants:\n{errors[:4000]}")


def try_constant(kitchen, units, mutant, tests):
    """As Kitchen.run, of a mutant compiled alone; "does not compile" if it does so nowhere."""
    compiles = False
    for unit in units:
        overlay = os.path.join(kitchen.work, f"mutant{mutant.number}")
        mutants.write_overlay(kitchen.root, overlay, [mutant])
        made, _ = kitchen.compile(unit, overlay)
        if not made:
            continue
        compiles = True
        program = os.path.join(kitchen.work, f"tests{mutant.number}")
        kitchen.link([made], program)
        outcome = kitchen.try_tests(program, 0, tests)
        os.remove(program)
        if outcome:
            return outcome
    return None if compiles else "does not compile"


def drawn(candidates, count, seed):
    """By a hash of each alone, so that a change of other code changes few."""
    def rank(mutant):
        return hashlib.sha256(f"{seed} {mutant.path} {mutant.kind} {mutant.code[-100:]}".encode()).digest()
    return sorted(candidates, key=rank)[:count]


def kernel_of(mutant):
    name = os.path.basename(mutant.path)
    return next(kernel for kernel, begins in GROUPS if name.startswith(begins))


def report(outcomes, equivalent):
    """Prints a line a kernel; (found, tried) of all. `outcomes`: (mutant, what found it or None); `equivalent`: mutants."""
    rows = {name: [0, 0, 0] for name, _ in GROUPS}
    for mutant, outcome in outcomes:
        if outcome != "does not compile":
            rows[kernel_of(mutant)][0] += outcome is not None
            rows[kernel_of(mutant)][1] += 1
    for mutant in equivalent:
        rows[kernel_of(mutant)][2] += 1
    rows["all"] = [sum(column) for column in zip(*rows.values())]
    for name, (found, tried, besides) in rows.items():
        if tried:
            print(f"{name}: {found} of {tried} mutants found, {100 * found / tried:.1f} %; {besides} equivalent ones besides")
    return rows["all"][0], rows["all"][1]


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", default=f"{HERE}/mutants", help="what the rule link_inputs has written")
    parser.add_argument("--kernel", default="", help="only places, as norm.cu:12:, that have this in them; or one of several, as sample,norm")
    parser.add_argument("--units", default="", help="only these .cu, as add,norm; what no test reaches in them is left out")
    parser.add_argument("--tests", default="*", help="only these, as --gtest_filter")
    parser.add_argument("--sample", type=int, default=0, help="so many of those chosen at run time, drawn by --seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--equivalent", action="store_true", help="those of the table instead: no test may find one")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--keep", default="", help="a folder that keeps what is compiled and found, for a run that is ended")
    parser.add_argument("--list", action="store_true", help="print the mutants and stop")
    return parser.parse_args(argv)


def choose(arguments, root):
    """(mutants to try, those of the table, units to compile -> the files in each)."""
    everything = mutants.find_mutants(root)
    equivalent = mutants.equivalent_mutants(f"{HERE}/equivalent_mutants.tsv", everything)
    units = [name for name in sorted(os.listdir(os.path.join(root, mutants.KERNELS))) if name.endswith(".cu")]
    if arguments.units:
        units = [f"{name}.cu" for name in arguments.units.split(",")]
    files = {unit: mutants.includes_of(root, unit) for unit in (f"{mutants.KERNELS}/{name}" for name in units)}
    everything = [mutant for mutant in everything
                  if any(name in f"{os.path.basename(mutant.path)}:{mutant.line}:" for name in arguments.kernel.split(",")) and
                  any(mutant.path in of_unit for of_unit in files.values())]
    listed = [mutant for mutant in everything if mutant.number in equivalent]
    wanted = listed if arguments.equivalent else [mutant for mutant in everything if mutant.number not in equivalent]
    if not wanted:
        sys.exit(f"no mutants in {root}/{mutants.KERNELS} for --kernel={arguments.kernel} --units={arguments.units}: "
                 "run from the root")
    paths = {mutant.path for mutant in wanted}
    return wanted, listed, {unit: of_unit for unit, of_unit in files.items() if paths & of_unit}


class Outcomes:
    """What was found so far, by the mutants' numbers; also in a file, for the next run."""

    def __init__(self, path):
        self.file = open(path, "a+", encoding="utf-8")  # pylint: disable=consider-using-with
        self.file.seek(0)
        self.of = {}
        whole = 0
        for line in self.file.read().splitlines(keepends=True):
            if not line.endswith("\n"):  # the run was ended while it wrote
                self.file.truncate(whole)
                break
            whole += len(line.encode())
            number, outcome = line.rstrip("\n").split("\t")
            self.of[int(number)] = outcome or None

    def add(self, mutant, outcome):
        if mutant.number in self.of:
            return
        self.of[mutant.number] = outcome
        self.file.write(f"{mutant.number}\t{outcome or ''}\n")
        self.file.flush()


def kept_folder(keep, root, inputs, wanted, tests):
    """Of runs with the same sources, tests and wishes."""
    digest = hashlib.sha256(f"{tests} {[(mutant.path, mutant.begin, mutant.change) for mutant in wanted]}".encode())
    # Headers of other folders too, and what makes the mutants.
    for folder, _, names in sorted(os.walk(os.path.join(root, os.path.dirname(mutants.KERNELS)))):
        for name in sorted(names):
            with open(os.path.join(folder, name), "rb") as file:
                digest.update(file.read())
    for path in (__file__, mutants.__file__):
        with open(path, "rb") as file:
            digest.update(file.read())
    for path in _lines(inputs + ".link"):
        if os.path.exists(path):
            digest.update(f"{path} {os.stat(path).st_size} {os.stat(path).st_mtime_ns}".encode())
    folder = os.path.join(os.path.abspath(keep), digest.hexdigest()[:16])
    os.makedirs(folder, exist_ok=True)
    return folder


def main(argv=None):
    """(found, tried), without the equivalent ones."""
    arguments = parse(argv)
    root = os.getcwd()
    wanted, listed, units = choose(arguments, root)
    if arguments.list:
        for mutant in wanted:
            print(f"{mutant.place()}{': a constant' if mutant.constant else ''}")
        print(f"{len(wanted)} mutants, {sum(mutant.constant for mutant in wanted)} of them constants")
        return 0, 0

    with contextlib.ExitStack() as until_end:
        if arguments.keep:
            work = kept_folder(arguments.keep, root, arguments.inputs, wanted, arguments.tests)
        else:
            work = until_end.enter_context(tempfile.TemporaryDirectory())
        found = Outcomes(os.path.join(work, "outcomes"))
        until_end.enter_context(found.file)
        kitchen = Kitchen(root, arguments.inputs, work)
        switched = [mutant for mutant in wanted if not mutant.constant]
        program, late = build_switched(kitchen, list(units), switched, arguments.jobs)
        constants = [mutant for mutant in wanted if mutant.constant] + late
        late = {mutant.number for mutant in late}
        switched = [mutant for mutant in switched if mutant.number not in late]
        tests = kitchen.record(program, arguments.tests, arguments.jobs)
        print(f"{len(tests)} tests, {sum(test.milliseconds for test in tests) / 1000:.1f} s, {len(units)} units, "
              f"{len(switched)} mutants chosen at run time, {len(constants)} compiled alone", flush=True)
        reaching = {mutant.number: [test for test in tests if mutant.number in test.reached] for mutant in switched}
        if arguments.sample or arguments.units:
            switched = [mutant for mutant in switched if reaching[mutant.number]]
        if arguments.sample:
            switched, constants = drawn(switched, arguments.sample, arguments.seed), []

        def try_one(mutant):
            if mutant.number in found.of:
                outcome = found.of[mutant.number]
            elif mutant.constant:
                of_file = {other.number for other in switched if other.path == mutant.path}
                near = [test for test in tests if of_file & test.reached] or tests
                outcome = try_constant(kitchen, [unit for unit in units if mutant.path in units[unit]], mutant, near)
            else:
                outcome = kitchen.try_tests(program, mutant.number, reaching[mutant.number])
            found.add(mutant, outcome)
            missed = "NOT FOUND" if mutant.constant or reaching[mutant.number] else "NEVER REACHED"
            print(f"{mutant.place()}: {outcome or missed + ': ' + mutant.code[-120:]}", flush=True)
            return mutant, outcome

        with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
            outcomes = list(pool.map(try_one, switched + constants))
    return report(outcomes, [] if arguments.equivalent or arguments.sample else listed)


if __name__ == "__main__":
    main()
