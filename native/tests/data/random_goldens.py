#!/usr/bin/env python3
"""Computes the goldens of the random models with Hugging Face transformers, in float32 on the CPU.

usage: random_goldens.py [--hashes]

Makes the models of random_models.txt from their seeds, builds Qwen3_5ForCausalLM with these weights and writes
random_shapes.golden beside this script and tests/testdata/golden/random-shapes.json. --hashes only prints the SHA-256
of the files that the descriptions give. Needs numpy and, for goldens, torch and transformers from PyPI.
"""
import hashlib
import json
import pathlib
import struct
import sys

import numpy as np

HERE = pathlib.Path(__file__).parent
JSON = HERE.parents[2] / "tests" / "testdata" / "golden" / "random-shapes.json"
POSITIONS = 150  # of each input; two chunks of 64 rows and a rest
U32, I32, F32, STRING, ARRAY = 4, 5, 6, 8, 9  # types of GGUF values
TENSOR_TYPES = {"f32": 0, "bf16": 30}


def splitmix64(seed, start, count):
    """Draws start to start + count of the generator, as uint64."""
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(start + 1, start + count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def to_bf16(values):
    """float32 values as bf16 bits, rounded to nearest even."""
    bits = values.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


class Model:
    """One model: its keys, its tensors as float32 arrays in numpy's order of dimensions, and its file."""

    def __init__(self, name, seed, sha256):
        self.name, self.seed, self.sha256 = name, int(seed), sha256
        self.keys, self.tensors = {}, {}
        self._keys, self._records, self._data = [], [], []
        self._draws = self._offset = 0

    def _text(self, s):
        return struct.pack("<Q", len(s.encode())) + s.encode()

    def key(self, kind, key, rest):
        words = rest.split()
        if kind == "text":
            value, raw = rest, struct.pack("<I", STRING) + self._text(rest)
        elif kind == "u32":
            value, raw = int(rest), struct.pack("<II", U32, int(rest))
        elif kind == "f32":
            value, raw = float(rest), struct.pack("<If", F32, float(rest))
        elif kind == "names":
            value = [f"<t{i}>" for i in range(int(rest))]
            raw = struct.pack("<IIQ", ARRAY, STRING, len(value)) + b"".join(self._text(v) for v in value)
        elif kind in ("i32s", "same"):
            value = [int(w) for w in words] if kind == "i32s" else [int(words[1])] * int(words[0])
            raw = struct.pack(f"<IIQ{len(value)}i", ARRAY, I32, len(value), *value)
        else:
            raise ValueError(f"{self.name}: {kind} is no kind of line")
        self.keys[key] = value
        self._keys.append(self._text(key) + raw)

    def tensor(self, name, dtype, centre, spread, *ne):
        ne = [int(n) for n in ne]
        draws = splitmix64(self.seed, self._draws, int(np.prod(ne)))
        self._draws += len(draws)
        n = sum((draws >> np.uint64(shift) & np.uint64(0xFFFF)).astype(np.int64) for shift in (0, 16, 32, 48)) - 131070
        values = (int(centre) * 131072 + int(spread) * n).astype(np.float32) * np.float32(2**-24)
        stored = values
        if dtype == "bf16":
            stored = to_bf16(values)
            values = from_bf16(stored)
        self.tensors[name] = values.reshape(ne[::-1])
        shape = struct.pack(f"<I{len(ne)}Q", len(ne), *ne)
        self._records.append(self._text(name) + shape + struct.pack("<IQ", TENSOR_TYPES[dtype], self._offset))
        data = stored.tobytes()
        self._data.append(data + bytes(-len(data) % 32))
        self._offset += len(self._data[-1])

    def file(self):
        counts = struct.pack("<IQQ", 3, len(self._records), len(self._keys))
        head = b"GGUF" + counts + b"".join(self._keys + self._records)
        return head + bytes(-len(head) % 32) + b"".join(self._data)


def read_models():
    models = []
    for line in (HERE / "random_models.txt").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        kind, rest = line.split(" ", 1)
        if kind == "model":
            models.append(Model(*rest.split()))
        elif kind == "tensor":
            models[-1].tensor(*rest.split())
        else:
            models[-1].key(kind, *rest.split(" ", 1))
    return models


def build(keys, tensors):
    """The Hugging Face model of a qwen35 file (keys, tensors as in GGUF): docs/spec/qwen35.md, 3.1 and 4."""
    import torch
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    at = lambda key: keys["qwen35." + key]
    nk, nv, layers = at("ssm.group_count"), at("ssm.time_step_rank"), at("block_count")
    vocabulary, hidden = tensors["token_embd.weight"].shape
    tied = "output.weight" not in tensors
    config = Qwen3_5TextConfig(
        vocab_size=vocabulary, hidden_size=hidden, intermediate_size=at("feed_forward_length"),
        num_hidden_layers=layers, num_attention_heads=at("attention.head_count"),
        num_key_value_heads=at("attention.head_count_kv"), head_dim=at("attention.key_length"),
        rms_norm_eps=at("attention.layer_norm_rms_epsilon"), max_position_embeddings=at("context_length"),
        tie_word_embeddings=tied,
        rope_parameters={"rope_type": "default", "rope_theta": at("rope.freq_base"), "partial_rotary_factor":
                         at("rope.dimension_count") / at("attention.key_length"),
                         "mrope_section": at("rope.dimension_sections")[:3], "mrope_interleaved": True},
        linear_conv_kernel_dim=at("ssm.conv_kernel"), linear_key_head_dim=at("ssm.state_size"),
        linear_value_head_dim=at("ssm.state_size"), linear_num_key_heads=nk, linear_num_value_heads=nv,
        layer_types=["full_attention" if (i + 1) % at("full_attention_interval") == 0 else "linear_attention"
                     for i in range(layers)],
        attn_implementation="eager")

    # Value heads: tiled in GGUF (head j * nk + k reads key head k), grouped here (head k * r + j). Entry i of `heads`
    # is the GGUF head that head i takes.
    r = nv // nk
    heads = np.array([(i % r) * nk + i // r for i in range(nv)])
    channels = (heads[:, None] * 128 + np.arange(128)).ravel()
    behind_keys = np.concatenate([np.arange(2 * nk * 128), 2 * nk * 128 + channels])
    norm = lambda t: t.astype(np.float64) - 1  # GGUF norms have the 1 folded in
    state = {"model.embed_tokens.weight": tensors["token_embd.weight"],
             "model.norm.weight": norm(tensors["output_norm.weight"]),
             "lm_head.weight": tensors["token_embd.weight" if tied else "output.weight"]}
    for i in range(layers):
        t = {name.split(".", 2)[2]: value for name, value in tensors.items() if name.startswith(f"blk.{i}.")}
        out = {"input_layernorm.weight": norm(t["attn_norm.weight"]),
               "post_attention_layernorm.weight": norm(t["post_attention_norm.weight"])}
        for name in ("gate", "up", "down"):
            out[f"mlp.{name}_proj.weight"] = t[f"ffn_{name}.weight"]
        if "ssm_a" in t:
            out.update({
                "linear_attn.in_proj_qkv.weight": t["attn_qkv.weight"][behind_keys],
                "linear_attn.in_proj_z.weight": t["attn_gate.weight"][channels],
                "linear_attn.in_proj_a.weight": t["ssm_alpha.weight"][heads],
                "linear_attn.in_proj_b.weight": t["ssm_beta.weight"][heads],
                "linear_attn.conv1d.weight": t["ssm_conv1d.weight"][behind_keys][:, None, :],
                "linear_attn.A_log": np.log(-t["ssm_a"][heads].astype(np.float64)),
                "linear_attn.dt_bias": t["ssm_dt.bias"][heads],
                "linear_attn.norm.weight": t["ssm_norm.weight"],
                "linear_attn.out_proj.weight": t["ssm_out.weight"][:, channels]})
        else:
            for ours, theirs in (("q", "q"), ("k", "k"), ("v", "v"), ("output", "o")):
                out[f"self_attn.{theirs}_proj.weight"] = t[f"attn_{ours}.weight"]
            for name in ("q_norm", "k_norm"):
                out[f"self_attn.{name}.weight"] = norm(t[f"attn_{name}.weight"])
        state.update({f"model.layers.{i}.{name}": value for name, value in out.items()})
    model = Qwen3_5ForCausalLM(config).to(torch.float32).eval()
    model.load_state_dict({name: torch.tensor(np.ascontiguousarray(value), dtype=torch.float32)
                           for name, value in state.items()})
    return model


def run(keys, tensors, ids):
    """Logits [positions, vocabulary] and hidden states [layers + 1, positions, hidden] of an input."""
    import torch

    with torch.no_grad():
        out = build(keys, tensors)(torch.tensor([ids]), use_cache=False, output_hidden_states=True)
    return out.logits[0].double().numpy(), np.stack([h[0].double().numpy() for h in out.hidden_states])


def golden(model):
    ids = [int(v) for v in splitmix64(model.seed + 1000, 0, POSITIONS) % np.uint64(512)]
    logits, hidden = run(model.keys, model.tensors, ids)
    top = np.argsort(-logits, axis=1, kind="stable")[:, :8]
    norms = lambda x: np.round(np.linalg.norm(x, axis=-1), 4).tolist()
    return {"name": model.name, "ids": ids,
            "top": {"ids": top.tolist(), "logits": np.round(np.take_along_axis(logits, top, 1), 5).tolist()},
            "logit_norms": norms(logits), "hidden_norms": [norms(h) for h in hidden]}


def main():
    models = read_models()
    for model in models:
        sha256 = hashlib.sha256(model.file()).hexdigest()
        print(model.name, sha256)
        if sha256 != model.sha256 and "--hashes" not in sys.argv:
            sys.exit(f"random_models.txt says {model.sha256}")
    if "--hashes" in sys.argv:
        return
    cases = [golden(model) for model in models]
    JSON.write_text(json.dumps(cases))
    out = []
    for case in cases:
        out += [f"case {case['name']}", "ids " + " ".join(map(str, case["ids"]))]
        for ids, logits in zip(case["top"]["ids"], case["top"]["logits"]):
            out.append("top " + " ".join(f"{i} {v!r}" for i, v in zip(ids, logits)))
    (HERE / "random_shapes.golden").write_text("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
