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



def u32(key, v):
    return (key, 4, struct.pack("<I", v))


def f32(key, v):
    return (key, 6, struct.pack("<f", v))


def model(arch, extra, tensors):
    a = arch + "."
    return gguf([("general.architecture", 8, text(arch)), u32(a + "block_count", 2), u32(a + "context_length", 64),
                 u32(a + "embedding_length", 32), u32(a + "feed_forward_length", 32),
                 u32(a + "attention.head_count", 2), u32(a + "attention.head_count_kv", 1),
                 u32(a + "attention.key_length", 32), u32(a + "attention.value_length", 32),
                 f32(a + "attention.layer_norm_rms_epsilon", 1e-6), f32(a + "rope.freq_base", 1e6)] + extra, tensors)


def draft(arch, fc, norm, extra):
    own = "dflash." if arch == "dflash" else arch + ".dflash."
    return model(arch, [u32(own + "block_size", 4)] + extra,
                 [(fc, [32, 32], 8, b"\1" * 34 * 32), (norm, [32], 0, b"\0" * 128)])


TABLE = [("token_embd.weight", [32, 2], 8, b"\1" * 68)]
HPARAMS = {
    "qwen3": model("qwen3", [], TABLE),
    "qwen35": model("qwen35", [u32("qwen35.ssm.conv_kernel", 4), u32("qwen35.ssm.state_size", 128),
                               u32("qwen35.ssm.group_count", 1), u32("qwen35.ssm.time_step_rank", 2),
                               u32("qwen35.ssm.inner_size", 256), u32("qwen35.nextn_predict_layers", 1),
                               ("tokenizer.ggml.token_type", 9, array(5, "i", [1, 5]))], TABLE),
    "dflash-draft": draft("dflash-draft", "dflash_fc.weight", "dflash_hidden_norm.weight",
                          [u32("dflash-draft.dflash.mask_token_id", 1),
                           ("dflash-draft.dflash.target_layer_ids", 9, array(5, "i", [1])),
                           u32("dflash-draft.attention.sliding_window", 8),
                           ("dflash-draft.attention.sliding_window_pattern", 9, array(7, "B", [1, 0]))]),
    "qwen35-dflash-draft": draft("qwen35-dflash-draft", "dflash.fc.weight", "dflash.hidden_norm.weight",
                                 [u32("qwen35-dflash-draft.dflash.mask_token_id", 1),
                                  u32("qwen35-dflash-draft.dflash.n_target_layers", 1)]),
    "dflash": draft("dflash", "fc.weight", "enc.output_norm.weight",
                    [u32("tokenizer.ggml.mask_token_id", 1), ("dflash.target_layers", 9, array(5, "i", [2]))]),
}

for folder, seeds in (("gguf", GGUF), ("safetensors", SAFE), ("hparams", HPARAMS)):
    os.makedirs(os.path.join(HERE, "corpus", folder), exist_ok=True)
    for name, raw in seeds.items():
        with open(os.path.join(HERE, "corpus", folder, name), "wb") as f:
            f.write(raw)
