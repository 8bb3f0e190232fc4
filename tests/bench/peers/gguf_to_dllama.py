#!/usr/bin/env python3
"""gguf_to_dllama.py IN.gguf OUT.m OUT.t: a GGUF file of the llama architecture as distributed-llama's model and tokenizer.

Q4_0 matrices keep their bytes, all others are quantized to Q40. Needs numpy and llama.cpp's gguf package (PYTHONPATH).
"""

import struct
import sys

import numpy
from gguf import GGUFReader
from gguf.quants import dequantize

# Keys of the model's header, as distributed-llama numbers them.
(VERSION, ARCH_TYPE, DIM, HIDDEN_DIM, N_LAYERS, N_HEADS, N_KV_HEADS, N_EXPERTS, N_ACTIVE_EXPERTS, VOCAB_SIZE, SEQ_LEN,
 HIDDEN_ACT, ROPE_THETA, WEIGHTS_FLOAT_TYPE) = range(14)
NORM_EPSILON = 20
ARCH_LLAMA, ACT_SILU, Q40 = 0xABCD00, 1, 2
MODEL_MAGIC, TOKENIZER_MAGIC = 0xA00ABCD, 0x567124


def q40(values):
    """Bytes of float values as blocks of 32: f16 scale, 16 bytes of two codes each."""
    blocks = numpy.ascontiguousarray(values, numpy.float32).reshape(-1, 32)
    highest, lowest = blocks.max(1), blocks.min(1)
    scale = numpy.where(-lowest > highest, lowest, highest) / -8
    inverse = numpy.where(scale != 0, 1.0 / numpy.where(scale != 0, scale, 1), 0)
    codes = numpy.clip(blocks * inverse[:, None] + 8.5, 0, 15).astype(numpy.uint8)
    out = numpy.empty((blocks.shape[0], 18), numpy.uint8)
    out[:, :2] = scale.astype(numpy.float16).view(numpy.uint8).reshape(-1, 2)
    out[:, 2:] = codes[:, :16] | (codes[:, 16:] << 4)
    return out.tobytes()


class Source:
    def __init__(self, path):
        self.reader = GGUFReader(path)
        self.tensors = {tensor.name: tensor for tensor in self.reader.tensors}

    def field(self, key):
        return self.reader.fields[key].contents()

    def f32(self, name):
        tensor = self.tensors[name]
        return dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)

    def matrix(self, name):
        tensor = self.tensors[name]
        return tensor.data.tobytes() if tensor.tensor_type.name == "Q4_0" else q40(self.f32(name))


def write_model(source, path):
    field = source.field
    layers = field("llama.block_count")
    header = {
        VERSION: 0, ARCH_TYPE: ARCH_LLAMA, DIM: field("llama.embedding_length"),
        HIDDEN_DIM: field("llama.feed_forward_length"), N_LAYERS: layers, N_HEADS: field("llama.attention.head_count"),
        N_KV_HEADS: field("llama.attention.head_count_kv"), N_EXPERTS: 0, N_ACTIVE_EXPERTS: 0,
        VOCAB_SIZE: len(field("tokenizer.ggml.tokens")), SEQ_LEN: field("llama.context_length"), HIDDEN_ACT: ACT_SILU,
        ROPE_THETA: int(field("llama.rope.freq_base")), WEIGHTS_FLOAT_TYPE: Q40,
        NORM_EPSILON: 5 if field("llama.attention.layer_norm_rms_epsilon") > 5e-6 else 6,
    }
    data = b"".join(struct.pack("ii", key, value) for key, value in header.items())
    with open(path, "wb") as out:
        out.write(struct.pack("ii", MODEL_MAGIC, 8 + len(data)) + data)
        out.write(source.f32("token_embd.weight").tobytes())
        for layer in range(layers):
            for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_down", "ffn_up"):
                out.write(source.matrix(f"blk.{layer}.{name}.weight"))
            for name in ("attn_norm", "ffn_norm"):
                out.write(source.f32(f"blk.{layer}.{name}.weight").tobytes())
        out.write(source.f32("output_norm.weight").tobytes())
        out.write(source.matrix("output.weight" if "output.weight" in source.tensors else "token_embd.weight"))


def byte_of_letter():
    """The letters in which GPT-2 vocabularies write bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(others)}


def write_tokenizer(source, path):
    bytes_of = byte_of_letter()
    tokens = []
    for text in source.field("tokenizer.ggml.tokens"):
        known = all(letter in bytes_of for letter in text)
        tokens.append((bytes(bytes_of[letter] for letter in text) or b"\0") if known else text.encode())
    # It takes the ids below that of BOS for the ordinary vocabulary.
    fields = [(0, 1), (1, len(tokens)), (2, max(map(len, tokens))), (3, len(tokens) - 1), (9, 1), (10, 0)]
    data = b"".join(struct.pack("ii", key, value) for key, value in fields)
    with open(path, "wb") as out:
        out.write(struct.pack("ii", TOKENIZER_MAGIC, 8 + len(data)) + data)
        out.write(struct.pack("i", source.field("tokenizer.ggml.eos_token_id")))
        for i, token in enumerate(tokens):
            out.write(struct.pack("fI", -float(i), len(token)) + token)


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    source = Source(sys.argv[1])
    if source.field("general.architecture") != "llama":
        sys.exit(f"{sys.argv[1]}: not of the llama architecture")
    write_model(source, sys.argv[2])
    write_tokenizer(source, sys.argv[3])


if __name__ == "__main__":
    main()
