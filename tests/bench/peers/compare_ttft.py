#!/usr/bin/env python3
"""Eight callers at a time, each with prompts of its own, on bitshard and on llama-server, in turn on one machine: how long
each waits for its first token.

Both read the same file with two threads; ours as two workers of one. Both get the same token ids, greedy, on over end
tokens, from the same client. Started by ../under_load.sh, which builds the programs.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request

import load_client
import runs
import table
from goodput import figures
from load_client import percentile
from served import Served

READY_TIMEOUT_S = 120
# Settings of llama-server that are tried; the first is its default.
SETTINGS = {
    "default": (),
    "flash attention off": ("--flash-attn", "off"),
    "batch 512": ("--batch-size", "512"),
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", required=True, help="folder in which llama-server was built")
    parser.add_argument("--bin-dir", required=True, help="folder of bitshard, its two programs and load_client")
    parser.add_argument("--model", required=True, help="GGUF file")
    parser.add_argument("--callers", type=int, default=8)
    parser.add_argument("--calls", type=int, default=24, help="of all callers together, in a round")
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--vocabulary", type=int, default=49000, help="prompts are random ids below")
    parser.add_argument("--repeat", type=int, default=2, help="rounds")
    parser.add_argument("--settings", default="default", help="of llama-server, comma-separated: " + ", ".join(SETTINGS))
    parser.add_argument("--json", help="write every figure here")
    return parser.parse_args()


@contextlib.contextmanager
def llama_server(args, setting):
    """Its address."""
    port, = runs.free_ports(1)
    context = args.callers * (args.prompt_tokens + args.output_tokens + 16)
    command = [f"{args.peers}/llamapy/vendor/llama.cpp/build/bin/llama-server", "-m", args.model, "-t", "2", "-np",
               str(args.callers), "-c", str(context), "--host", "127.0.0.1", "--port", str(port), *SETTINGS[setting]]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + READY_TIMEOUT_S
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
                    if answer.status == 200:
                        break
            except OSError:
                pass
            if process.poll() is not None or time.monotonic() > end:
                raise runs.Failed(f"{' '.join(command)} does not get ready")
            time.sleep(0.1)
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def one_round(args, who, turn):
    """The calls of one round, on a fresh service."""
    settings = {"callers": args.callers, "calls": args.calls, "prompt_tokens": args.prompt_tokens,
                "output_tokens": args.output_tokens, "vocabulary": args.vocabulary, "seed": turn + 1}
    client = f"{args.bin_dir}/load_client"
    if who == "bitshard":
        with Served(args.bin_dir, args.model) as service:
            warm_up(client, service.address, "bitshard", args)
            return load_client.run(client, address=service.address, **settings)
    with llama_server(args, who) as address:
        warm_up(client, address, "llama-server", args)
        return load_client.run(client, address=address, face="llama-server", **settings)


def warm_up(client, address, face, args):
    load_client.run(client, address=address, face=face, calls=1, prompt_tokens=16, output_tokens=4,
                    vocabulary=args.vocabulary, seed=999)


def check(who, calls, args):
    for call in calls:
        if call.code != "OK" or call.tokens != args.output_tokens:
            raise runs.Failed(f"{who}: {call.code}, {call.tokens} tokens instead of {args.output_tokens}: {call.message}")


def row(name, calls_of_rounds, against=None):
    """Of all rounds' calls together; `against`: those of ours."""
    calls = [call for calls in calls_of_rounds for call in calls]
    ttft = [call.ttft_s for call in calls]
    rates = [figures(calls)["goodput"] for calls in calls_of_rounds]
    p50, p99 = percentile(ttft, 0.5), percentile(ttft, 0.99)
    ratio = "" if against is None else f"{p50 / percentile([c.ttft_s for calls in against for c in calls], 0.5):.2f}"
    gap = table.median([figures(calls)["token_gap_p50_s"] for calls in calls_of_rounds])
    return (name, str(len(calls)), f"{1e3 * p50:.0f}", f"{1e3 * p99:.0f}", ratio, f"{table.median(rates):.1f}",
            f"{1e3 * gap:.1f}")


HEAD = ("", "calls", "TTFT p50 ms", "TTFT p99 ms", "x ours", "tokens/s", "ms a token p50")


def main():
    args = arguments()
    settings = args.settings.split(",")
    samples = {who: [] for who in ("bitshard", *settings)}
    for turn in range(args.repeat):
        for who in samples:
            runs.say(f"ttft: round {turn + 1} of {args.repeat}: " + (who if who == "bitshard" else f"llama-server, {who}"))
            calls = one_round(args, who, turn)
            check(who, calls, args)
            samples[who].append(calls)
    print(f"{os.path.basename(args.model)}, {args.callers} callers at a time, {args.prompt_tokens} tokens of prompt (each its "
          f"own) and {args.output_tokens} of answer, {args.repeat} interleaved rounds; two threads each")
    rows = [HEAD, row("bitshard, 2 workers x 1 thread", samples["bitshard"])]
    rows += [row(f"llama-server, {who}", samples[who], samples["bitshard"]) for who in settings]
    print("\n" + table.aligned(rows))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"flags": vars(args), "calls": {who: [[vars(call) for call in calls] for calls in rounds]
                                                      for who, rounds in samples.items()}}, file)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except runs.Failed as failure:
        sys.exit(f"compare_ttft: {failure}")
