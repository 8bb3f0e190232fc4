#!/usr/bin/env python3
"""Which weight widths fit under the memory roof of which card, from the code of the real kernels.

usage, from the root of the repository, after `bazel build //tests/bars:kernel_figures`:  python3 tests/bars/issue_slots.py

Method. In the loop of a linear kernel that does the tensor-core work (kernel_figures.py finds it in the disassembly) every
mma.m16n8k16 takes 8 weights a thread, the same for each tile of 8 tokens: weights = 8 x mma / tiles. Instructions of the
shortest way round that leaves out no mma and no load of weights or activations: the inside of a weight group. Closing a group
(its scales, y = fma(acc, s, y)), of all row tiles of the warp, is the shortest way with the fewest FFMA that are not none; with
groups of 128 columns every eighth run of 16 pays it.

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

# name, GB/s, SMs, GHz, f16 multiply-adds a clock and SM by mma.sync with f32 sums, architecture of the code it runs.
# Data sheets at boost clock; the Hopper mma.sync rate is 62 % of wgmma's.
CARDS = [
    ("A100 80 GB", 2039, 108, 1.41, 1024, "sm_80"),
    ("H100 SXM", 3350, 132, 1.755, 1270, "sm_90a"),
    ("H200", 4800, 132, 1.755, 1270, "sm_90a"),
    ("L40S", 864, 142, 2.52, 512, "sm_80"),
    ("RTX 4090", 1008, 128, 2.52, 256, "sm_80"),
]
ISSUE_SLOTS = 128
ALU_SLOTS = 64
EVERYDAY = 0.9  # of the DRAM peak
GROUP_RUNS = 128 // 16
# Scales of 16 bits, integers; groups of whole tiles. 8 tokens and row tiles of a warp.
LINEAR = re.compile(r"^LinearTilesKernel<IntWeights<(?P<bits>\d+), true>, (?P<tiles>\d+), (?P<rows>\d+), true>$")


def loops(figures):
    """[(architecture, (bits, tiles, row tiles), instructions a weight, integer instructions a weight)]"""
    found = []
    for (_, kernel, architecture), row in sorted(figures.items()):
        match = LINEAR.match(kernel)
        if match and row["loop_hmma"]:
            bits, tiles, rows = (int(match[name]) for name in ("bits", "tiles", "rows"))
            runs = row["loop_hmma"] / tiles
            groups = runs / rows / GROUP_RUNS
            found.append((architecture, (bits, tiles, rows),
                          (row["loop_instructions"] + row["loop_closing"] * groups) / (8 * runs),
                          (row["loop_alu"] + (row["loop_closing"] - 4 * tiles * rows) * groups) / (8 * runs)))
    return found


def shares(card, bits, tiles, instructions, alu):
    """Shares of the issue slots, of the integer pipe and of mma at the DRAM peak; 1 = all of it."""
    _, gigabytes, sms, gigahertz, multiply_adds, _ = card
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
        bits, tiles, rows = kernel
        of = {architecture: (bits, tiles, instructions, alu) for architecture, other, instructions, alu in found
              if other == kernel}
        cells = [f"W{bits}, {8 * tiles}, {rows}"]
        cells += [f"{of[a][2]:.2f}, {of[a][3]:.2f}" if a in of else "-" for a in ("sm_80", "sm_90a")]
        for card in CARDS:
            if card[5] not in of:
                cells.append("-")
                continue
            share, whose = max(zip(shares(card, *of[card[5]]), ("issue", "integer", "mma")))
            cells.append(f"{100 * share:.0f} {whose}{verdict(share)}")
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
