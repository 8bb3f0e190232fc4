"""Copies a quantized fixture, of its golden tensors only the logits that tests compare.

python3 keep_logits.py FIXTURE_FOLDER DESTINATION
"""
import json
import pathlib
import shutil
import struct
import sys

# The first kind that a fixture has; those of GGUF have only the second.
KEPT = (".last_logits.exact_weights_fp32", ".last_logits.tool_weights_fp32")


def keep_logits(source, destination):
    data = source.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + size])
    kept = {"__metadata__": header.get("__metadata__", {})}
    body = b""
    ending = next(kind for kind in KEPT if any(n.endswith(kind) for n in header))
    for name in sorted(n for n in header if n.endswith(ending)):
        begin, end = header[name]["data_offsets"]
        tensor = data[8 + size + begin:8 + size + end]
        kept[name] = {**header[name], "data_offsets": [len(body), len(body) + len(tensor)]}
        body += tensor
    text = json.dumps(kept).encode()
    text += b" " * (-len(text) % 8)
    destination.write_bytes(struct.pack("<Q", len(text)) + text + body)


def main():
    source, destination = map(pathlib.Path, sys.argv[1:])
    destination.mkdir(exist_ok=True)
    for file in source.iterdir():
        if file.name in ("config.json", "golden.json", "model.safetensors") or file.suffix == ".gguf":
            shutil.copyfile(file, destination / file.name)
    keep_logits(source / "golden.safetensors", destination / "golden.safetensors")


if __name__ == "__main__":
    main()
