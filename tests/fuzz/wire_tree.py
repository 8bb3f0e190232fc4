"""Protobuf on the wire as a tree that can be made wrong: what no protobuf library would write.

A tree is a list of (field number, wire type, value); the value is an int (VARINT), bytes (FIXED32, FIXED64, LENGTH), or a
tree of its own (LENGTH, GROUP).
"""

VARINT, FIXED64, LENGTH, GROUP, END_GROUP, FIXED32 = range(6)


def varint(value, pad=0):
    """`pad`: so many bytes more than needed; beyond ten in all it is malformed."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    if pad:
        out.append(value | 0x80)
        out += b"\x80" * (pad - 1) + b"\x00"
    else:
        out.append(value)
    return bytes(out)


def encode(tree):
    out = bytearray()
    for number, kind, value in tree:
        out += varint(number << 3 | kind)
        if kind == VARINT:
            out += varint(value)
        elif kind == LENGTH:
            data = encode(value) if isinstance(value, list) else value
            out += varint(len(data)) + data
        elif kind == GROUP:
            out += encode(value) + varint(number << 3 | END_GROUP)
        else:
            out += value
    return bytes(out)


def trees_of(tree):
    """The tree and all trees within it."""
    found = [tree]
    for _, _, value in tree:
        if isinstance(value, list):
            found += trees_of(value)
    return found


def spoil_tree(rng, tree):
    """Changes one thing of the structure, in place."""
    target = rng.choice(trees_of(tree))
    place = rng.randrange(len(target) + 1)
    kind = rng.randrange(7)
    if kind == 0:  # a field nobody knows
        number = rng.choice([19, 99, 1000, 18999, (1 << 29) - 1])
        target.insert(place, (number, *rng.choice([(VARINT, 7), (LENGTH, b"unknown"), (FIXED32, b"1234"),
                                                   (FIXED64, b"12345678"), (GROUP, [(1, VARINT, 1)])])))
    elif kind == 1 and target:  # the same field again: the last one holds, messages are merged
        target.insert(place, rng.choice(target))
    elif kind == 2 and target:  # another wire type: an unknown field to protobuf
        at = rng.randrange(len(target))
        target[at] = (target[at][0], *rng.choice([(VARINT, rng.getrandbits(64)), (LENGTH, rng.randbytes(3)),
                                                  (FIXED32, rng.randbytes(4)), (FIXED64, rng.randbytes(8))]))
    elif kind == 3 and target:
        del target[rng.randrange(len(target))]
    elif kind == 4:  # groups within groups, beyond what parsers follow
        group = []
        for _ in range(rng.choice([10, 150, 5000])):
            group = [(1, GROUP, group)]
        try:
            target.insert(place, (50, LENGTH, encode(group)))
        except RecursionError:
            target.insert(place, (50, LENGTH, varint(1 << 3 | GROUP) * 5000))
    elif kind == 5 and target:
        rng.shuffle(target)
    else:  # field numbers that cannot be
        target.insert(place, (rng.choice([0, 1 << 29, (1 << 32) - 1]), VARINT, 1))


def spoil_bytes(rng, data):
    """Changes some bytes, wherever they are."""
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 5])):
        kind = rng.randrange(6)
        at = rng.randrange(len(data) + 1)
        if kind == 0 and data:
            data[min(at, len(data) - 1)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[at:]
        elif kind == 2:
            data[at:at] = rng.randbytes(rng.choice([1, 4, 40]))
        elif kind == 3:
            data[at:at] = varint(rng.getrandbits(64), pad=rng.randrange(1, 12))
        elif kind == 4:
            del data[at:at + rng.randrange(1, 9)]
        else:
            data[at:at] = data[at:at + rng.randrange(1, 64)]
    return bytes(data)
