#!/usr/bin/env python3
"""Makes a GGUF file of the llama architecture with random F16 weights and the tokenizer of another one: for the speed of
shapes that divide over 2 or 4 workers. Needs numpy and llama.cpp's gguf package (PYTHONPATH)."""

import argparse

import numpy
from gguf import GGUFReader, GGUFWriter


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("donor", help="GGUF file whose tokenizer is taken")
    parser.add_argument("out")
    for name in ("hidden", "layers", "heads", "kv-heads", "ffn"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def main():
    args = arguments()
    random = numpy.random.default_rng(args.seed)
    head_dim = args.hidden // args.heads
    reader, writer = GGUFReader(args.donor), GGUFWriter(args.out, "llama")

    def field(key):
        return reader.fields[key].contents()

    tokens = field("tokenizer.ggml.tokens")
    writer.add_name("synthetic")
    writer.add_context_length(8192)
    writer.add_embedding_length(args.hidden)
    writer.add_block_count(args.layers)
    writer.add_feed_forward_length(args.ffn)
    writer.add_head_count(args.heads)
    writer.add_head_count_kv(args.kv_heads)
    writer.add_rope_freq_base(100000.0)
    writer.add_rope_dimension_count(head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(1)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model(field("tokenizer.ggml.model"))
    writer.add_tokenizer_pre(field("tokenizer.ggml.pre"))
    writer.add_token_list(tokens)
    writer.add_token_types(field("tokenizer.ggml.token_type"))
    writer.add_token_merges(field("tokenizer.ggml.merges"))
    writer.add_bos_token_id(field("tokenizer.ggml.bos_token_id"))
    writer.add_eos_token_id(field("tokenizer.ggml.eos_token_id"))
    writer.add_add_bos_token(False)

    def matrix(name, rows, cols):
        values = random.standard_normal((rows, cols), dtype=numpy.float32) * cols ** -0.5
        writer.add_tensor(f"{name}.weight", values.astype(numpy.float16))

    def norm(name):
        writer.add_tensor(f"{name}.weight", numpy.ones(args.hidden, numpy.float32))

    matrix("token_embd", len(tokens), args.hidden)
    norm("output_norm")
    for layer in range(args.layers):
        block = f"blk.{layer}"
        norm(f"{block}.attn_norm")
        norm(f"{block}.ffn_norm")
        matrix(f"{block}.attn_q", args.hidden, args.hidden)
        matrix(f"{block}.attn_k", args.kv_heads * head_dim, args.hidden)
        matrix(f"{block}.attn_v", args.kv_heads * head_dim, args.hidden)
        matrix(f"{block}.attn_output", args.hidden, args.hidden)
        matrix(f"{block}.ffn_gate", args.ffn, args.hidden)
        matrix(f"{block}.ffn_up", args.ffn, args.hidden)
        matrix(f"{block}.ffn_down", args.hidden, args.ffn)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
