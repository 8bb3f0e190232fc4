"""The table of against_llama_cpp.sh: medians, ratios, and whether the gates hold."""

import statistics

# Row -> (gate against the peer's default, gate against its best, aim in words). None: no gate of that kind.
GATES = {
    "decode, context 0": (None, 2.0, "2.8x"),
    "prefill 512": (None, 3.0, "4.7x"),
    "decode at 2,048": (4.0, 1.6, "7x default"),
    "16 concurrent": (None, 4.0, "5.6x"),
}
A8_AIM = "8.7x"  # of the prefill row with 8-bit activations; its gate is the same
TWO_WORKERS_GATE, TWO_WORKERS_AIM = 1.6, "1.8x"
HEAD = ("work", "llama.cpp default", "its best", "setting", "bitshard", "x default", "x best", "gate", "aim", "result",
        "of read peak", "of int peak")


def median(samples):
    return statistics.median(samples) if samples else None


def best_setting(samples):
    """(name, median) of the fastest of {setting: [figure]}."""
    medians = {name: median(values) for name, values in samples.items() if values}
    name = max(medians, key=medians.get)
    return name, medians[name]


def verdict(ratio_default, ratio_best, gates, binding):
    """PASS or MISS; where the gates do not bind (no AVX-512 VNNI) only what it would be."""
    missed = any(gate is not None and ratio < gate
                 for ratio, gate in ((ratio_default, gates[0]), (ratio_best, gates[1])))
    word = "MISS" if missed else "PASS"
    return word if binding else f"({word.lower()})"


def gate_text(gates):
    parts = []
    if gates[0] is not None:
        parts.append(f"{gates[0]:g}x default")
    if gates[1] is not None:
        parts.append(f"{gates[1]:g}x" if gates[0] is None else f"{gates[1]:g}x best")
    return ", ".join(parts)


def percent(value):
    return "-" if value is None else f"{100 * value:.1f} %"


def comparison_row(name, row, peer, ours, shares, binding, aim=None):
    """`peer`: {setting: [figure]}, `ours`: [figure], `shares`: (of the read peak, of the integer peak). `row`: of GATES."""
    setting, best = best_setting(peer)
    default, mine = median(peer["default"]), median(ours)
    gates = GATES[row][:2]
    return (name, f"{default:.1f}", f"{best:.1f}", setting, f"{mine:.1f}", f"{mine / default:.2f}", f"{mine / best:.2f}",
            gate_text(gates), aim or GATES[row][2], verdict(mine / default, mine / best, gates, binding),
            percent(shares[0]), percent(shares[1]))


def two_workers_row(one, two, binding):
    ratio = median(two) / median(one)
    word = "PASS" if ratio >= TWO_WORKERS_GATE else "MISS"
    return ("two workers / one worker, decode", "-", "-", "-", f"{median(two):.1f} / {median(one):.1f}", "-", f"{ratio:.2f}",
            f"{TWO_WORKERS_GATE:g}x", TWO_WORKERS_AIM, word if binding else f"({word.lower()})", "-", "-")


def aligned(rows):
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
