package toolcall

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// pieces of markup that random texts are made of.
var pieces = []string{
	"<tool_call>", "</tool_call>", "<function=now>", "<function=get_weather>", "<function=launch>", "</function>",
	"<parameter=city>", "<parameter=days>", "</parameter>", "<function=write(", `path="a"`, ", ", ")", ">", "{", "}", "[",
	"]", `"name"`, `: `, `"now"`, `"get_weather"`, `"arguments"`, `"a\"b\u00e9"`,
	`{"name": "now", "arguments": {}}`, `{"name": "write", "arguments": {"lines": 1`, "<tool_code>", "</tool_code>",
	"<function_calls>", `<invoke name="now">`, `<parameter name="city">`, "</invoke>", "</function_calls>", "<|tool_call>",
	"call:now{", "call:write{path:", quoteGemma, "<tool_call|>", "now", "launch",
	"<arg_key>", "city", "</arg_key>", "<arg_value>", "</arg_value>", "\n", " ", "null", "12", "true", "日本", "<", "</",
	"x", "```json\n", "```", openDeepSeek, beginDeepSeek, "function" + sepDeepSeek, "now\n", "{}", endDeepSeek,
	closeDeepSeek,
}

// TestCutsDoNotMatter: however a text is cut, the events are those of the whole; and what is no call is there byte
// for byte.
func TestCutsDoNotMatter(t *testing.T) {
	set := testSet(t)
	rapid.Check(t, func(rt *rapid.T) {
		var b strings.Builder
		for range rapid.IntRange(0, 30).Draw(rt, "n") {
			b.WriteString(rapid.SampledFrom(pieces).Draw(rt, "piece"))
		}
		text := b.String()
		cfg := Config{Set: set, Family: rapid.SampledFrom([]Family{Generic, QwenFamily, GemmaFamily, LagunaFamily}).Draw(rt,
			"family"),
			Serial: rapid.Bool().Draw(rt, "serial")}
		finishCut := rapid.Bool().Draw(rt, "length")
		whole, rec := parse(t, cfg, text, finishCut, func(int) bool { return false })
		mask := rapid.Uint64().Draw(rt, "cuts")
		got, _ := parse(t, cfg, text, finishCut, func(i int) bool { return mask>>(i%64)&1 == 1 })
		if d := cmp.Diff(whole, got); d != "" {
			rt.Fatalf("text %q cut at %x:\n%s", text, mask, d)
		}
		if cfg.Serial && len(rec.calls) > 1 {
			rt.Fatalf("%d calls where one is allowed", len(rec.calls))
		}
		conserved(rt, text, rec, cfg.Serial && len(rec.calls) > 0 || finishCut)
	})
}

// TestCutCallsKeepTheirText: a call that is cut off anywhere has its arguments as far as they came, in every format:
// the start of a JSON object, and in it all of the text that was written, values that wait for their end included.
func TestCutCallsKeepTheirText(t *testing.T) {
	set := testSet(t)
	inside := func(int) bool { return false }
	for _, f := range formats {
		for _, arg := range [][]string{
			{"city", `"abcdefghijklmnop"`}, {"deep", `{"abcdefghijklmnop": ["x", 1]}`}, {"list", `["abcdefghijklmnop", 12]`},
			{"any", `"abcdefghijklmnop"`}, {"days", "1234567890123456"}, {"other", `"abcdefghijklmnop"`},
		} {
			call := f.call("get_weather", append([]string{"city", `"Rome"`}, arg...)...)
			letters := "abcdefghijklmnop"
			if arg[0] == "days" {
				letters = arg[1]
			}
			from := strings.Index(call, letters)
			announced := strings.Index(call, "Rome")
			for i := announced; i < len(call); i++ {
				got, rec := parse(t, Config{Set: set, Family: f.family}, call[:i], true, inside)
				text := rec.args.String()
				if f.late {
					text = strings.Join(got.Events, "") // it is no call yet
				}
				if rec.open != nil && text != "" {
					if whole, ok := CompleteObject(text); !ok {
						t.Errorf("%q: arguments %q cannot be completed, got %q", call[:i], text, whole)
					}
				}
				seen := letters[:max(0, min(i-from, len(letters)))]
				if !strings.Contains(text, seen) {
					t.Errorf("%s: %q of %q is lost: %q", f.format, seen, call[:i], text)
				}
			}
		}
	}
}

// TestCutEnvelopes: arguments that are JSON in a string, and those that stand before the name.
func TestCutEnvelopes(t *testing.T) {
	for text, want := range map[string][]string{
		`<tool_call>{"name": "write", "arguments": "{\"path\": \"a.g`:        {"start write", `args {"path": "a.g`},
		`<tool_call>{"name": "write", "arguments": "{\"path\": 1}"`:          {"start write", `args {"path": 1}`},
		`<tool_call>{"name": "write", "arguments": "no object`:               {"start write"},
		`<tool_call>{"name": "write", "arguments": nul`:                      {"start write"},
		`<tool_call>{"name": "write", "arguments": {"lines": 12`:             {"start write", `args {"lines": 12`},
		`ok <tool_call>{"arguments": {"path": "a.g`:                          {`text ok <tool_call>{"arguments": {"path": "a.g`},
		`ok <tool_call>{"name": "wri`:                                        {"text ok "},
		`<tool_call>{"name": "now", "arguments": {}}</tool_call><tool_call>`: {"start now", "args {}", "end now"},
	} {
		cfg := Config{Set: testSet(t), Family: QwenFamily}
		whole, _ := parse(t, cfg, text, true, func(int) bool { return false })
		if d := cmp.Diff(want, whole.Events); d != "" {
			t.Errorf("%s: %s", text, d)
		}
		bytewise, _ := parse(t, cfg, text, true, func(int) bool { return true })
		if d := cmp.Diff(whole, bytewise); d != "" {
			t.Errorf("%s, byte by byte: %s", text, d)
		}
	}
}

type fataler interface{ Fatalf(string, ...any) }

// conserved checks that text and calls are parts of the input in their order, and that nothing lies between them but
// whitespace and marks that close a region. partial says that the end may be missing.
func conserved(t fataler, text string, r *record, partial bool) {
	// What is left without the text, with a mark where text was.
	var rest strings.Builder
	at := 0
	for _, s := range r.spans {
		rest.WriteString(text[at:s[0]] + "\x00")
		at = s[1]
	}
	rest.WriteString(text[at:])
	left := rest.String()
	between := func(s string) {
		for _, part := range strings.Split(s, "\x00") {
			for _, m := range []string{closeToolCall, closeToolCode, closeFunctionCalls, closeDeepSeek} {
				part = strings.ReplaceAll(part, m, "")
			}
			if part = strings.Trim(part, " \t\r\n,[]`"); part != "" && !closes([]byte(part)) && part != "json" {
				t.Fatalf("%q of %q is lost", part, text)
			}
		}
	}
	for _, c := range r.calls {
		i := strings.Index(left, c.Raw)
		if i < 0 {
			t.Fatalf("call %q is not left of %q", c.Raw, text)
		}
		between(left[:i])
		left = left[i+len(c.Raw):]
	}
	if !partial {
		between(left)
	}
}

// FuzzParser: any text in any family, cut anywhere, gives the same events as the whole and valid JSON.
func FuzzParser(f *testing.F) {
	for _, c := range formats {
		f.Add(c.call("get_weather", "city", `"Rome"`, "days", "2"), uint8(c.family), uint64(5), false)
		f.Add(c.garbled, uint8(c.family), uint64(0xfff), true)
	}
	f.Add(strings.Join(pieces, ""), uint8(0), uint64(1), false)
	f.Add(`[{"name":"now"},{"function":{"name":"write","arguments":"{\"path\":1}"}}]`, uint8(0), uint64(1), false)
	set := testSet(f)
	f.Fuzz(func(t *testing.T, text string, family uint8, mask uint64, length bool) {
		text = strings.ToValidUTF8(text, "?")
		cfg := Config{Set: set, Family: Family(family % 4)}
		whole, rec := parse(t, cfg, text, length, func(int) bool { return false })
		got, _ := parse(t, cfg, text, length, func(i int) bool { return mask>>(i%64)&1 == 1 })
		if d := cmp.Diff(whole, got); d != "" {
			t.Fatalf("cut at %x:\n%s", mask, d)
		}
		conserved(t, text, rec, length)
		if args := rec.args.String(); rec.open != nil && args != "" {
			if _, ok := CompleteObject(args); !ok {
				t.Fatalf("the arguments %q of a call that was cut off cannot be completed", args)
			}
		}
	})
}
