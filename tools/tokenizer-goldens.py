#!/usr/bin/env python3
"""Writes services/tokenizer/testdata/qwen-encodings.json: texts and their ids under the vocabularies of Qwen3 and Qwen3.5/3.6.

The judges are the vendors' reference libraries, not this project: `tokenizers` (Hugging Face) reads Qwen3's tokenizer.json,
`tiktoken` reads Qwen3.5's ranks with the pattern of the model. Run after tools/vocabularies.sh:
    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install tokenizers==0.23.3 tiktoken==0.14.0
    /tmp/venv/bin/python tools/tokenizer-goldens.py
"""
import base64, json, pathlib, random, unicodedata

import tiktoken
import tokenizers

ROOT = pathlib.Path(__file__).resolve().parent.parent
VOCABULARIES = ROOT / "build" / "vocabularies"
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
           r"|\s*[\r\n]+|\s+(?!\S)|\s+")
# Added tokens of Qwen3.5 and 3.6, from 248044 on; the ids of Qwen3's stand in its tokenizer.json.
ADDED = """<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> <|quad_start|>
<|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|> <tool_call> </tool_call> <|fim_prefix|>
<|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> <tool_response> </tool_response> <think> </think>
<|audio_start|> <|audio_end|> <tts_pad> <tts_text_bos> <tts_text_eod> <tts_text_bos_single> <|audio_pad|>""".split()

TEXTS = [
    # plain prose in many scripts
    "Hello, world!", "Caffè già, perché l'AI è utile.", "中文测试：こんにちは。", "สวัสดีครับ ผมชื่ออเล็กซ์", "你好，世界！今天是2026年8月13日 🎉",
    "Привет, мир! Как дела?", "Γειά σου Κόσμε", "مرحبا بالعالم، كيف الحال؟", "שלום עולם", "नमस्ते दुनिया, आप कैसे हैं?", "안녕하세요 세계", "ありがとうございます。明日は雨でしょう。",
    "Đây là một câu tiếng Việt có dấu.", "Zażółć gęślą jaźń", "Příliš žluťoučký kůň úpěl ďábelské ódy", "Ünïcödé ist schön, nicht wahr?",
    "ქართული ენა", "Հայերեն լեզու", "አማርኛ", "ภาษาไทยไม่มีการเว้นวรรค", "မြန်မာဘာသာ", "ខ្មែរ", "தமிழ் மொழி", "తెలుగు", "ಕನ್ನಡ", "ᠮᠣᠩᠭᠣᠯ", "བོད་སྐད་",
    # white space
    "", " ", "  ", "   x", "\n", "\n\n", "\n\n\n", "\t\n", "\r\n", "a\r\nb\r\n", "  one\t two\n\nthree  \n", "    Hello\n    Hello", "\n =", "' era", " \n \n x",
    "a  b   c    d", "\u00a0x\u2003y\u3000z", "tab\tseparated\tvalues\n1\t2\t3\n", "trailing   ", "\v\f\x1c\x85x",
    # numbers, contractions, punctuation
    "I'm 1234, we're coding.", "you'LL see it'S fine, they'VE gone, I'D say DON'T", "1", "12", "123456789012345", "3.14159e-10", "½ ¾ ² Ⅷ ٣٤ ४५",
    "ied 4 ½ months", "!!!!!!", "?!?!...---===", "$1,234.56 (€99) £5 ¥100", "a.b.c/d\\e:f;g", "user@example.com https://example.com/a?b=c&d=e#f",
    "w048 7tuijk dsdfhu", "'", "''", "'tis 'twas rock'n'roll", "x'y'z'", "“quoted” ‘single’ «guillemets» 「日本」", "—–-‐‑",
    # code
    "def f(x: int) -> str:\n    return f\"{x=}\"\n", "for (int i = 0; i < n; ++i) {\n\tsum += a[i];\n}\n", "if err != nil {\n\treturn fmt.Errorf(\"open %s: %w\", path, err)\n}\n",
    "SELECT a, COUNT(*) FROM t WHERE b >= 10 GROUP BY a;", "<div class=\"x\">&nbsp;</div>\n<!-- comment -->", "{\"a\": [1, 2.5, null, true], \"b\": {\"c\": \"d\\n\"}}",
    "#!/bin/sh\nset -e\nls -la | grep foo > /dev/null 2>&1\n", "let v: Vec<u8> = vec![0; 1024];", "λx.x ∀ε>0 ∃δ>0: |f(x)−f(y)|<ε", "camelCase snake_case SCREAMING_CASE kebab-case",
    "diff --git a/x b/x\n@@ -1,3 +1,3 @@\n-old\n+new\n", "\\frac{1}{2}\\sum_{i=0}^{n} x_i^2", "0xDEADBEEF 0b1010 0o777 1_000_000", "x" * 40, "ab" * 30, "=" * 70, " " * 70 + "x", "\n" * 20,
    # marks, emoji, unusual code points
    "e\u0301", "\u0301!I", "a\u0323\u0302", "\u1112\u1161\u11ab", "ﬁ ﬂ ﬀ", "Å Å Ω", "👨‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇮🇹", "😀😃😄😁", "\u200b\u200d\ufeff", "\u202eabc", "𝕳𝖊𝖑𝖑𝖔", "𠀀𠀁", "\x00\x01\x7f", "\ufffd", "🎉" * 8,
    "क्षि", "ก็", "i̇İıI", "ǅ ǆ Ǆ", "ٱلْقُرْآن", "שָׁלוֹם", "द्वितीय", "Việt Nam", "Vie\u0302\u0323t",
    # tags and control tokens
    "<think>penso</think>", "<tool_call>get_weather</tool_call>", "<tool_response>\n42\n</tool_response>", "<|fim_prefix|>left<|fim_suffix|>right<|fim_middle|>",
    "<think>", "</think>", "< think >", "<think", "think>", "<|im_start|", "|im_end|>", "<<think>>", "<|endoftext|>", "a<|im_end|>b", "<|im_start|><|im_end|>",
    "<|im_start|>user\nQuanto fa 17 * 23?<|im_end|>\n<|im_start|>assistant\n<think>\n",
    "<|im_start|>user\nRispondi solo: sì<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    "<|im_start|>system\nSei un assistente conciso.<|im_end|>\n<|im_start|>user\nSaluta in italiano.<|im_end|>\n<|im_start|>assistant\n<think>\n",
    "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Roma\"}}\n</tool_call>",
    "<tool_call>\n<function=run>\n<parameter=command>\nls -la\n</parameter>\n</function>\n</tool_call>",
    "<|repo_name|>x<|file_sep|>a.go\npackage a\n",
]


def mixtures(n):
    """n seeded strings of pieces that sit on the borders of the splitting pattern."""
    pieces = ["a", "Z", "é", "中", "か", "ก", "ि", "\u0301", "7", "½", "٣", " ", "  ", "\n", "\r\n", "\t", "\u00a0", "'", "'s", "'LL", "’", "-", "_", "!", "...", "€", "😀", "\u200d",
              "<think>", "</think>", "<tool_call>", "<|im_end|>", "<", "|>", "word", " the", "Über", "ﬁ", "\u3000", "한", "م"]
    rng = random.Random(20261123)
    return ["".join(rng.choice(pieces) for _ in range(rng.randint(2, 24))) for _ in range(n)]


def qwen3():
    judge = tokenizers.Tokenizer.from_file(str(VOCABULARIES / "qwen3.json"))
    return lambda text: judge.encode(text, add_special_tokens=False).ids


def qwen35():
    ranks = {}
    for line in (VOCABULARIES / "qwen3.5.tiktoken").read_bytes().splitlines():
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)
    judge = tiktoken.Encoding("qwen3.5", pat_str=PATTERN, mergeable_ranks=ranks,
                              special_tokens={text: 248044 + i for i, text in enumerate(ADDED)})
    # The model normalises what lies between added tokens; no added token changes under NFC.
    return lambda text: judge.encode(unicodedata.normalize("NFC", text), allowed_special="all")


def main():
    texts = TEXTS + mixtures(80)
    old, new = qwen3(), qwen35()
    # Public ids of both vocabularies (docs/spec/tokenizer.md, section 7) must come out of the judges.
    assert new("Hello, world!") == [9419, 11, 1814, 0]
    assert new("<think>penso</think>") == [248068, 2664, 684, 248069]
    assert old("    Hello\n    Hello") == [262, 21927, 198, 262, 21927]
    rows = [{"text": t, "qwen3": old(t), "qwen3.5": new(t)} for t in texts]
    out = ROOT / "services" / "tokenizer" / "testdata" / "qwen-encodings.json"
    body = ",\n".join(json.dumps(row, ensure_ascii=True) for row in rows)
    out.write_text('{"added": ' + json.dumps(ADDED) + ',\n"cases": [\n' + body + "\n]}\n")
    print(f"{len(rows)} texts, two vocabularies")


if __name__ == "__main__":
    main()
