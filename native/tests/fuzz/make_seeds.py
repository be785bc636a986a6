#!/usr/bin/env python3
"""Writes the tiny seed files of the fuzz targets into corpus/: one per feature of the formats."""
import json
import os
import struct

HERE = os.path.dirname(os.path.abspath(__file__))


def text(s):
    b = s.encode()
    return struct.pack("<Q", len(b)) + b


def gguf(values, tensors, version=3, align=32):
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(values))
    for key, kind, raw in values:
        out += text(key) + struct.pack("<I", kind) + raw
    data = b""
    for name, ne, kind, raw in tensors:
        out += text(name) + struct.pack("<I", len(ne)) + struct.pack("<%dQ" % len(ne), *ne)
        out += struct.pack("<IQ", kind, len(data))
        data += raw + b"\0" * (-len(raw) % align)
    return out + b"\0" * (-len(out) % align) + data


def array(kind, fmt, items):
    body = b"".join(text(i) for i in items) if kind == 8 else struct.pack("<%d%s" % (len(items), fmt), *items)
    return struct.pack("<IQ", kind, len(items)) + body


GGUF = {
    "empty": gguf([], []),
    "scalars": gguf([("a", 0, b"\7"), ("b", 1, b"\xff"), ("c", 2, b"\1\2"), ("d", 3, b"\1\2"), ("e", 5, b"\1\0\0\0"),
                     ("f", 6, struct.pack("<f", 1.5)), ("g", 7, b"\1"), ("h", 10, b"\1" * 8), ("i", 11, b"\1" * 8),
                     ("j", 12, struct.pack("<d", 2.5)), ("general.architecture", 8, text("qwen35"))], []),
    "arrays": gguf([("a", 9, array(5, "i", [1, 2, 3])), ("b", 9, array(7, "B", [1, 0])),
                    ("tokens", 9, array(8, "", ["x", "", "yz"]))], []),
    "tensors": gguf([("general.alignment", 4, struct.pack("<I", 64))],
                    [("w", [32, 2], 8, b"\1" * 68), ("n", [4], 0, b"\0" * 16), ("q", [256, 1, 1], 12, b"\2" * 144)],
                    align=64),
    "version2": gguf([("split.count", 2, b"\1\0")], [("w", [3], 30, b"\0" * 6)], version=2),
    "types": gguf([], [("t%d" % i, [256], t, b"\3" * n) for i, (t, n) in enumerate(
        [(2, 144), (3, 160), (6, 176), (7, 192), (13, 176), (14, 210), (20, 144), (23, 136), (39, 136), (40, 144)])]),
}


def safetensors(header, data):
    h = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(h)) + h + data


SAFE = {
    "empty": safetensors({}, b""),
    "two": safetensors({"__metadata__": {"format": "pt"},
                        "fc.weight": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]},
                        "norm.weight": {"dtype": "F32", "shape": [1], "data_offsets": [12, 16]}}, b"\1" * 16),
    "escapes": safetensors(b'{"a\\u00e9\\n":{"shape":[1],"dtype":"F16","data_offsets":[0,2]}  }', b"\1\2"),
    "deep": safetensors(b'{"__metadata__":{"a":[[[{"b":[1.5e3,-2,true,null]}]]]}}', b""),
}

for folder, seeds in (("gguf", GGUF), ("safetensors", SAFE)):
    os.makedirs(os.path.join(HERE, "corpus", folder), exist_ok=True)
    for name, raw in seeds.items():
        with open(os.path.join(HERE, "corpus", folder, name), "wb") as f:
            f.write(raw)
