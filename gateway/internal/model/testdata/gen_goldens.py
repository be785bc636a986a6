"""Makes builtin-goldens.json: what the Python implementation of Jinja renders with the built-in templates.

The environment is the one of gateway/internal/chattemplate/testdata/gen_goldens.py.
Run with jinja2 3.1:  python3 gen_goldens.py
"""
import json
import pathlib

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    env.filters["tojson"] = lambda x: json.dumps(x, ensure_ascii=False)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.globals["raise_exception"] = raise_exception
    return env


TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Wetter für \"Städte\" <b>&c</b>", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}},
    {"type": "function", "function": {"name": "now"}},
]


def call(name, arguments, ident="call_1"):
    return {"id": ident, "type": "function", "function": {"name": name, "arguments": arguments}}


CONVERSATIONS = {
    "question": [{"role": "user", "content": " Hi there \n"}],
    "system": [{"role": "system", "content": "Be brief.\n"}, {"role": "user", "content": "2+2?"}],
    "turns": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4", "reasoning_content": "add"}, {"role": "user", "content": "and 3+3?"}],
    "later system": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "system", "content": "c"}, {"role": "user", "content": "d"}],
    "tool loop": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather in Zürich 🎉?"},
        {"role": "assistant", "content": "", "reasoning_content": "need tool", "tool_calls": [
            call("get_weather", {"city": "Zürich", "days": 2, "deep": {"a": [1, 2.5, None, True, "x\"y"]}, "empty": {}}), call("now", {}, "call_2")]},
        {"role": "tool", "tool_call_id": "call_1", "content": "18 °C\n"},
        {"role": "tool", "tool_call_id": "call_2", "content": "noon"},
        {"role": "assistant", "content": "Let me look again.", "tool_calls": [call("now", {}, "call_3")]},
        {"role": "tool", "tool_call_id": "call_3", "content": "five past"},
    ],
}


def main():
    here = pathlib.Path(__file__).parent
    env = environment()
    out = []
    for family in ["qwen", "gemma4", "laguna"]:
        template = env.from_string((here.parent / "templates" / (family + ".jinja")).read_text())
        for name, messages in CONVERSATIONS.items():
            for thinking in [False, True]:
                for extra in [{}, {"preserve_thinking": True}]:
                    variables = {"messages": messages, "tools": TOOLS if "tool" in name else None, "add_generation_prompt": True,
                                 "enable_thinking": thinking, "bos_token": "<bos>", "eos_token": "", **extra}
                    out.append({"family": family, "name": name, "variables": variables, "text": template.render(**variables)})
    (here / "builtin-goldens.json").write_text(json.dumps(out, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
