"""Random blocks of GGUF's quantized types and what the gguf package makes of them: tests/golden/gguf_blocks.json.

    pip install gguf==0.19.0 && python tests/golden/gguf_blocks.py > tests/golden/gguf_blocks.json
"""
import json
import random

import gguf
import numpy

# Type, blocks, bytes of the f16 numbers in a block.
TYPES = [("Q4_0", 4, [0]), ("Q4_1", 4, [0, 2]), ("Q5_0", 4, [0]), ("Q5_1", 4, [0, 2]), ("Q8_0", 4, [0]),
         ("Q2_K", 4, [80, 82]), ("Q3_K", 4, [108]), ("Q4_K", 4, [0, 2]), ("Q5_K", 4, [0, 2]), ("Q6_K", 4, [208])]

rng = random.Random(20240)
types = {}
for name, count, halves in TYPES:
    kind = gguf.GGMLQuantizationType[name]
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = []
    for _ in range(count):
        block = bytearray(rng.randbytes(size))
        for at in halves:
            block[at + 1] &= 0xBF  # finite: magnitudes below 2
        blocks.append(bytes(block))
    stored = numpy.frombuffer(b"".join(blocks), dtype=numpy.uint8).reshape(count, size)
    values = gguf.quants.dequantize(stored, kind)
    assert values.shape == (count, elements) and values.dtype == numpy.float32
    types[name.lower()] = [{"block": block.hex(), "f32": row.astype("<f4").tobytes().hex()}
                           for block, row in zip(blocks, values)]
print(json.dumps({"producer": "gguf 0.19.0, gguf.quants.dequantize; made by gguf_blocks.py", "types": types}, indent=0))
