#!/usr/bin/env python3
"""Compares bitshard with llama.cpp (and, with --tp, distributed-llama) on one machine, interleaved; prints one table.

Started by against_llama_cpp.sh, which builds the programs.
"""

import argparse
import json
import os

import runs
import table
from runs import say


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", required=True, help="folder that against_llama_cpp.sh has built")
    parser.add_argument("--bin-dir", required=True, help="folder of bitshard, bitshard-coordinator and bitshard-worker")
    parser.add_argument("--model", required=True, help="GGUF file")
    parser.add_argument("--repeat", type=int, default=7, help="rounds; figures are their medians")
    parser.add_argument("--parts", default="cpu,wall", help="cpu (one thread, CPU time), wall (two threads, clock), tp")
    parser.add_argument("--json", help="write every figure here")
    return parser.parse_args()


def has_vnni():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        return " avx512_vnni" in file.read()


class Samples:
    """Figures of all rounds, by what was run."""

    def __init__(self):
        self.ours, self.peer, self.documents = {}, {}, {}

    def add(self, who, figures, setting=None):
        for row, figure in figures.items():
            if setting is None:
                self.ours.setdefault((who, row), []).append(figure)
            else:
                self.peer.setdefault(row, {}).setdefault(setting, []).append(figure)

    def shares(self, who, row, clock):
        """Medians of our shares of the measured peaks."""
        suffix = "_cpu" if clock == "cpu" else ""
        out = []
        for name in ("read_share", "int_share"):
            values = [line["median"][name + suffix] for document in self.documents.get(who, ())
                      for line in document["lines"] if line["name"] == runs.CASES[row][1]]
            out.append(table.median([value for value in values if value is not None]))
        # Decoding is bound by reading, prefill by multiplying.
        return (None, out[1]) if row.startswith("prefill") else (out[0], None) if "concurrent" not in row else tuple(out)


def one_part(args, clock):
    """All rounds of one part. Ours and the peer take turns within a round."""
    ours, llama = runs.Ours(args.bin_dir, args.model), runs.Llama(args.peers, args.model)
    rows, samples = tuple(runs.CASES), Samples()
    workers, peer_threads = (1, 1) if clock == "cpu" else (2, 2)
    modes = {"a16": rows, "a8": ("prefill 512",)}
    if clock == "wall":
        modes["one worker"] = ("decode, context 0",)
    for turn in range(args.repeat):
        for mode, mode_rows in list(modes.items()):
            say(f"{clock}: round {turn + 1} of {args.repeat}: bitshard {mode}")
            try:
                figures, document = ours.figures(
                    mode_rows, clock, workers=1 if mode == "one worker" else workers, seed=turn + 1,
                    activations="a8" if mode == "a8" else "a16")
            except runs.Failed as failure:
                if mode != "a8":
                    raise
                say(f"a8 is left out: {str(failure).splitlines()[-1]}")
                del modes[mode]
                continue
            samples.add(mode, figures)
            samples.documents.setdefault(mode, []).append(document)
        for setting in runs.PEER_SETTINGS:
            say(f"{clock}: round {turn + 1} of {args.repeat}: llama.cpp, {setting}")
            samples.add(None, llama.figures(rows, clock, peer_threads, setting), setting)
    return samples


def part_rows(samples, clock, binding):
    out = [table.HEAD]
    for row in runs.CASES:
        out.append(table.comparison_row(row, row, samples.peer[row], samples.ours["a16", row],
                                        samples.shares("a16", row, clock), binding))
        if ("a8", row) in samples.ours:
            out.append(table.comparison_row(f"{row}, a8", row, samples.peer[row], samples.ours["a8", row],
                                            samples.shares("a8", row, clock), binding, aim=table.A8_AIM))
    if ("one worker", "decode, context 0") in samples.ours:
        out.append(table.two_workers_row(samples.ours["one worker", "decode, context 0"],
                                         samples.ours["a16", "decode, context 0"], binding))
    return out


def tensor_parallel(args):
    """Decoding over two processes of one thread each, by the clock: {what: [tokens a second]}."""
    ours = runs.Ours(args.bin_dir, args.model)
    row = "decode, context 0"
    name = os.path.basename(args.model).removesuffix(".gguf")
    work = {
        "bitshard, 1 worker x 1 thread": lambda: ours.figures((row,), "wall", workers=1)[0][row],
        "bitshard, 2 workers x 1 thread": lambda: ours.figures((row,), "wall", workers=2)[0][row],
        "llama.cpp, 1 process x 1 thread": lambda: runs.llama_bench_program(args.peers, args.model, "-t", "1"),
        "llama.cpp, 1 process x 2 threads": lambda: runs.llama_bench_program(args.peers, args.model, "-t", "2"),
        "llama.cpp, -sm tensor, 2 RPC workers x 1 thread": lambda: runs.llama_tensor_split(args.peers, args.model),
        "distributed-llama, 1 process x 1 thread": lambda: runs.distributed_llama(args.peers, name, 0),
        "distributed-llama, root + 1 worker x 1 thread": lambda: runs.distributed_llama(args.peers, name, 1),
    }
    if not os.path.exists(f"{args.peers}/{name}.m"):
        say(f"distributed-llama is left out: no {name}.m in {args.peers} (see DLLAMA_GIT in against_llama_cpp.sh --help)")
        work = {what: run for what, run in work.items() if not what.startswith("distributed")}
    samples = {what: [] for what in work}
    for turn in range(args.repeat):
        for what, run in work.items():
            say(f"tp: round {turn + 1} of {args.repeat}: {what}")
            try:
                samples[what].append(run())
            except runs.Failed as failure:
                if what.startswith("bitshard"):
                    raise
                say(f"{what}: {failure}")
    return samples


def main():
    args = arguments()
    binding = has_vnni()
    everything = {}
    parts = args.parts.split(",")
    titles = {"cpu": "one thread (1 worker x 1 thread), tokens per second of process CPU time",
              "wall": "two threads (2 workers x 1 thread), tokens per second by the clock"}
    tables = []
    for clock in (part for part in parts if part in titles):
        samples = one_part(args, clock)
        tables.append(f"{titles[clock]}:\n{table.aligned(part_rows(samples, clock, binding))}")
        everything[clock] = {"ours": {f"{who}: {row}": v for (who, row), v in samples.ours.items()},
                             "llama.cpp": samples.peer, "documents": samples.documents}
    if "tp" in parts:
        samples = tensor_parallel(args)
        everything["tp"] = samples
        rows = [("decode over two processes, by the clock", "tokens/s", "lowest-highest")]
        rows += [(what, f"{table.median(v):.1f}" if v else "failed", f"{min(v):.1f}-{max(v):.1f}" if v else "-")
                 for what, v in samples.items()]
        tables.append(table.aligned(rows))
    print(f"{os.path.basename(args.model)}, medians of {args.repeat} interleaved rounds")
    documents = {clock: everything[clock]["documents"]["a16"] for clock in titles if clock in everything}
    for clock, found in documents.items():
        machine, suffix = found[-1]["machine"], "_per_cpu_s" if clock == "cpu" else "_per_s"
        print(f"{machine['cpu']}, {machine['cpus']} CPUs, {machine['isa']}, load {machine['load_1min']}; {clock}: "
              f"read {max(d['machine']['peaks']['read_bytes' + suffix] for d in found) / 1e9:.1f} GB/s, "
              f"{machine['peaks']['int_instruction']} "
              f"{max(d['machine']['peaks']['int_ops' + suffix] for d in found) / 1e9:.0f} GOP/s")
    if not binding:
        print("No AVX-512 VNNI: the gates do not bind here.")
    print("\n" + "\n\n".join(tables))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(everything, file, indent=1)


if __name__ == "__main__":
    main()
