"""Makes vectors.json: outputs of models and what llama.cpp's parsers read in them, taken from its tests.

    pip download --no-binary :all: --no-deps llama-cpp-python==0.3.36   # and unpack
    python3 gen_vectors.py llama_cpp_python-0.3.36/vendor/llama.cpp > vectors.json

Only data is taken: the output, the tools' names and schemas, the expected reasoning, content and calls. Whether the prompt ends in
an open reasoning marker comes from rendering the template with jinja2 3.1. Where reasoning stays in the text ("aloud"), "opened" is
what the prompt wrote of it. Left out, with a count on stderr: continuations of a given answer, which are another interface; partial
outputs; what differs on purpose.
"""
import json, re, sys, os
ROOT = sys.argv[1]
SRC = open(os.path.join(ROOT, "tests/test-chat.cpp"), encoding="utf-8").read()
ESC = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\", "'": "'", "0": "\0"}

def tokens(src):
    i, line = 0, 1
    while i < len(src):
        c = src[i]
        if c == "\n": line += 1
        if c.isspace(): i += 1; continue
        if src.startswith("//", i):
            i = src.find("\n", i); i = len(src) if i < 0 else i; continue
        if src.startswith("/*", i):
            e = src.index("*/", i) + 2; line += src.count("\n", i, e); i = e; continue
        m = re.compile(r'R"([^(]*)\(').match(src, i)
        if m:
            end = src.index(")" + m[1] + '"', m.end())
            yield ("str", src[m.end():end], line); line += src.count("\n", i, end); i = end + len(m[1]) + 2; continue
        if c == '"':
            out, i = [], i + 1
            while src[i] != '"':
                if src[i] == "\\":
                    if src[i+1] == "x":
                        m = re.compile(r"[0-9a-fA-F]+").match(src, i + 2); out.append(chr(int(m[0], 16))); i = m.end(); continue
                    if src[i+1] == "u": out.append(chr(int(src[i+2:i+6], 16))); i += 6; continue
                    out.append(ESC[src[i+1]]); i += 2
                else: out.append(src[i]); i += 1
            yield ("str", "".join(out), line); i += 1; continue
        if c == "'":
            e = i + (3 if src[i+1] != "\\" else 4); yield ("chr", src[i:e], line); i = e; continue
        m = re.compile(r"[A-Za-z_]\w*(::\w+)*").match(src, i)
        if m: yield ("id", m[0], line); i = m.end(); continue
        m = re.compile(r"[0-9.]+").match(src, i)
        if m: yield ("num", m[0], line); i = m.end(); continue
        yield ("op", c, line); i += 1

T = list(tokens(SRC))
OPEN, CLOSE = "([{", ")]}"

def group(i):
    """T[i] is an opening bracket: the index after its partner."""
    depth = 0
    while True:
        k, v, _ = T[i]
        if k == "op" and v in OPEN: depth += 1
        if k == "op" and v in CLOSE:
            depth -= 1
            if depth == 0: return i + 1
        i += 1

def split(i, j):
    parts, start, depth = [], i, 0
    for n in range(i, j):
        k, v, _ = T[n]
        if k == "op" and v in OPEN: depth += 1
        if k == "op" and v in CLOSE: depth -= 1
        if k == "op" and v == "," and depth == 0: parts.append((start, n)); start = n + 1
    if start < j: parts.append((start, j))
    return parts

class Unknown(Exception): pass

def value(i, j):
    """Strings, lists, names and calls."""
    if all(T[n][0] == "str" or T[n][1] == "+" for n in range(i, j)) and j > i: return "".join(T[n][1] for n in range(i, j) if T[n][0] == "str")
    k, v, _ = T[i]
    if k == "op" and v == "{" and group(i) == j: return [value(a, b) for a, b in split(i + 1, j - 1)]
    if k == "id" and j == i + 1: return {"name": v}
    if k == "id" and T[i + 1][1] == "(" and group(i + 1) == j:
        if v == "std::string": return value(i + 2, j - 1)
        return {"call": v, "args": [value(a, b) for a, b in split(i + 2, j - 1)]}
    if k == "num": return {"num": v}
    raise Unknown(" ".join(T[n][1] for n in range(i, min(j, i + 12))))

TOOLS, MESSAGES = {}, {}
for i in range(len(T) - 3):
    if T[i][1] == "common_chat_tool" and T[i+1][0] == "id" and T[i+2][1] == "{":
        try: name, desc, schema = value(i + 2, group(i + 2)); TOOLS.setdefault(T[i+1][1], {"name": name, "parameters": json.loads(schema) if schema.strip() else None})
        except (Unknown, ValueError) as e: pass
    if T[i][1] == "common_chat_msg" and T[i+1][0] == "id" and T[i+2][1] == "=":
        e = i + 3
        while T[e][1] != ";": e += 1
        try: MESSAGES.setdefault(T[i+1][1], value(i + 3, e))
        except Unknown: pass

def message(v):
    if "name" in v: return message(MESSAGES[v["name"]])
    a = [x if isinstance(x, str) else "" for x in v["args"]]
    get = lambda n: a[n] if n < len(a) else ""
    m = {"reasoning": "", "content": "", "calls": []}
    f = v["call"]
    if f == "simple_assist_msg": m["content"], m["reasoning"] = get(0), get(1); name, args = get(2), get(3)
    elif f == "message_with_tool_calls": name, args = get(0), get(1)
    elif f == "message_with_content_and_tool_call": m["content"] = get(0); name, args = get(1), get(2)
    elif f == "message_with_reasoning_and_tool_call": m["reasoning"] = get(0); name, args = get(1), get(2)
    elif f == "message_with_tool_calls_and_reasoning": name, args, m["reasoning"] = get(0), get(1), get(2)
    else: raise Unknown(f)
    if name: m["calls"].append({"name": name, "arguments": args})
    return m

def vectors(template):
    """All chains tst.test(...)….run() that follow a peg_tester of the template."""
    out, i, on = [], 0, False
    while i < len(T):
        if T[i][1] == "peg_tester" and T[i+1][1] == "(" and i > 2:
            end = group(i + 1)
            names = [T[n][1] for n in range(i, end) if T[n][0] == "str"]
            if not names: # a loop over paths
                n = i
                while T[n][1] != "for": n -= 1
                names = [T[m][1] for m in range(n, i) if T[m][0] == "str"]
            on = any(x.endswith("/" + template) for x in names)
        if on and T[i][1] == "tst" and T[i+1][1] == "." and T[i+2][1] == "test":
            line, v, bad = T[i][2], {}, None
            j = i + 2
            chain = []
            while True:
                name, end = T[j][1], group(j + 1)
                chain.append((name, j + 2, end - 1)); j = end
                if T[j][1] != ".": break
                j += 1
            try:
                v = {"line": line, "reasoning": "", "content": "", "calls": []}
                for name, a, b in chain:
                    if name == "test": v["input"] = value(a, b)
                    elif name == "tools": v["tools"] = [x["name"] for x in value(a, b)]
                    elif name == "expect": v.update(message(value(a, b)))
                    elif name == "expect_content": v["content"] = value(a, b)
                    elif name == "expect_reasoning": v["reasoning"] = value(a, b)
                    elif name == "expect_tool_calls": v["calls"] = [{"name": c[0], "arguments": c[1]} for c in value(a, b)]
                    elif name == "run": pass
                    else: v[name] = " ".join(T[n][1] for n in range(a, b)) if b > a else "true"
            except Unknown as e: v["unknown"] = str(e)
            if chain[-1][0] == "run": out.append(v)
            i = j; continue
        i += 1
    return out

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../chattemplate/testdata"))
from gen_goldens import environment  # noqa: E402

FAMILIES = {
    "Qwen3.5-4B": "qwen", "Qwen-QwQ-32B": "qwen", "Qwen3-Coder": "qwen", "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "qwen",
    "Qwen-Qwen2.5-7B-Instruct": "qwen", "google-gemma-4-31B-it": "gemma", "GLM-4.6": "generic", "GLM-4.7-Flash": "generic",
    "Spark2.5": "generic", "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "qwen", "StepFun3.5-Flash": "qwen", "Reka-Edge": "qwen",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "qwen", "MiMo-VL": "qwen", "ibm-granite-granite-4.0": "qwen",
}


def opened(env, template, v, names):
    """The end of the prompt from an open marker on, None when it does not end in one."""
    tools = [{"type": "function", "function": {"name": TOOLS[n]["name"], "description": "d", "parameters": TOOLS[n]["parameters"]}} for n in names]
    source = open(f"{ROOT}/models/templates/{template}.jinja", encoding="utf-8").read()
    prompt = env.from_string(source).render(
        messages=[{"role": "user", "content": "Hi"}], add_generation_prompt=True, enable_thinking=v.get("enable_thinking", "true") == "true",
        bos_token="<s>", eos_token="</s>", **({"tools": tools} if tools else {}))
    for marker in ("<think>", "<|channel>thought"):
        if prompt.rstrip().endswith(marker):
            return prompt[prompt.rindex(marker):]
    return None


def left_out(v):
    if "unknown" in v or any(n not in TOOLS for n in v.get("tools", [])):
        return "not read"
    if "continue_final_message" in v:
        return "continuation of a given answer"
    if v.get("is_partial") == "true":
        return "partial output"
    if v["calls"] and v["input"].startswith(v["content"] + "\n<tool_call>") and v["content"]:
        return "newline between text and call, which stays in the text here"
    return None


def main():
    env = environment()
    env.globals["strftime_now"] = lambda f: "2026-01-01"
    out, tools, skipped = [], {}, {}
    for template, family in FAMILIES.items():
        for v in vectors(template + ".jinja"):
            why, names = left_out(v), v.get("tools", [])
            if why:
                skipped[why] = skipped.get(why, 0) + 1
                continue
            tail = opened(env, template, v, names)
            for n in names:
                tools[TOOLS[n]["name"]] = TOOLS[n]["parameters"]
            c = {"source": f"{template}:{v['line']}", "family": family}
            if tail:
                c["thinking"] = True
            # The tests' default leaves it there, too, which shows only where there is reasoning.
            if v.get("reasoning_format", "_NONE" if tail else "").endswith("_NONE"):
                c["aloud"], c["opened"] = True, tail or ""
            if names:
                c["tools"] = [TOOLS[n]["name"] for n in names]
            c["output"] = v["input"]
            for k in ("reasoning", "content"):
                if v[k]:
                    c[k] = v[k]
            if v["calls"]:
                c["calls"] = [{"name": x["name"], "arguments": x["arguments"] or "{}"} for x in v["calls"]]
            out.append(c)
    print('{"tools": {\n' + ",\n".join(json.dumps(k) + ": " + json.dumps(v, ensure_ascii=False) for k, v in sorted(tools.items())) + '\n},')
    print('"vectors": [\n' + ",\n".join(json.dumps(c, ensure_ascii=False) for c in out) + "\n]}")
    print(len(out), "vectors; left out:", skipped, file=sys.stderr)


main()
