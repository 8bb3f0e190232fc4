#!/usr/bin/env python3
"""Which weight widths fit under the memory roof of which card, from the code of the real kernels.

usage, from the root of the repository, after `bazel build //tests/bars:kernel_figures`:  python3 tests/bars/issue_slots.py

Method. In the loop of a linear kernel that does the tensor-core work (kernel_figures.py finds it in the disassembly) every
mma.m16n8k16 takes 8 weights a thread, the same for each tile of 8 tokens: weights = 8 x mma / tiles. Instructions of the
shortest way round that leaves out no mma and no load of weights or activations: the inside of a weight group. Closing a group
(its scales, y = fma(acc, s, y)), of all row tiles of the warp, is the shortest way with the fewest FFMA that are not none; with
groups of 128 columns every eighth run of 16 pays it.

The loop that looks at each run of 16 ("any") serves all that is not whole tiles in groups of multiples of 64 columns: segments
of row-parallel matrices (whose integer sums at a segment's end are left out here) and groups of 32. It is shown for 8 tokens.

With int8 activations (A8) an mma.m16n8k32 takes 16 weights a thread, and an activation group of 32 columns is one: each of its
sums is a term of a chain over all of K, so that the way round with all terms is what every 32 columns pay. Here integer is the
inside alone. The kernel takes 16 tokens at once at the most.

Against it stands the budget: an SM issues 128 thread instructions a clock, and DRAM at its peak delivers so many weights a
clock. Integer and logic instructions have half as many slots (those of closing a group are counted as integer but for its FFMA, 4
for each row tile and 8 tokens), mma its own rate. The largest of the three shares counts; a kernel that reads at 90 % of the peak, as good ones do, needs 90 % of it. What the
loop does not show (waiting, the tail, the launch) is not in these figures: they say what cannot be, not what will be.
"""

import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import bars  # noqa: E402

# name, GB/s, SMs, GHz, multiply-adds a clock and SM by mma.sync (f16 with f32 sums, int8), architecture of the code it runs.
# Data sheets at boost clock; the Hopper mma.sync rate is 62 % of wgmma's.
CARDS = [
    ("A100 80 GB", 2039, 108, 1.41, (1024, 2048), "sm_80"),
    ("H100 SXM", 3350, 132, 1.755, (1270, 2540), "sm_90a"),
    ("H200", 4800, 132, 1.755, (1270, 2540), "sm_90a"),
    ("L40S", 864, 142, 2.52, (512, 1024), "sm_80"),
    ("RTX 4090", 1008, 128, 2.52, (256, 1024), "sm_80"),
]
ISSUE_SLOTS = 128
ALU_SLOTS = 64
EVERYDAY = 0.9  # of the DRAM peak
RUN_COLUMNS = 16
# Scales of 16 bits, integers; 8 tokens and row tiles of a warp; groups of whole tiles, or any.
LINEAR = re.compile(r"^LinearTilesKernel<IntWeights<(?P<bits>\d+), true>, (?P<tiles>\d+), (?P<rows>\d+), (?P<whole>true|false)>$")
# Int8 activations; weight groups of whole activation groups.
LINEAR_A8 = re.compile(r"^LinearA8SplitKernel<(?P<bits>\d+), (?P<tiles>\d+), true>$")


def loops(figures):
    """[(architecture, (loop, bits, columns of a group, tiles, row tiles), instructions a weight, integer instructions a weight)]"""
    found = []
    for (_, kernel, architecture), row in sorted(figures.items()):
        match = LINEAR_A8.match(kernel)
        if match and row["loop_imma"]:
            bits, tiles = (int(match[name]) for name in ("bits", "tiles"))
            weights = 16 * row["loop_imma"] / tiles
            found.append((architecture, ("A8", bits, 32, tiles, 1), (row["loop_instructions"] + row["loop_closing"]) / weights,
                          row["loop_alu"] / weights))
        match = LINEAR.match(kernel)
        if match and row["loop_hmma"]:
            bits, tiles, rows = (int(match[name]) for name in ("bits", "tiles", "rows"))
            runs = row["loop_hmma"] / tiles
            whole = match["whole"] == "true"
            if not whole and tiles > 1:
                continue
            for columns in (128,) if whole else (64, 32):
                groups = runs / rows * RUN_COLUMNS / columns
                found.append((architecture, ("" if whole else "any", bits, columns, tiles, rows),
                              (row["loop_instructions"] + row["loop_closing"] * groups) / (8 * runs),
                              (row["loop_alu"] + (row["loop_closing"] - 4 * tiles * rows) * groups) / (8 * runs)))
    return found


def shares(card, loop, bits, tiles, instructions, alu):
    """Shares of the issue slots, of the integer pipe and of mma at the DRAM peak; 1 = all of it."""
    _, gigabytes, sms, gigahertz, rates, _ = card
    multiply_adds = rates[loop == "A8"]
    weights = gigabytes / (sms * gigahertz) * 8 / bits  # a clock and SM
    return weights * instructions / ISSUE_SLOTS, weights * alu / ALU_SLOTS, weights * 8 * tiles / multiply_adds


def verdict(share):
    """Which part of the DRAM peak the instructions let through."""
    if share <= 1:
        return ""
    return " (at 90 %)" if share * EVERYDAY <= 1 else f" **roof {100 / share:.0f} %**"


def main():
    with open(bars.FIGURES, encoding="utf-8") as file:
        version, figures = bars.read(file.read())
    found = loops(figures)
    if not found:
        sys.exit(f"no kernel of {bars.FIGURES} is named like {LINEAR.pattern}")
    print(f"nvcc {version}: instructions a weight, of which integer; then for each card the largest share in % and whose it is\n")
    print("| weights, tokens, row tiles a warp | sm_80 | sm_90a | " + " | ".join(card[0] for card in CARDS) + " |")
    print("|---" * (3 + len(CARDS)) + "|")
    for kernel in sorted({kernel for _, kernel, _, _ in found}):
        loop, bits, columns, tiles, rows = kernel
        of = {architecture: (loop, bits, tiles, instructions, alu) for architecture, other, instructions, alu in found
              if other == kernel}
        label = f"W{bits} any, groups of {columns}" if loop == "any" else f"W{bits}{loop}"
        cells = [f"{label}, {8 * tiles}, {rows}"]
        cells += [f"{of[a][3]:.2f}, {of[a][4]:.2f}" if a in of else "-" for a in ("sm_80", "sm_90a")]
        for card in CARDS:
            if card[5] not in of:
                cells.append("-")
                continue
            share, whose = max(zip(shares(card, *of[card[5]]), ("issue", "integer", "mma")))
            cells.append(f"{100 * share:.0f} {whose}{verdict(share)}")
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
