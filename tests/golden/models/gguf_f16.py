"""Makes tiny-llama-q-F16.gguf, byte for byte as llama.cpp's converter made it of tiny-llama-q: 1.8 MB less to keep.

    gguf_f16.py tiny-llama-q/model.safetensors gguf-Q4_1/tiny-llama-q-Q4_1.gguf OUT.gguf

llama-quantize changed only the file's type and the tensors': the other metadata come from its file.
"""

import hashlib
import json
import struct
import sys

SHA256 = "0f6e7c408c832ccde0c39455496618df85efa7747570dc06555547cb0c8388ed"  # of the converter's file
FILE_TYPE = struct.pack("<Q", 17) + b"general.file_type" + struct.pack("<I", 4)  # the last metadata entry
F32, F16, Q4_1 = 0, 1, 3
ALIGNMENT = 32
HEAD_DIM = 64
MODULES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
           "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
MODULES |= {f"attn_{short}": f"self_attn.{short[0]}_proj" for short in ("q", "k", "v", "output")}
MODULES |= {f"ffn_{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")}


def stored_name(name):
    """blk.0.attn_q.weight: model.layers.0.self_attn.q_proj.weight."""
    *layer, module, _ = name.split(".")
    return f"model.layers.{layer[1]}.{MODULES[module]}.weight" if layer else f"{MODULES[module]}.weight"


def with_rotated_pairs_side_by_side(data, row_bytes):
    """Row s * HEAD_DIM / 2 + j of a head becomes row 2 j + s."""
    rows = [data[at:at + row_bytes] for at in range(0, len(data), row_bytes)]
    order = [s * HEAD_DIM // 2 + j for j in range(HEAD_DIM // 2) for s in (0, 1)]
    return b"".join(rows[head + row] for head in range(0, len(rows), HEAD_DIM) for row in order)


def main(safetensors_path, quantized_path, out_path):
    with open(safetensors_path, "rb") as file:
        stored = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        bf16 = file.read()
    with open(quantized_path, "rb") as file:
        quantized = file.read()
    at = quantized.index(FILE_TYPE + struct.pack("<I", Q4_1)) + len(FILE_TYPE) + 4
    header, data = bytearray(quantized[:at - 4] + struct.pack("<I", F16)), bytearray()
    for _ in range(struct.unpack_from("<Q", quantized, 8)[0]):
        name_bytes, = struct.unpack_from("<Q", quantized, at)
        name = quantized[at + 8:at + 8 + name_bytes].decode()
        dims_at = at + 8 + name_bytes
        dims, = struct.unpack_from("<I", quantized, dims_at)
        cols, = struct.unpack_from("<Q", quantized, dims_at + 4)
        end = dims_at + 4 + 8 * dims
        kind = F32 if dims == 1 else F16
        header += quantized[at:end] + struct.pack("<IQ", kind, len(data))
        at = end + 12

        begin, end = stored[stored_name(name)]["data_offsets"]
        words = bf16[begin:end]
        if ".attn_q." in name or ".attn_k." in name:
            words = with_rotated_pairs_side_by_side(words, 2 * cols)
        f32 = bytearray(2 * len(words))  # the upper halves
        f32[2::4], f32[3::4] = words[0::2], words[1::2]
        count = len(words) // 2
        data += f32 if kind == F32 else struct.pack(f"<{count}e", *struct.unpack(f"<{count}f", f32))
        data += bytes(-len(data) % ALIGNMENT)
    made = bytes(header) + bytes(-len(header) % ALIGNMENT) + bytes(data)
    if hashlib.sha256(made).hexdigest() != SHA256:
        sys.exit(f"{out_path}: not the bytes of the converter's file")
    with open(out_path, "wb") as file:
        file.write(made)


if __name__ == "__main__":
    main(*sys.argv[1:])
