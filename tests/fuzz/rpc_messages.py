"""Requests made from the descriptors of the public API: every field of every message, with values that mean something to the
service, values at and beyond the bounds, and values that are no values at all.
"""

import json
import struct

from google.protobuf.descriptor import FieldDescriptor as Field

from wire_tree import FIXED32, FIXED64, GROUP, LENGTH, VARINT, encode, spoil_bytes, spoil_tree, varint

VOCABULARY = 512
_IDS = [f"fuzz-{i}" for i in range(6)]

_SCHEMAS = [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False},
            {"type": "string", "maxLength": 5}, {"enum": ["x", 1, None]}, {"type": "array", "items": {"type": "boolean"}},
            {"type": "object", "not": {}}, {"$ref": "#/$defs/n", "$defs": {"n": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/n"}]}}},
            {"type": "string", "pattern": "^[a-c]{1,4}$"}, {"type": "integer", "minimum": 3, "maximum": -3}, {}, True, 7]
_JSON = ['{}', '{"enable_thinking": false}', '{"a": [1, 2, {"b": null}]}', '[', '{"a":', 'null', '"x"', '1e999', '{"a":1,"a":2}',
         '{"messages": 1}', "[" * 20000, '{"a":' * 3000, '"' + "\\u0000" * 50 + '"', '{"\ud83d\ude00": "\\ud800"}'.encode("utf-8", "surrogatepass")]
# None whose states fill the memory that is set aside for grammars: a leak of 1 kB a request would not show beside it.
_REGEXES = ["[a-z]+", "(yes|no)", "\\d{1,3}", "a*b?c", "(", "[", "a{1,5000}", "(a|b)*c" * 20, "(?=x)", "\\b", ".", "(" * 3000,
            "((a{1,9}){1,9}){1,9}", "[^\\x00-\\x7f]", "\\u{110000}", "x" * 70000, ""]
_GRAMMARS = ['root ::= "a" | "b" root', 'root ::= [0-9]+', 'root ::= root', 'root ::= x', 'rot ::= "a"', 'root ::= "a" {3,2}', '',
             'root ::= ' + '(' * 2000, 'root ::= "\\', 'root ::= [^\\n]* "\\n"', 'root ::= ("a" | ("b" | "c")*){2,4}']
_TEXTS = ["x", "def main():\n    return 1\n", "The capital of France is", "Grüße, 世界! \U0001f600", "", " ", "\x00", "\n" * 50,
          "<|im_start|>user\nhi<|im_end|>", "<|endoftext|>", "a" * 700, "\u0e01\u0e33" * 40, "\ufffd\uffff\u202e", "e\u0301" * 30]
_NO_UTF8 = [b"\xc3\x28", b"\xed\xa0\x80", b"\xff", b"ok\x80", b"\xf4\x90\x80\x80", b"\xc0\x80"]

# Values that the service can use, by the field's name; others come from the field's type.
_MEANT = {
    "text": _TEXTS, "content": _TEXTS, "texts": _TEXTS, "reasoning": _TEXTS[:3],
    "model": ["tiny-llama-q", "tiny-llama-q", "", "no-such-model"], "role": ["user", "assistant", "system", "tool", "x", ""],
    "json_schema": [json.dumps(s) for s in _SCHEMAS] + _JSON, "regex": _REGEXES, "grammar": _GRAMMARS,
    "options": ["yes", "no", "maybe", "", "a" * 200], "strings": ["e ", "\n", "a", "zq", "", "b" * 300],
    "parameters_json": _JSON, "arguments_json": _JSON, "template_variables_json": _JSON,
    "mime_type": ["image/png", ""], "uri": ["file:/", "http://127.0.0.1:1/"], "adapter": ["", "lora"],
    "cache_salt": ["", "s", "t" * 1000], "service": ["", "readiness", "liveness", "nonsense"],
    "temperature": [0.0, 0.7, 1.0, 2.0], "top_k": [0, 1, 20], "top_p": [1.0, 0.9, 0.01], "min_p": [0.0, 0.05, 1.0],
    "presence_penalty": [0.0, 1.5, -2.0], "frequency_penalty": [0.0, 0.5, 2.0], "repetition_penalty": [1.0, 1.3, 0.5],
    "max_tokens": [1, 2, 8, 24], "min_tokens": [0, 1, 5], "top_logprobs": [0, 1, 5, 20], "first_token": [0, 1], "choices": [1, 1, 2, 4],
    "choice": [0, 0, 1], "seed": [0, 1, (1 << 64) - 1], "dimensions": [1, 64, 128], "priority": [0, 0, -5, 5],
}
_TOKEN_FIELDS = {"ids", "token_ids", "allowed_token_ids", "banned_token_ids", "output_ids", "token_id"}
# Left out more often than set: what is not built answers at once, and what is slow would fill the time.
_RARE = {"media": 0.05, "adapter": 0.05, "constraint": 0.15, "resume": 0.12, "model": 0.2, "allowed_token_ids": 0.08,
         "banned_token_ids": 0.1, "template_variables_json": 0.1, "tools": 0.15, "choices": 0.15}
_OFTEN = {"max_tokens": 0.95, "ids": 1.0, "messages": 1.0, "role": 0.97, "content": 0.97, "texts": 0.9}

_INTS = [0, 1, 2, 3, 127, 128, 255, 256, 511, 512, 65535, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, -1]
_FLOATS = [0.0, -0.0, 1.0, 0.5, -1.0, 2.0, 100.0, 1e-45, 3.4e38, float("nan"), float("inf"), float("-inf"), -2.5]

_STRINGS = [b"", b"\x00", b"a" * 129, b"a" * 257, b"a" * 65537, b"[" * 9000, b"%s%n../../"]
# Ids of several requests at once: duplicates, Abort, supersede.
SHARED_IDS = _IDS + [text.decode() for text in _STRINGS]
# No protobuf at all: groups that no parser follows, and little else.
_NO_MESSAGES = [b"", b"\xff", *(varint(1 << 3 | GROUP) * depth for depth in (50, 150, 100000))]


def pick(rng, values):
    return values[rng.randrange(len(values))]


class MessageMaker:
    """`wild`: 0 = as a careful caller would, 1 = nothing makes sense."""

    def __init__(self, rng, wild):
        self._rng, self._wild = rng, wild

    def tree(self, descriptor):
        rng, tree, in_oneof = self._rng, [], set()
        for oneof in descriptor.oneofs:
            if len(oneof.fields) < 2:
                continue  # a proto3 optional
            in_oneof.update(field.number for field in oneof.fields)
            # Exactly one, but for a wild hand.
            for _ in range(rng.choice([0, 1, 2, 3]) if rng.random() < self._wild / 2 else 1):
                tree += self._field(pick(rng, oneof.fields))
        for field in descriptor.fields:
            chance = _RARE.get(field.name, _OFTEN.get(field.name, 0.3))
            if field.number not in in_oneof and rng.random() < chance * (1 - self._wild) + 0.4 * self._wild:
                tree += self._field(field)
        return tree

    def _field(self, field):
        rng = self._rng
        if not field.is_repeated:
            return [self._one(field)]
        if field.name in _TOKEN_FIELDS and rng.random() < 0.9:  # packed, as generated code writes it
            count = rng.choice([1, 2, 5, 17, 60]) if rng.random() < 0.97 else rng.choice([0, 300, 600, 20000])
            return [(field.number, LENGTH, b"".join(varint(self._token()) for _ in range(count)))]
        count = rng.choice([1, 1, 1, 2, 3]) if rng.random() > 0.1 * self._wild else rng.choice([0, 20, 200, 1500])
        return [self._one(field) for _ in range(count)]

    def _token(self):
        return self._rng.randrange(7, VOCABULARY) if self._rng.random() > 0.02 * self._wild else pick(self._rng, _INTS)

    def _one(self, field):
        rng = self._rng
        if field.type == Field.TYPE_MESSAGE:
            if field.message_type.GetOptions().map_entry:
                return (field.number, LENGTH, [(1, VARINT, self._token()), self._one(field.message_type.fields_by_name["value"])])
            return (field.number, LENGTH, self.tree(field.message_type))
        if rng.random() < self._wild * 0.6:
            return (field.number, *self._wild_value(field.type))
        if field.name == "request_id" or field.name == "request_ids":
            return (field.number, LENGTH, (pick(rng, _IDS) if rng.random() < 0.3 else f"own-{rng.getrandbits(64):x}").encode())
        if field.name in _TOKEN_FIELDS:
            return (field.number, VARINT, self._token())
        is_text = field.type == Field.TYPE_STRING
        if field.name in _MEANT and is_text == isinstance(_MEANT[field.name][0], str):  # OutputOptions.text is a bool
            return (field.number, *_written(field.type, pick(rng, _MEANT[field.name])))
        return (field.number, *self._plain_value(field))

    def _plain_value(self, field):
        rng = self._rng
        if field.type == Field.TYPE_ENUM:
            return VARINT, pick(rng, field.enum_type.values).number
        if field.type == Field.TYPE_BOOL:
            return VARINT, rng.randrange(2)
        if field.type in (Field.TYPE_STRING, Field.TYPE_BYTES):
            return LENGTH, pick(rng, [b"", b"a", b"tool_1", b"name", b"a longer value"])
        if field.type in (Field.TYPE_FLOAT, Field.TYPE_DOUBLE):
            return _written(field.type, rng.random())
        return VARINT, rng.choice([0, 1, 2, 5])

    def _wild_value(self, kind):
        rng = self._rng
        if kind in (Field.TYPE_FLOAT, Field.TYPE_DOUBLE):
            return _written(kind, pick(rng, _FLOATS))
        if kind in (Field.TYPE_STRING, Field.TYPE_BYTES):
            return LENGTH, rng.randbytes(20) if rng.random() < 0.1 else pick(rng, _NO_UTF8 if rng.random() < 0.3 else _STRINGS)
        return VARINT, pick(rng, _INTS)


def _written(kind, value):
    """(wire type, value) of a value of a field's type."""
    if kind == Field.TYPE_FLOAT:
        return FIXED32, struct.pack("<f", value)
    if kind == Field.TYPE_DOUBLE:
        return FIXED64, struct.pack("<d", value)
    if kind in (Field.TYPE_STRING, Field.TYPE_BYTES):
        return LENGTH, value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")
    return VARINT, value


def make_request(rng, descriptor):
    """The bytes of one request."""
    kind = rng.random()
    if kind < 0.02:
        return rng.randbytes(rng.randrange(1, 200)) if rng.random() < 0.5 else pick(rng, _NO_MESSAGES)
    if kind < 0.025:  # beyond what the server takes
        return encode([(3, LENGTH, b"a" * rng.choice([1 << 20, 8 << 20, 9 << 20]))])
    if kind < 0.03:
        return encode([(rng.randrange(1, 12), LENGTH, b"\x08\x01" * 100000) for _ in range(3)])
    tree = MessageMaker(rng, wild=rng.choice([0, 0, 0.05, 0.2, 1])).tree(descriptor)
    if kind < 0.15:
        for _ in range(rng.choice([1, 1, 3])):
            spoil_tree(rng, tree)
    data = encode(tree)
    return spoil_bytes(rng, data) if kind > 0.9 else data


def fields_of(descriptor, seen=None):
    """"message.field" of all that a request of this type can hold."""
    seen = set() if seen is None else seen
    for field in descriptor.fields:
        name = f"{descriptor.full_name}.{field.name}"
        if name in seen:
            continue
        seen.add(name)
        if field.type == Field.TYPE_MESSAGE:
            fields_of(field.message_type, seen)
    return seen


def fields_set(message, found):
    """Adds the fields that `message` has to `found`."""
    for field, value in message.ListFields():
        found.add(f"{field.containing_type.full_name}.{field.name}")
        if field.type != Field.TYPE_MESSAGE:
            continue
        if field.message_type.GetOptions().map_entry:
            if value:
                found.update(f"{field.message_type.full_name}.{part}" for part in ("key", "value"))
        elif field.is_repeated:
            for one in value:
                fields_set(one, found)
        else:
            fields_set(value, found)
