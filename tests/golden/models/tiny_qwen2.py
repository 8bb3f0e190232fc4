"""Makes tiny-qwen2 and tiny-qwen2-gguf: a random Qwen2 in both containers, and its logits by an
independent implementation (numpy, float64).

python3 tiny_qwen2.py FOLDER         writes FOLDER/tiny-qwen2 and FOLDER/tiny-qwen2-gguf
python3 tiny_qwen2.py --check MODEL  compares this implementation with MODEL's golden.safetensors,
                                     a llama without rope scaling that transformers has run
"""
import json
import pathlib
import struct
import sys

import numpy as np

CONFIG = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 64, "intermediate_size": 160,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 320,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "hidden_act": "silu",
    "tie_word_embeddings": True, "use_sliding_window": False, "sliding_window": 128, "max_window_layers": 2,
    "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16",
}
SEED = 20241201
PROMPTS = (1, 17, 130)


def to_bf16(x):
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def forward(config, weights, ids):
    """Logits of the last position. weights: name -> float64."""
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    dim = config.get("head_dim") or config["hidden_size"] // heads
    eps = config["rms_norm_eps"]
    theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
    n = len(ids)
    angle = np.arange(n)[:, None] * theta ** (-np.arange(0, dim, 2) / dim)[None, :]
    cos, sin = np.cos(angle)[:, None, :], np.sin(angle)[:, None, :]

    def norm(x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weights[name + ".weight"]

    def linear(x, name):
        y = x @ weights[name + ".weight"].T
        return y + weights[name + ".bias"] if name + ".bias" in weights else y

    def rope(x):  # [n, heads, dim], halves
        a, b = x[..., :dim // 2], x[..., dim // 2:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    x = weights["model.embed_tokens.weight"][ids]
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        h = norm(x, layer + "input_layernorm")
        q = rope(linear(h, layer + "self_attn.q_proj").reshape(n, heads, dim))
        k = rope(linear(h, layer + "self_attn.k_proj").reshape(n, kv_heads, dim))
        v = linear(h, layer + "self_attn.v_proj").reshape(n, kv_heads, dim)
        k, v = (np.repeat(t, heads // kv_heads, axis=1) for t in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(dim)
        scores = np.where(np.tril(np.ones((n, n), bool)), scores, -np.inf)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        h = np.einsum("hqk,khd->qhd", p, v).reshape(n, heads * dim)
        x = x + linear(h, layer + "self_attn.o_proj")
        h = norm(x, layer + "post_attention_layernorm")
        gate, up = linear(h, layer + "mlp.gate_proj"), linear(h, layer + "mlp.up_proj")
        x = x + linear(gate / (1 + np.exp(-gate)) * up, layer + "mlp.down_proj")
    last = norm(x[-1], "model.norm")
    head = "model.embed_tokens" if config["tie_word_embeddings"] else "lm_head"
    return weights[head + ".weight"] @ last


def random_weights():
    rng = np.random.default_rng(SEED)
    c, out = CONFIG, {}
    hidden, dim = c["hidden_size"], c["hidden_size"] // c["num_attention_heads"]

    def matrix(name, rows, cols):
        out[name + ".weight"] = rng.normal(0, cols**-0.5, (rows, cols))

    def vector(name, size, mean, spread):
        out[name] = rng.normal(mean, spread, size)

    matrix("model.embed_tokens", c["vocab_size"], hidden)
    out["model.embed_tokens.weight"] *= 3
    for i in range(c["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        vector(layer + "input_layernorm.weight", hidden, 1, 0.2)
        for name, count in (("q", c["num_attention_heads"]), ("k", c["num_key_value_heads"]),
                            ("v", c["num_key_value_heads"])):
            matrix(layer + f"self_attn.{name}_proj", count * dim, hidden)
            vector(layer + f"self_attn.{name}_proj.bias", count * dim, 0, 1)
        matrix(layer + "self_attn.o_proj", hidden, hidden)
        vector(layer + "post_attention_layernorm.weight", hidden, 1, 0.2)
        matrix(layer + "mlp.gate_proj", c["intermediate_size"], hidden)
        matrix(layer + "mlp.up_proj", c["intermediate_size"], hidden)
        matrix(layer + "mlp.down_proj", hidden, c["intermediate_size"])
    vector("model.norm.weight", hidden, 1, 0.2)
    return {name: to_bf16(value) for name, value in out.items()}


def write_safetensors(path, tensors):
    """tensors: name -> (dtype, array)."""
    header, body = {}, b""
    for name, (dtype, array) in tensors.items():
        data = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def read_safetensors(path):
    data = path.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    header, out = json.loads(data[8:8 + size]), {}
    types = {"BF16": np.uint16, "F32": np.float32, "I32": np.int32, "I64": np.int64}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        array = np.frombuffer(data[8 + size + begin:8 + size + end], types[entry["dtype"]]).reshape(entry["shape"])
        out[name] = from_bf16(array) if entry["dtype"] == "BF16" else array
    return out


GGUF_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}


def gguf_name(name):
    module, suffix = name.rsplit(".", 1)
    if module.startswith("model.layers."):
        _, _, number, rest = module.split(".", 3)
        return f"blk.{number}.{GGUF_NAMES[rest]}.{suffix}"
    return f"{GGUF_NAMES[module]}.{suffix}"


def write_gguf(path, weights):
    """As llama.cpp's converter writes a qwen2: matrices in BF16, vectors in F32, no rows permuted."""
    def string(text):
        return struct.pack("<Q", len(text)) + text.encode()

    def entry(key, kind, value):
        return string(key) + struct.pack("<I", kind) + value

    c = CONFIG
    u32 = {"block_count": c["num_hidden_layers"], "context_length": c["max_position_embeddings"],
           "embedding_length": c["hidden_size"], "feed_forward_length": c["intermediate_size"],
           "attention.head_count": c["num_attention_heads"], "attention.head_count_kv": c["num_key_value_heads"],
           "vocab_size": c["vocab_size"]}
    f32 = {"rope.freq_base": c["rope_theta"], "attention.layer_norm_rms_epsilon": c["rms_norm_eps"]}
    entries = [entry("general.architecture", 8, string("qwen2")), entry("general.name", 8, string("tiny-qwen2"))]
    entries += [entry(f"qwen2.{key}", 4, struct.pack("<I", value)) for key, value in u32.items()]
    entries += [entry(f"qwen2.{key}", 6, struct.pack("<f", value)) for key, value in f32.items()]
    infos, body = b"", b""
    for name, bits in weights.items():
        is_matrix = bits.ndim == 2
        data = bits.tobytes() if is_matrix else from_bf16(bits).tobytes()
        infos += string(gguf_name(name)) + struct.pack("<I", bits.ndim)
        infos += b"".join(struct.pack("<Q", size) for size in reversed(bits.shape))
        infos += struct.pack("<IQ", 30 if is_matrix else 0, len(body))
        body += data + b"\0" * (-len(data) % 32)
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(weights), len(entries)) + b"".join(entries) + infos
    path.write_bytes(head + b"\0" * (-len(head) % 32) + body)


def make(folder):
    weights = random_weights()
    exact = {name: from_bf16(bits).astype(np.float64) for name, bits in weights.items()}
    rng = np.random.default_rng(SEED + 1)
    golden = {}
    for n in PROMPTS:
        ids = rng.integers(3, CONFIG["vocab_size"], n).astype(np.int32)
        golden[f"p{n}.input_ids"] = ("I32", ids)
        golden[f"p{n}.last_logits"] = ("F32", forward(CONFIG, exact, ids).astype(np.float32))
    hf, gguf = folder / "tiny-qwen2", folder / "tiny-qwen2-gguf"
    for path in (hf, gguf):
        path.mkdir(exist_ok=True)
        write_safetensors(path / "golden.safetensors", golden)
    (hf / "config.json").write_text(json.dumps(CONFIG, indent=1) + "\n")
    write_safetensors(hf / "model.safetensors", {name: ("BF16", bits) for name, bits in weights.items()})
    write_gguf(gguf / "tiny-qwen2-BF16.gguf", weights)


def check(model):
    config = json.loads((model / "config.json").read_text())
    weights = {name: value.astype(np.float64) for name, value in read_safetensors(model / "model.safetensors").items()}
    golden = read_safetensors(model / "golden.safetensors")
    for n in (1, 17, 130):
        expected = golden[f"p{n}.fp32.last_logits"].astype(np.float64)
        error = forward(config, weights, golden[f"p{n}.input_ids"]) - expected
        print(f"{model.name} prompt of {n}: relative L2 {np.linalg.norm(error) / np.linalg.norm(expected):.3g}")


if __name__ == "__main__":
    if sys.argv[1] == "--check":
        check(pathlib.Path(sys.argv[2]))
    else:
        make(pathlib.Path(sys.argv[1]))
