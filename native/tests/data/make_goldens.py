#!/usr/bin/env python3
"""Compacts the JSON goldens of the demonstration models into the text files beside this script.

usage: make_goldens.py FOLDER_WITH_GOLDEN_JSON
"""
import json
import pathlib
import sys


def numbers(values):
    return " ".join(repr(v) for v in values)


def top(out, key, rows):
    for ids, logits in zip(rows["ids"], rows["logits"]):
        out.append(f"{key} " + " ".join(f"{i} {v!r}" for i, v in zip(ids, logits)))


def main():
    source = pathlib.Path(sys.argv[1])
    here = pathlib.Path(__file__).parent

    out = []
    for i, case in enumerate(json.loads((source / "tandem-tiny-bf16.json").read_text())["prompts"]):
        out.append(f"case prompt{i}")
        out.append("ids " + numbers(case["ids"]))
        if "top" not in case:  # only some prompts carry logits and features
            out.append("greedy " + numbers(case["greedy"]))
            continue
        top(out, "top", case["top"])
        out.append("features " + numbers(x for row in case["feature_norms"] for x in row))
        out.append("greedy " + numbers(case["greedy"]))
        out.append(f"case prefill{i}")
        out.append("ids " + numbers(case["ids"]))
        top(out, "top", case["prefill_top"])
    (here / "tandem_tiny_bf16.golden").write_text("\n".join(out) + "\n")

    out = []
    for i, case in enumerate(json.loads((source / "tandem-tiny-q4km.json").read_text())["cases"]):
        out.append(f"case {case['kind']}{i}")
        out.append("ids " + numbers(case["ids"]))
        out.append("greedy " + numbers(case["greedy"]))
        if "top_last" in case:
            top(out, "top", case["top_last"])
    (here / "tandem_tiny_q4km.golden").write_text("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
