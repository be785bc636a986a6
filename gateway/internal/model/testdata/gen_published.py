"""Makes published-goldens.json: what the Python implementation of Jinja renders with the published templates of Qwen3.5 and Qwen3.

    tools/templates.sh --goldens

fetches the templates and runs this with their folder. Only rendered texts are kept, not the templates.
"""
import json
import pathlib
import sys

from gen_goldens import CONVERSATIONS, TOOLS, call, environment

MORE = {
    "switches": [
        {"role": "user", "content": "Weather in Rome?"},
        {"role": "assistant", "content": "", "tool_calls": [call("get_weather", {"city": "Rome", "hourly": True, "units": ["C"], "days": 3})]},
        {"role": "tool", "tool_call_id": "call_1", "content": "18 °C"},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
        {"role": "user", "content": "Thanks."},
    ],
    "reasoning in the text": [
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "<think>\nadd\n</think>\n\n4"},
        {"role": "user", "content": "and 3+3?"},
    ],
}


def main():
    here, folder = pathlib.Path(__file__).parent, pathlib.Path(sys.argv[1])
    env = environment()
    out = []
    for name in ["Qwen3.5-4B", "Qwen-Qwen3-0.6B"]:
        template = env.from_string((folder / (name + ".jinja")).read_text(encoding="utf-8"))
        for title, messages in {**CONVERSATIONS, **MORE}.items():
            if title == "later system" and name == "Qwen3.5-4B":
                continue  # refused by the published template; the built-in one takes it
            for tools in [None, TOOLS]:
                for thinking in [False, True]:
                    variables = {"messages": messages, "add_generation_prompt": True, "enable_thinking": thinking}
                    if tools:
                        variables["tools"] = tools
                    out.append({"template": name, "name": title, "variables": variables, "text": template.render(**variables)})
    (here / "published-goldens.json").write_text(json.dumps(out, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    print(len(out), "goldens", file=sys.stderr)


main()
