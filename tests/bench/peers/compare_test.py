"""compare.py with programs that only say figures: every part runs what it should, and the table says what they said."""

import contextlib
import io
import json
import os
import sys
import tempfile
import unittest
from unittest import mock

import case_report
import compare
import runs


def flag(command, name):
    """The value of --name=value."""
    return next(word.split("=", 1)[1] for word in command if word.startswith(f"--{name}="))


def bench_document(command):
    """What `bitshard bench --json` would print for this command: 300 tokens a CPU second, 200 a second a worker."""
    wanted = [name for (size, value), name, _ in runs.CASES.values() if value in flag(command, size).split(",")]
    figures = {"tokens_per_s": 200.0 * int(flag(command, "workers")), "tokens_per_cpu_s": 300.0, "read_share": 0.25,
               "read_share_cpu": 0.5, "int_share": 0.125, "int_share_cpu": 0.375}
    peaks = {"read_bytes_per_s": 1e10, "read_bytes_per_cpu_s": 2e10, "int_instruction": "vpdpbusd", "int_ops_per_s": 3e11,
             "int_ops_per_cpu_s": 4e11}
    return {"machine": {"cpu": "made", "cpus": 2, "isa": "avx512vnni", "load_1min": 0.5, "peaks": peaks},
            "lines": [{"name": name, "median": figures} for name in wanted]}


class Programs:
    """Stands for runs.run: answers by the program's name, and keeps the commands."""

    def __init__(self, a8=True):
        self.a8, self.commands = a8, []

    def __call__(self, command, timeout=0):
        self.commands.append(command)
        program = os.path.basename(command[0])
        if program == "bitshard":
            if flag(command, "activations") == "a8" and not self.a8:
                raise runs.Failed("a8 is not known")
            return json.dumps(bench_document(command))
        if program == "llama_bench":  # 100 tokens a second, 50 a CPU second
            return "\n".join(json.dumps({"work": word, "tokens": 100, "wall_s": 1, "cpu_s": 2})
                             for word in command if ":" in word)
        return json.dumps({"avg_ts": 90.0})

    def of(self, program):
        return [command for command in self.commands if os.path.basename(command[0]) == program]


def table_of(programs, parts, repeat=2):
    out = io.StringIO()
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["compare", f"--peers={folder}", "--bin-dir=/programs", "--model=/m.gguf", f"--repeat={repeat}",
                     f"--parts={parts}", f"--json={folder}/all.json"]
        with mock.patch.object(runs, "run", programs), mock.patch.object(sys, "argv", arguments), \
                mock.patch.object(runs, "Children", mock.MagicMock()), mock.patch.object(runs, "await_port"), \
                mock.patch.object(compare, "has_vnni", lambda: True), contextlib.redirect_stdout(out), \
                contextlib.redirect_stderr(io.StringIO()):
            compare.main()
        with open(f"{folder}/all.json", encoding="utf-8") as file:
            return out.getvalue(), json.load(file)


def row(table, name):
    return next(line for line in table.splitlines() if line.startswith(f"{name}  "))


class CompareTest(unittest.TestCase):
    def test_one_thread_compares_cpu_time(self):
        table, figures = table_of(Programs(), "cpu")
        for name in runs.CASES:
            self.assertIn(" 6.00 ", row(table, name))  # 300 against 50
        self.assertIn("PASS", row(table, "decode, context 0"))
        self.assertIn("50.0 %", row(table, "decode, context 0"))
        self.assertIn("37.5 %", row(table, "prefill 512"))
        self.assertIn("8.7x", row(table, "prefill 512, a8"))
        self.assertEqual(figures["cpu"]["ours"]["a16: prefill 512"], [300, 300])

    def test_two_workers_compare_the_clock(self):
        programs = Programs()
        table, _ = table_of(programs, "wall")
        self.assertIn(" 4.00 ", row(table, "decode, context 0"))  # 2 x 200 against 100
        self.assertIn("400.0 / 200.0", row(table, "two workers / one worker, decode"))
        self.assertTrue(all(command[2] == "2" for command in programs.of("llama_bench")))

    def test_rounds_take_turns(self):
        programs = Programs()
        table_of(programs, "cpu", repeat=3)
        who = [os.path.basename(command[0]) for command in programs.commands]
        turn = who[:len(who) // 3]
        self.assertEqual(who, turn * 3)
        self.assertEqual(set(turn), {"bitshard", "llama_bench"})
        seeds = {flag(command, "seed") for command in programs.of("bitshard")}
        self.assertEqual(seeds, {"1", "2", "3"})

    def test_a8_is_left_out_where_it_is_not_known(self):
        programs = Programs(a8=False)
        table, _ = table_of(programs, "cpu", repeat=3)
        self.assertNotIn("a8", table)
        self.assertIn("PASS", row(table, "prefill 512"))
        self.assertEqual(sum(flag(command, "activations") == "a8" for command in programs.of("bitshard")), 1)

    def test_two_processes_without_distributed_llama(self):
        table, figures = table_of(Programs(), "tp")
        self.assertIn("400.0", row(table, "bitshard, 2 workers x 1 thread"))
        self.assertIn("90.0", row(table, "llama.cpp, -sm tensor, 2 RPC workers x 1 thread"))
        self.assertNotIn("distributed-llama", table)
        self.assertEqual(figures["tp"]["llama.cpp, 1 process x 2 threads"], [90, 90])


if __name__ == "__main__":
    case_report.main()
