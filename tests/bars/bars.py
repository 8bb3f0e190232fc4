#!/usr/bin/env python3
"""The bars: tests/bars/kernels.tsv says what the real compiler made of each kernel, and it may only get better.

usage, from the root of the repository, after `bazel build //tests/bars:kernel_figures`:
  python3 tests/bars/bars.py                 what is worse than the table, what is better, what is new
  python3 tests/bars/bars.py --update        writes the table; refuses while something is worse
  python3 tests/bars/bars.py --update --allow-worse   writes it all the same: the diff is what a reviewer reads

The table holds for the compiler that its first line names. Whatever the compiler, no kernel may spill or use local memory
but those that the table says do.
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import kernel_figures  # noqa: E402

TABLE = "tests/bars/kernels.tsv"
FIGURES = "bazel-bin/tests/bars/kernel_figures.tsv"
KEY = ("source", "kernel", "architecture")
LESS_IS_BETTER = ("registers", "stack_bytes", "spill_bytes", "shared_bytes", "instructions", "ldg_narrow", "local",
                  "loop_instructions")
# Tensor-core, matrix-load, asynchronous and 16-byte instructions: fewer of them means that the compiler took another way.
# Without its preexit a kernel still counts right, but the next one no longer begins early.
MORE_IS_BETTER = ("ldg128", "hmma", "imma", "ldsm", "ldgsts", "preexit")
MUST_BE_ZERO = ("spill_bytes", "local")
ARCHITECTURES = ("sm_80", "sm_90a")  # of the table: those that every build compiles


class NoCompiler(Exception):
    """There are no figures; the message says why."""


def read(text):
    """(compiler's version, {(source, kernel, architecture): {column: number}}) of a table or of figures."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    words = lines[0].split("\t") if lines else ["none", "the file is empty"]
    if words[0] == "none":
        raise NoCompiler(words[1])
    if words[0] != "nvcc":
        raise ValueError(f"the first line names no compiler: {lines[0]}")
    rows = {}
    for line in lines[1:]:
        cells = dict(zip(kernel_figures.COLUMNS, line.split("\t"), strict=True))
        key = tuple(cells.pop(name) for name in KEY)
        if key in rows:
            raise ValueError(f"two lines of {' '.join(key)}")
        rows[key] = {name: int(cell) for name, cell in cells.items()}
    return words[1], rows


def write(version, rows):
    head = ("# What nvcc made of each kernel; see bars.py, which reads and writes this file.\n"
            "# " + " ".join(kernel_figures.COLUMNS) + "\n" + f"nvcc\t{version}\n")
    return head + "".join("\t".join(list(key) + [str(row[name]) for name in kernel_figures.COLUMNS[len(KEY):]]) + "\n"
                          for key, row in sorted(rows.items()) if key[2] in ARCHITECTURES)


def _differences(bars, figures, is_worse):
    for key, bar in sorted(bars.items()):
        for name, value in figures.get(key, {}).items():
            sign = 1 if name in LESS_IS_BETTER else -1 if name in MORE_IS_BETTER else 0
            if sign * (value - bar[name]) * (1 if is_worse else -1) > 0:
                yield f"{' '.join(key)}: {name} {value}, the bar is {bar[name]}"


def worse(bars, figures):
    return list(_differences(bars, figures, True))


def better(bars, figures):
    return list(_differences(bars, figures, False))


def missing(bars, figures):
    """Kernels that are on one side only."""
    gone = [f"{' '.join(key)}: in the table, not in the code" for key in sorted(bars) if key not in figures]
    new = [f"{' '.join(key)}: not in the table" for key in sorted(figures)
           if key not in bars and key[2] in ARCHITECTURES]
    return gone + new


def spilling(bars, figures):
    """Of kernels that the table does not know to."""
    return [f"{' '.join(key)}: {name} {row[name]}" for key, row in sorted(figures.items()) for name in MUST_BE_ZERO
            if row[name] and not bars.get(key, {}).get(name)]


def main(arguments):
    if set(arguments) - {"--update", "--allow-worse"}:
        sys.exit(__doc__)
    with open(FIGURES, encoding="utf-8") as file:
        version, figures = read(file.read())
    bars = {}
    if os.path.exists(TABLE):
        with open(TABLE, encoding="utf-8") as file:
            table_version, bars = read(file.read())
        if table_version != version:
            print(f"the table is nvcc {table_version}'s, this is {version}: all its bars are new")
            bars = {}
    bad = sorted(set(worse(bars, figures)) | set(spilling(bars, figures)))
    for title, lines in (("WORSE", bad), ("better", better(bars, figures)), ("changed", missing(bars, figures))):
        for line in lines:
            print(f"{title}: {line}")
    print(f"{len(figures)} kernels, {len(bad)} figures worse than the table")
    if "--update" not in arguments:
        return 1 if bad else 0
    if bad and "--allow-worse" not in arguments:
        print("not written: the table is only allowed to improve (--allow-worse writes it all the same)")
        return 1
    with open(TABLE, "w", encoding="utf-8") as file:
        file.write(write(version, figures))
    print(f"{TABLE} written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
