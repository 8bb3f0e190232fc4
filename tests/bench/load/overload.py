#!/usr/bin/env python3
"""A service at its peak and at three times as much: what is refused is refused at once, what is taken begins in time, and as
much comes out as ever.

First closed loops of several sizes find the peak of tokens a second, however long callers wait; then calls come at a fixed
multiple of that rate, at random moments, whatever becomes of them (Poisson, fixed seed), and only answers that began within
the SLO count. Started by ../under_load.sh, which builds the programs.
"""

import argparse
import json
import os
import sys

import load_client
import table
from goodput import figures
from served import Served

REFUSAL_GATE_S, GOODPUT_GATE = 0.010, 0.9


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin-dir", required=True, help="folder of bitshard, its two programs and load_client")
    parser.add_argument("--model", required=True, help="GGUF file")
    parser.add_argument("--workers", type=int, default=2, help="of one thread each")
    parser.add_argument("--max-running", type=int, default=16)
    parser.add_argument("--slo", type=float, default=1.0, help="seconds to the first token")
    parser.add_argument("--queue-share", type=float, default=0.8,
                        help="of the SLO: --max-queue-wait; the rest is for the prompt itself")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--vocabulary", type=int, default=49000, help="prompts are random ids below")
    parser.add_argument("--callers", default="12,16,24", help="sizes of the closed loops, comma-separated")
    parser.add_argument("--factor", type=float, default=3, help="the overload, times the peak")
    parser.add_argument("--seconds", type=float, default=25, help="of overload")
    parser.add_argument("--coordinator-flags", default="", help="further ones, comma-separated")
    parser.add_argument("--json", help="write every figure here")
    return parser.parse_args()


def say(text):
    print(f"[overload] {text}", file=sys.stderr, flush=True)


def ms(seconds):
    return "-" if seconds is None else f"{1e3 * seconds:.1f}" if seconds < 0.1 else f"{1e3 * seconds:.0f}"


def row(name, figure, refusal_s=None):
    return (name, str(figure["calls"]), str(figure["served"]), str(figure["refused"]), f"{figure['goodput']:.0f}",
            ms(figure["ttft_p50_s"]), ms(figure["ttft_p99_s"]), ms(refusal_s))


HEAD = ("load", "calls", "served", "refused", "goodput tokens/s", "TTFT p50 ms", "TTFT p99 ms", "refusal p99 ms")


def gates(peak, overload, refusal_s, slo_s):
    """(what, figure, gate, whether it is met)."""
    ratio = overload["goodput"] / peak["goodput"]
    return [
        ("refusals answered, p99 by the server's histogram", f"{ms(refusal_s)} ms", f"< {1e3 * REFUSAL_GATE_S:.0f} ms",
         refusal_s is not None and refusal_s < REFUSAL_GATE_S),
        ("first token of what was taken, p99", f"{ms(overload['ttft_p99_s'])} ms", f"<= {1e3 * slo_s:.0f} ms",
         overload["ttft_p99_s"] is not None and overload["ttft_p99_s"] <= slo_s),
        ("goodput against the peak", f"{ratio:.2f}", f">= {GOODPUT_GATE}", ratio >= GOODPUT_GATE),
        ("calls that neither were served nor refused", str(overload["failed"]), "0", overload["failed"] == 0),
    ]


def main():
    args = arguments()
    flags = (f"--max-running={args.max_running}", f"--max-queue-wait={args.slo * args.queue_share:.3f}s",
             *(flag for flag in args.coordinator_flags.split(",") if flag))
    work = {"prompt_tokens": args.prompt_tokens, "output_tokens": args.output_tokens, "vocabulary": args.vocabulary}
    rows, everything = [HEAD], {"flags": vars(args), "runs": {}}
    client = f"{args.bin_dir}/load_client"

    with Served(args.bin_dir, args.model, workers=args.workers, coordinator_flags=flags) as service:
        def loaded(name, slo_s=None, **settings):
            say(name)
            before = service.scrape()
            calls = load_client.run(client, address=service.address, cache_salt=name.replace(" ", "-"), **work, **settings)
            after = service.scrape()
            figure = figures(calls, slo_s)
            # The server's own clock: from the whole request read to the status handed to the transport.
            refusal_s = after.quantile("bitshard_rejection_seconds", 0.99, before)
            figure["server_ttft_p99_s"] = after.quantile("bitshard_time_to_first_token_seconds", 0.99, before)
            figure["refusal_p99_s"] = refusal_s
            everything["runs"][name] = figure
            rows.append(row(name, figure, refusal_s if figure["refused"] else None))
            return figure, refusal_s

        loaded("one caller", calls=8, callers=1)
        peak = None
        for callers in (int(word) for word in args.callers.split(",")):
            figure, _ = loaded(f"{callers} callers", calls=10 * callers, callers=callers, come_back=True, seed=callers)
            if peak is None or figure["goodput"] > peak["goodput"]:
                peak = figure
        rate = args.factor * peak["goodput"] / args.output_tokens
        overload, refusal_s = loaded(f"{args.factor:g} x the peak", args.slo, calls=int(rate * args.seconds),
                                     rate=round(rate, 3), channels=4, seed=7)

    print(f"{os.path.basename(args.model)}, {args.workers} workers x 1 thread, {args.prompt_tokens} + {args.output_tokens} "
          f"tokens a call, {' '.join(flags)}; overload: {rate:.1f} calls/s for {args.seconds:.0f} s")
    print("\n" + table.aligned(rows) + "\n")
    verdicts = gates(peak, overload, refusal_s, args.slo)
    print(table.aligned([("", "", "gate", "result")] +
                        [(what, value, gate, "PASS" if met else "MISS") for what, value, gate, met in verdicts]))
    if overload["late_p99_s"] > 0.05:
        print(f"The client was late: p99 {ms(overload['late_p99_s'])} ms behind its own moments; the machine is too busy.")
    everything["gates"] = [{"what": what, "figure": value, "gate": gate, "met": met} for what, value, gate, met in verdicts]
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(everything, file, indent=1)
    return 0 if all(met for *_, met in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
