"""Runs one round of ours and of each peer; a figure is tokens a second, by the clock or by CPU time."""

import json
import re
import signal
import socket
import subprocess
import sys
import time

CASES = {  # name of the row -> (flag of `bitshard bench` and its value, name of its line, WORK of llama_bench)
    "decode, context 0": (("context", "0"), "decode 64 at 0", "decode:64:0"),
    "prefill 512": (("prefill", "512"), "prefill 512", "prefill:512"),
    "decode at 2,048": (("context", "2048"), "decode 64 at 2048", "decode:64:2048"),
    "16 concurrent": (("concurrent", "16"), "16 x decode 64 at 64", "concurrent:16:64:64"),
}

# Settings of llama.cpp that are tried, and for which rows; the first is its default.
PEER_SETTINGS = {
    "default": ((), tuple(CASES)),
    "flash attention off": (("--flash-attn=off",), tuple(CASES)),
    "flash attention on": (("--flash-attn=on",), ("decode, context 0", "decode at 2,048")),
    "ubatch 128": (("--ubatch=128",), ("prefill 512",)),
    "unified cache": (("--unified",), ("16 concurrent",)),
    "unified cache, flash attention off": (("--unified", "--flash-attn=off"), ("16 concurrent",)),
}


class Failed(Exception):
    """A program did not do what it was asked."""


def run(command, timeout=1800):
    """stdout of a command that succeeds."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stderr.strip()[-2000:]}")
    return done.stdout


def say(text):
    print(f"[compare] {text}", file=sys.stderr, flush=True)


class Ours:
    """`bitshard bench --local`, one fresh service a round."""

    def __init__(self, bin_dir, model):
        self.bin_dir, self.model = bin_dir, model

    def document(self, rows, workers=1, threads=1, activations="a16", seed=1):
        """The JSON of one round over these rows."""
        work = {"prefill": [], "context": [], "concurrent": []}
        for row in rows:
            flag, size = CASES[row][0]
            work[flag].append(size)
        sizes = [f"--{flag}={','.join(values)}" for flag, values in work.items()]
        return json.loads(run([f"{self.bin_dir}/bitshard", "bench", "--local", self.model, f"--bin-dir={self.bin_dir}",
                               f"--workers={workers}", f"--threads={threads}", f"--activations={activations}",
                               "--repeat=1", "--decode=64", f"--seed={seed}", "--json", *sizes]))

    def figures(self, rows, clock, **settings):
        """{row: tokens a second} of one round, and the document."""
        document = self.document(rows, **settings)
        key = "tokens_per_cpu_s" if clock == "cpu" else "tokens_per_s"
        by_name = {line["name"]: line["median"] for line in document["lines"]}
        return {row: by_name[CASES[row][1]][key] for row in rows}, document


class Llama:
    """llama.cpp's library through llama_bench, one process a round and setting."""

    def __init__(self, peers, model):
        self.program, self.model = f"{peers}/llama_bench", model

    def figures(self, rows, clock, threads, setting):
        flags, served = PEER_SETTINGS[setting]
        wanted = [row for row in rows if row in served]
        if not wanted:
            return {}
        out = run([self.program, self.model, str(threads), *flags, *(CASES[row][2] for row in wanted)])
        seconds = "cpu_s" if clock == "cpu" else "wall_s"
        lines = [json.loads(line) for line in out.splitlines()]
        return {row: line["tokens"] / line[seconds] for row, line in zip(wanted, lines)}


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


class Children:
    """Processes that end with the block."""

    def __init__(self, *commands):
        self.commands, self.processes = commands, []

    def __enter__(self):
        for command in self.commands:
            self.processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.send_signal(signal.SIGKILL)
            process.wait()


def await_port(port):
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise Failed(f"nothing listens on port {port}")


def llama_bench_program(peers, model, *flags):
    """llama.cpp's own llama-bench, which can split over workers: tokens a second of decoding, by the clock."""
    out = run([f"{peers}/llamapy/vendor/llama.cpp/build/bin/llama-bench", "-m", model, "-p", "0", "-n", "64", "-r", "1",
               "-o", "jsonl", *flags])
    return json.loads(out.splitlines()[-1])["avg_ts"]


def llama_tensor_split(peers, model):
    """Two RPC workers of one thread each, `-sm tensor`."""
    ports = free_ports(2)
    server = f"{peers}/llamapy/vendor/llama.cpp/build/bin/ggml-rpc-server"
    with Children(*([server, "-H", "127.0.0.1", "-p", str(port), "-t", "1"] for port in ports)):
        for port in ports:
            await_port(port)
        workers = ",".join(f"127.0.0.1:{port}" for port in ports)
        return llama_bench_program(peers, model, "-t", "1", "--rpc", workers, "-ngl", "99", "-sm", "tensor", "-fa", "on")


def distributed_llama(peers, name, workers):
    """A root and its workers, one thread each: tokens a second of decoding, by its own clock."""
    program = f"{peers}/dllama/dllama"
    ports = free_ports(workers)
    flags = ["--workers", *(f"127.0.0.1:{port}" for port in ports)] if workers else []
    # A worker dies of a connection that sends nothing, so its port is not probed.
    with Children(*([program, "worker", "--port", str(port), "--nthreads", "1"] for port in ports)):
        time.sleep(2 if workers else 0)
        out = run([program, "inference", "--model", f"{peers}/{name}.m", "--tokenizer", f"{peers}/{name}.t", "--prompt",
                   "Once upon a time there was", "--steps", "80", "--buffer-float-type", "q80", "--temperature", "0",
                   "--max-seq-len", "512", "--nthreads", "1", *flags], timeout=300)
    found = re.search(r"Prediction\n(?:.*\n)*?\s+tokens/s: ([0-9.]+)", out)
    if not found:
        raise Failed(f"distributed-llama printed no figure:\n{out[-500:]}")
    return float(found.group(1))
