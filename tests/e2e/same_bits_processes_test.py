"""Cells of the same-bits harness (tests/e2e/same_bits_test.cc) as real processes over gRPC: tokens and the bits of every
log-probability are equal whatever the number of workers, the batch, the prefill chunk and the collective."""

import random
import struct
import unittest

import case_report
from live_service import Service, Stream, golden_model, pb

REQUESTS = 32
# workers, requests at once, prefill chunk (0 = all), how the workers meet (auto = shm, on one host)
CELLS = [(1, 1, 0, "auto"), (1, 32, 7, "auto"), (2, 1, 64, "auto"), (2, 32, 1, "auto"), (3, 1, 7, "auto"), (3, 32, 0, "auto"),
         (4, 1, 1, "auto"), (4, 32, 64, "auto"), (2, 32, 7, "gloo"), (3, 1, 0, "gloo")]


def requests(vocabulary):
    rng = random.Random(7)
    made = []
    for i in range(REQUESTS):
        made.append(pb.GenerateRequest(
            tokens=pb.TokenIds(ids=[rng.randrange(7, vocabulary) for _ in range(rng.choice([1, 5, 17, 40, 90]))]), max_tokens=8,
            sampling=pb.Sampling(temperature=[0, 0.8, 1.2][i % 3], top_p=1 if i % 2 else 0.9, seed=i),
            stop=pb.Stopping(ignore_eos=True), output=pb.OutputOptions(token_ids=True, top_logprobs=2)))
    return made


def transcript(stream):
    bits = [struct.pack("<f", entry.chosen.logprob) + b"".join(
        struct.pack("<If", top.token_id, top.logprob) for top in entry.top) for entry in stream.logprobs]
    return stream.code, tuple(stream.tokens), stream.text, tuple(bits)


class SameBitsProcessesTest(unittest.TestCase):
    def _compare_cells(self, model, activations):
        reference = {}  # by request, from the first cell that ran it
        for cell, (workers, at_once, chunk, collective) in enumerate(CELLS):
            with Service(golden_model(model), workers=workers, coordinator_flags=[f"--prefill-chunk={chunk}"],
                         flags=["--threads=1", f"--activations={activations[cell % len(activations)]}"],
                         worker_flags=[f"--collective={collective}"]) as service:
                mine = requests(service.inference.ListModels(pb.ListModelsRequest()).models[0].vocabulary_size)
                got = []
                if at_once == 1:
                    mine = mine[:8]
                for begin in range(0, len(mine), at_once):
                    streams = [Stream(service.inference, request) for request in mine[begin:begin + at_once]]
                    for stream in streams:
                        stream.join()
                        got.append(transcript(stream))
            with self.subTest(workers=workers, at_once=at_once, chunk=chunk, collective=collective):
                for i, one in enumerate(got):
                    self.assertEqual(one[0].name, "OK")
                    self.assertEqual(len(one[1]), 8)
                    self.assertEqual(one, reference.setdefault(i, one), f"request {i}")
        self.assertEqual(len(reference), REQUESTS)

    def test_of_bf16_weights_in_both_activation_modes(self):
        # These weights have no integer form: both modes run them in f32, so the bits are equal across the modes too.
        self._compare_cells("tiny-llama", ["f32", "a16"])

    def test_of_q4_1_weights_in_mode_a16(self):
        self._compare_cells("gguf-Q4_1", ["a16"])


if __name__ == "__main__":
    case_report.main()
