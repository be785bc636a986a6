package toolcall

import (
	stdcmp "cmp"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-inference/tandem/gateway/internal/chattemplate"
)

// record is an Output that writes down what it gets.
type record struct {
	tb     testing.TB
	end    int
	spans  [][2]int // of the text
	calls  []*Call
	open   *Call
	args   strings.Builder
	events []string
}

func (r *record) Text(b []byte, end int) {
	if r.open != nil {
		r.tb.Errorf("text %q inside of a call", b)
	}
	if end-len(b) < r.end {
		r.tb.Errorf("text %q ends at %d, but %d was reached before", b, end, r.end)
	}
	r.end = end
	r.spans = append(r.spans, [2]int{end - len(b), end})
	r.note("text", string(b))
}

func (r *record) CallStart(c *Call) {
	if r.open != nil || c.ID == "" || c.Tool == nil || c.Name != c.Tool.Name {
		r.tb.Errorf("call %+v starts while %+v is open", c, r.open)
	}
	r.open = c
	r.args.Reset()
	r.events = append(r.events, "start "+c.Name)
}

func (r *record) CallArgs(c *Call, fragment []byte) {
	if c != r.open || len(fragment) == 0 {
		r.tb.Errorf("arguments %q of %+v, open is %+v", fragment, c, r.open)
	}
	r.args.Write(fragment)
	r.note("args", string(fragment))
}

func (r *record) CallEnd(c *Call) {
	if c != r.open {
		r.tb.Errorf("call %+v ends, open is %+v", c, r.open)
	}
	if got := r.args.String(); got != c.Arguments {
		r.tb.Errorf("parts %s spell other arguments than %s", got, c.Arguments)
	}
	var v map[string]any
	if err := json.Unmarshal([]byte(c.Arguments), &v); err != nil {
		r.tb.Errorf("arguments %q: %v", c.Arguments, err)
	}
	if c.Raw == "" {
		r.tb.Errorf("call %s has no raw text", c.Name)
	}
	r.open = nil
	r.calls = append(r.calls, c)
	r.events = append(r.events, "end "+c.Name)
}

// note joins pieces of one kind: where they are cut does not matter.
func (r *record) note(kind, s string) {
	if n := len(r.events); n > 0 && strings.HasPrefix(r.events[n-1], kind+" ") {
		r.events[n-1] += s
		return
	}
	r.events = append(r.events, kind+" "+s)
}

type parsed struct {
	Events  []string
	Failure string
}

// parse runs a text through a parser, cut where cut says.
func parse(tb testing.TB, cfg Config, text string, finishCut bool, cut func(i int) bool) (parsed, *record) {
	tb.Helper()
	n := 0
	cfg.NewID = func() string { n++; return fmt.Sprint("id", n) }
	p := NewParser(cfg)
	r := &record{tb: tb}
	from := 0
	for i := 1; i <= len(text); i++ {
		if i == len(text) || cut(i) {
			p.Push([]byte(text[from:i]), r)
			from = i
			if d := p.Decided(); d < r.end || d > i {
				tb.Errorf("decided up to %d of %d, text went out up to %d", d, i, r.end)
			}
		}
	}
	p.Finish(finishCut, r)
	if r.open != nil && !finishCut {
		tb.Errorf("call %s has no end", r.open.Name)
	}
	for i, ev := range r.events {
		// How strings are escaped is the model's business.
		if raw, ok := strings.CutPrefix(ev, "args "); ok {
			if v, err := chattemplate.FromJSON([]byte(raw)); err == nil {
				text, _ := chattemplate.ToJSON(v)
				r.events[i] = "args " + text
			}
		}
	}
	return parsed{r.events, p.Failure()}, r
}

func testSet(tb testing.TB) *Set {
	tb.Helper()
	s := &Set{}
	for _, t := range []Tool{
		{Name: "get_weather", Schema: json.RawMessage(`{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"},
			"deep":{"type":"object"},"list":{"type":"array"},"ok":{"type":"boolean"},"any":{"type":["integer","null","string"]}}}`)},
		{Name: "write", Schema: json.RawMessage(`{"type":"object","properties":{"path":{"type":"string"},"lines":{"type":"integer"}}}`)},
		{Name: "now"},
	} {
		if err := s.Add(t, nil); err != nil {
			tb.Fatal(err)
		}
	}
	return s
}

// formatCase is one format with its markup for the cases that all of them share.
type formatCase struct {
	format Format
	label  string // for a second spelling of a format
	family Family
	// call writes a call; args are pairs of name and JSON value.
	call func(name string, args ...string) string
	// closer is the last closing mark; missing says that it may be missing at the end.
	closer  string
	missing bool
	// garbled breaks off the markup after the name of a known tool.
	garbled string
	// late formats announce calls at the end only, or parse as text when garbled.
	late bool
}

func unquoted(v string) string {
	var s string
	if json.Unmarshal([]byte(v), &s) == nil {
		return s
	}
	return v
}

func pairs(args []string, f func(k, v string) string, sep string) string {
	var out []string
	for i := 0; i < len(args); i += 2 {
		out = append(out, f(args[i], args[i+1]))
	}
	return strings.Join(out, sep)
}

func jsonObject(args []string) string {
	return "{" + pairs(args, func(k, v string) string { return fmt.Sprintf("%q: %s", k, v) }, ", ") + "}"
}

func gemmaValue(v string) string {
	var out strings.Builder
	dec := json.NewDecoder(strings.NewReader(v))
	dec.UseNumber()
	var write func()
	write = func() {
		tok, _ := dec.Token()
		switch x := tok.(type) {
		case json.Delim:
			out.WriteByte(byte(x))
			for first := true; dec.More(); first = false {
				if !first {
					out.WriteByte(',')
				}
				if x == '{' {
					k, _ := dec.Token()
					fmt.Fprint(&out, k, ":")
				}
				write()
			}
			end, _ := dec.Token()
			fmt.Fprint(&out, end)
		case string:
			fmt.Fprint(&out, quoteGemma, x, quoteGemma)
		case nil:
			out.WriteString("null")
		default:
			fmt.Fprint(&out, x)
		}
	}
	write()
	return out.String()
}

var formats = []formatCase{
	{format: QwenXML, family: QwenFamily, closer: "\n</tool_call>", missing: true,
		garbled: "<tool_call>\n<function=now>\nwhat?",
		call: func(name string, args ...string) string {
			return "<tool_call>\n<function=" + name + ">\n" + pairs(args, func(k, v string) string {
				return "<parameter=" + k + ">\n" + unquoted(v) + "\n</parameter>\n"
			}, "") + "</function>\n</tool_call>"
		}},
	{format: BareXML, family: QwenFamily, closer: "</function>", missing: true, garbled: "<function=now>what?",
		call: func(name string, args ...string) string {
			return "<function=" + name + ">" + pairs(args, func(k, v string) string {
				return "<parameter=" + k + ">" + unquoted(v) + "</parameter>"
			}, "") + "</function>"
		}},
	{format: QwenXML, label: "qwen_xml with JSON", family: QwenFamily, closer: "\n</tool_call>", missing: true,
		garbled: "<tool_call>\n<function=now>\n{oops",
		call: func(name string, args ...string) string {
			return "<tool_call>\n<function=" + name + ">\n" + jsonObject(args) + "\n</function>\n</tool_call>"
		}},
	{format: BareXML, label: "bare_xml with JSON", family: Generic, closer: "</function>", missing: true,
		garbled: "<function=now>{oops",
		call: func(name string, args ...string) string {
			return "<function=" + name + ">" + jsonObject(args) + "</function>"
		}},
	{format: Signature, family: QwenFamily, closer: "</function>", garbled: "<function=now(=)>",
		call: func(name string, args ...string) string {
			return "<function=" + name + "(" + pairs(args, func(k, v string) string { return k + "=" + v },
				", ") + ")></function>"
		}},
	{format: Hermes, family: QwenFamily, closer: "\n</tool_call>", missing: true,
		garbled: `<tool_call>{"name": "now", oops`,
		call: func(name string, args ...string) string {
			return "<tool_call>\n{\"name\": \"" + name + "\", \"arguments\": " + jsonObject(args) + "}\n</tool_call>"
		}},
	{format: ToolCode, family: Generic, closer: "</tool_code>", missing: true, garbled: `<tool_code>{"name": "now", oops`,
		call: func(name string, args ...string) string {
			return "<tool_code>{\"name\": \"" + name + "\", \"parameters\": " + jsonObject(args) + "}</tool_code>"
		}},
	{format: BareJSON, family: Generic, late: true, garbled: `{"name": "now", oops`,
		call: func(name string, args ...string) string {
			return "{\"name\": \"" + name + "\", \"arguments\": " + jsonObject(args) + "}"
		}},
	{format: Gemma, family: GemmaFamily, closer: "<tool_call|>", missing: true, garbled: "<|tool_call>call:now{,}",
		call: func(name string, args ...string) string {
			return "<|tool_call>call:" + name + "{" + pairs(args, func(k, v string) string { return k + ":" + gemmaValue(v) },
				",") + "}<tool_call|>"
		}},
	{format: Laguna, family: LagunaFamily, closer: "</tool_call>", missing: true,
		garbled: "<tool_call>now\n<arg_key>a</arg_key>what?",
		call: func(name string, args ...string) string {
			return "<tool_call>" + name + "\n" + pairs(args, func(k, v string) string {
				return "<arg_key>" + k + "</arg_key>\n<arg_value>" + unquoted(v) + "</arg_value>\n"
			}, "") + "</tool_call>"
		}},
	{format: FunctionCalls, family: Generic, closer: "\n</function_calls>", missing: true,
		garbled: "<function_calls>\n<invoke name=\"now\">what?",
		call: func(name string, args ...string) string {
			return "<function_calls>\n<invoke name=\"" + name + "\">\n" + pairs(args, func(k, v string) string {
				return "<parameter name=\"" + k + "\">" + unquoted(v) + "</parameter>\n"
			}, "") + "</invoke>\n</function_calls>"
		}},
	{format: DeepSeek, family: QwenFamily, closer: "\n```" + endDeepSeek + closeDeepSeek, missing: true,
		garbled: openDeepSeek + beginDeepSeek + "function" + sepDeepSeek + "now\n```json\n{oops",
		call: func(name string, args ...string) string {
			return openDeepSeek + beginDeepSeek + "function" + sepDeepSeek + name + "\n```json\n" + jsonObject(args) +
				"\n```" + endDeepSeek + closeDeepSeek
		}},
}

// TestFormats is the table of docs/spec/http-api.md §21 item 6: every format and what may happen to it, whole and byte
// by byte.
func TestFormats(t *testing.T) {
	set := testSet(t)
	for _, f := range formats {
		args := []string{"city", `"Rome \u00e0 \"la\" 日本 \ud83d\ude00"`, "days", "2"}
		nested := []string{"deep", `{"a": {"b": [1, "x", null, {"c": true}]}}`, "list", `[1, 2]`}
		known := f.call("get_weather", args...)
		tests := []struct {
			name, text string
			want       []string
			failed     bool
		}{
			{"complete", "Sure.\n" + known + "\n",
				[]string{"text Sure.\n", "start get_weather", `args {"city": "Rome à \"la\" 日本 😀", "days": 2}`, "end get_weather"},
				false}, {"missing closer", strings.TrimSuffix(known, f.closer),
				[]string{"start get_weather", `args {"city": "Rome à \"la\" 日本 😀", "days": 2}`, "end get_weather"},
				!f.missing && f.closer != ""},
			{"unknown name", f.call("launch", "a", `"b"`), []string{"text " + f.call("launch", "a", `"b"`)}, !f.late},
			{"unknown name then known", f.call("launch", "a", `"b"`) + "\n" + f.call("now"),
				[]string{"text " + f.call("launch", "a", `"b"`) + "\n", "start now", "args {}", "end now"}, true},
			{"garbled start", strings.Replace(known, "get_weather", "get weather?", 1),
				[]string{"text " + strings.Replace(known, "get_weather", "get weather?", 1)}, !f.late},
			{"two calls", known + "\n" + f.call("write", "path", `"a"`, "lines", "3"),
				[]string{"start get_weather", `args {"city": "Rome à \"la\" 日本 😀", "days": 2}`,
					"end get_weather", "start write", `args {"path": "a", "lines": 3}`, "end write"}, false},
			{"text after", known + "\n\nDone.",
				[]string{"start get_weather", `args {"city": "Rome à \"la\" 日本 😀", "days": 2}`, "end get_weather",
					"text \n\nDone."}, false},
			{"nested", f.call("get_weather", nested...),
				[]string{"start get_weather", `args {"deep": {"a": {"b": [1, "x", null, {"c": true}]}}, "list": [1, 2]}`,
					"end get_weather"}, false},
			{"empty arguments", f.call("now"), []string{"start now", "args {}", "end now"}, false},
			{"garbled after the name", f.garbled, nil, true},
		}
		for _, tt := range tests {
			if f.late {
				// The whole text must be one value.
				switch tt.name {
				case "complete":
					tt.text = "```json\n" + known + "\n```\n"
					tt.want = tt.want[1:]
				case "two calls":
					tt.text = "[" + known + ", " + f.call("write", "path", `"a"`, "lines", "3") + "]"
				case "text after", "unknown name then known":
					tt.want, tt.failed = []string{"text " + tt.text}, false
				case "garbled after the name":
					tt.failed = false
				}
			}
			t.Run(stdcmp.Or(f.label, f.format.String())+"/"+tt.name, func(t *testing.T) {
				cfg := Config{Set: set, Family: f.family}
				whole, rec := parse(t, cfg, tt.text, false, func(int) bool { return false })
				if tt.want != nil {
					if d := cmp.Diff(tt.want, whole.Events); d != "" {
						t.Error(d)
					}
				}
				if (whole.Failure != "") != tt.failed {
					t.Errorf("failure %q, want one: %v", whole.Failure, tt.failed)
				}
				for _, c := range rec.calls {
					if c.Format != f.format || !strings.Contains(tt.text, c.Raw) {
						t.Errorf("call %+v, want format %v and a part of the text", c, f.format)
					}
				}
				bytewise, _ := parse(t, cfg, tt.text, false, func(int) bool { return true })
				if d := cmp.Diff(whole, bytewise); d != "" {
					t.Errorf("byte by byte: %s", d)
				}
			})
		}
	}
}

func run(t *testing.T, cfg Config, text string, cut bool) parsed {
	t.Helper()
	a, _ := parse(t, cfg, text, cut, func(int) bool { return false })
	b, _ := parse(t, cfg, text, cut, func(int) bool { return true })
	if d := cmp.Diff(a, b); d != "" {
		t.Errorf("byte by byte: %s", d)
	}
	return a
}
