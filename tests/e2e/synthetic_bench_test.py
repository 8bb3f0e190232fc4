"""`bitshard bench --synthetic` and services of synthetic weights: no file of weights anywhere, the same bits however many
workers make them, on the CPU and on an emulated GPU."""

import json
import math
import os
import pathlib
import random
import struct
import subprocess
import tempfile
import unittest

import grpc

import case_report
from live_service import BITSHARD, EMULATED_WORKER, ROOT, WORKER, Service, Stream, pb

TINY = {
    "architectures": ["Qwen2ForCausalLM"], "torch_dtype": "bfloat16", "hidden_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 32, "intermediate_size": 320, "vocab_size": 1210,
    "max_position_embeddings": 256, "rope_theta": 10000.0, "rms_norm_eps": 1e-6, "hidden_act": "silu",
    "tie_word_embeddings": False,
}


def config_of(**changes):
    folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")))
    (folder / "config.json").write_text(json.dumps({**TINY, **changes}), encoding="utf-8")
    return folder


def bench(*args, worker=WORKER):
    folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")))
    os.symlink(ROOT / "coordinator/bitshard-coordinator", folder / "bitshard-coordinator")
    os.symlink(ROOT / worker, folder / "bitshard-worker")
    return subprocess.run([str(ROOT / BITSHARD), "bench", f"--bin-dir={folder}", *args], capture_output=True, text=True,
                          timeout=120, check=False)


def bits_of(service):
    """Tokens and the bits of the top log-probabilities of a few requests at once."""
    rng = random.Random(5)
    streams = [Stream(service.inference, pb.GenerateRequest(
        tokens=pb.TokenIds(ids=[rng.randrange(TINY["vocab_size"]) for _ in range(length)]), max_tokens=6,
        sampling=pb.Sampling(temperature=0), stop=pb.Stopping(ignore_eos=True),
        output=pb.OutputOptions(token_ids=True, top_logprobs=20))) for length in (1, 9, 40)]
    found = []
    for stream in streams:
        stream.join()
        if stream.code != grpc.StatusCode.OK:
            raise RuntimeError(stream.details)
        found.append((tuple(stream.tokens), b"".join(
            struct.pack("<If", top.token_id, top.logprob) for entry in stream.logprobs for top in entry.top)))
    return found, [top.logprob for stream in streams for entry in stream.logprobs for top in entry.top]


class SyntheticBenchTest(unittest.TestCase):
    def test_any_number_of_workers_makes_the_same_model(self):
        config = config_of()
        for options, counts in (("bits=3,group=64,asym", (1, 2, 3)), ("bits=16", (1, 3)), ("format=q4_1", (1, 2))):
            first = None
            for workers in counts:
                with Service(f"synthetic:{options}:{config}", workers=workers, flags=["--threads=1"]) as service:
                    found, logprobs = bits_of(service)
                    self.assertEqual(service.status().model, f"synthetic-{config.name}")
                first = first or found
                self.assertEqual(found, first, f"{options}, {workers} workers")
            self.assertTrue(all(math.isfinite(value) for value in logprobs))
            # Neither flat nor one token alone: the model computes something.
            self.assertGreater(max(logprobs) - min(logprobs), 0.1, options)
            self.assertLess(max(logprobs), -0.01, options)
            self.assertEqual(len({tokens for tokens, _ in first}), 3, options)
        with Service(f"synthetic:bits=16,seed=2:{config}", workers=1, flags=["--threads=1"]) as service:
            other, _ = bits_of(service)
        self.assertNotEqual(other, first)

    def test_the_table_and_what_it_says_of_the_weights(self):
        config = config_of()
        path = config / "out.json"
        path.write_text("{}\n", encoding="utf-8")
        result = bench(f"--synthetic={config}", "--synthetic-bits=4", "--synthetic-group=32", "--threads=1",
                       "--prefill=24", "--decode=150", "--context=0", "--concurrent=2", "--repeat=1", f"--json-file={path}")
        self.assertEqual(result.returncode, 0, result.stderr)
        documents = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        self.assertEqual(documents[0], {})  # appended
        self.assertEqual([line["name"] for line in documents[1]["lines"]],
                         ["prefill 24", "decode 150 at 0", "2 x decode 150 at 64"])
        self.assertIn("synthetic weights of 4 bits, groups of 32\n", result.stdout)
        for line in ("prefill 24", "decode 150 at 0", "2 x decode 150 at 64"):
            self.assertIn(f"\n{line} ", result.stdout)

    def test_a_share_is_a_part_and_says_so(self):
        documents = []
        for more in ([], ["--synthetic-shard=1/3"]):
            result = bench(f"--synthetic={config_of()}", "--synthetic-bits=4", "--synthetic-group=32", "--threads=1",
                           "--prefill=8", "--decode=0", "--repeat=1", "--json", *more)
            self.assertEqual(result.returncode, 0, result.stderr)
            documents.append(json.loads(result.stdout)["service"])
        whole, share = documents
        self.assertEqual(share["layer_parameters"] * 3, whole["layer_parameters"] + self._uneven_mlp())
        self.assertAlmostEqual(share["kv_bytes_a_token"] * 3, whole["kv_bytes_a_token"], delta=1)
        self.assertLess(share["step_weight_bytes"], whole["step_weight_bytes"] / 2)
        self.assertIn("rank 1's share of 3", share["note"])

    @staticmethod
    def _uneven_mlp():
        """320 columns are five units of 64; the second of three ranks owns two of them."""
        mlp = 3 * TINY["hidden_size"] * TINY["num_hidden_layers"]
        return 3 * 128 * mlp - 320 * mlp

    def test_an_emulated_gpu_makes_them_itself(self):
        config = config_of(hidden_size=64, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
                           intermediate_size=128, vocab_size=256)
        os.environ["BITSHARD_FAKE_CUDA_DEVICES"] = "1"
        result = bench(f"--synthetic={config}", "--synthetic-bits=4", "--synthetic-group=32", "--device=cuda",
                       "--worker-flags=--memory=64MiB", "--coordinator-flags=--max-running=4,--token-budget=32",
                       "--threads=1", "--prefill=8", "--decode=3", "--context=0", "--concurrent=", "--repeat=1", "--json",
                       worker=EMULATED_WORKER)
        self.assertEqual(result.returncode, 0, result.stderr)
        document = json.loads(result.stdout)
        peaks = document["machine"]["peaks"]
        self.assertEqual(peaks["devices"], 1)
        decode = document["lines"][1]
        self.assertIsNone(decode["median"]["int_share"])
        read = document["service"]["step_weight_bytes"] + 2.5 * document["service"]["kv_bytes_a_token"]
        self.assertAlmostEqual(decode["median"]["read_share"],
                               decode["median"]["tokens_per_s"] * read / peaks["read_bytes_per_s"], places=9)

    def test_what_cannot_be_made_says_what_to_try(self):
        config = config_of()
        for flags, code, word in (
                (["--synthetic-bits=4"], 2, "go with --synthetic=CONFIG"),
                ([f"--synthetic={config}", "another"], 2, "one too many"),
                ([f"--synthetic={config}", "--synthetic-bits=9"], 2, "--synthetic-bits=9; 2 to 8"),
                ([f"--synthetic={config}", "--synthetic-group=100"], 2, "--synthetic-group=100 without --synthetic-bits"),
                ([f"--synthetic={config}", "--synthetic-zeros"], 2, "--synthetic-zeros without --synthetic-bits"),
                ([f"--synthetic={config}", "--synthetic-bits=4", "--synthetic-format=q4_1"], 2, "it says them all"),
                *(([f"--synthetic={config}", f"--synthetic-format={name}"], 2,
                   f"bench: --synthetic-format={name}: weight format '{name}' is not supported; supported are")
                  for name in ("q9_k", "Q4_K", "ct_int4", "ct_int4 group=32", "ct_int4 group=32 scale=f16")),
                ([f"--synthetic={config}", "--synthetic-format=ct_int4"], 2, 'as in "ct_int4 group=32 scale=f16 sym"'),
                ([f"--synthetic={config}", "--synthetic-format="], 2, "--synthetic-format= is empty: give"),
                (["--synthetic="], 2, "--synthetic= is empty: give a config.json"),
                ([f"--synthetic={config}", "--synthetic-shard="], 2, "--synthetic-shard= is empty: give"),
                ([f"--synthetic={config}", "--synthetic-shard=3"], 2, "--synthetic-shard=3: takes I/N"),
                ([f"--synthetic={config}", "--synthetic-shard=3/3"], 2, "--synthetic-shard=3/3; rank 0 to N-1"),
                (["--synthetic=llama-3.1-9b"], 1, "llama-3.1-8b"),
                ([f"--synthetic={config}", "--synthetic-bits=4"], 1, "group size 128"),
                ([f"--synthetic={config_of(architectures=['GPT2LMHeadModel'])}"], 1, "GPT2LMHeadModel")):
            result = bench(*flags)
            self.assertEqual(result.returncode, code, f"{flags}: {result.stderr}")
            self.assertIn(word, result.stderr, flags)


if __name__ == "__main__":
    case_report.main()
