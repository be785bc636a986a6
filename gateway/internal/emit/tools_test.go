package emit

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/toolcall"
	"github.com/tandem-inference/tandem/services/tokenizer"
	"pgregory.net/rapid"
)

// story is the output of a choice in words, joined so that cuts do not matter.
type story struct {
	Events []string
	Tokens []int32
	Stop   string
	Failed string
	Counts Counts
}

// tell runs tokens through an emitter and takes events after the tokens that cut names.
func tell(t *testing.T, cfg Config, ids []int32, length bool, cut func(i int) bool) story {
	t.Helper()
	set := &toolcall.Set{}
	for _, name := range []string{"f", "write"} {
		err := set.Add(toolcall.Tool{Name: name,
			Schema: []byte(`{"properties":{"path":{"type":"string"},"n":{"type":"integer"}}}`)}, nil)
		if err != nil {
			t.Fatal(err)
		}
	}
	parser := func() *toolcall.Parser {
		return toolcall.NewParser(toolcall.Config{Set: set, Family: toolcall.QwenFamily,
			NewID: func() string { return "id" }})
	}
	cfg.Tools, cfg.Trial = parser(), parser
	e := New(cfg)
	var out story
	open := false
	note := func(kind, s string) {
		if n := len(out.Events); n > 0 && strings.HasPrefix(out.Events[n-1], kind+" ") {
			out.Events[n-1] += s
		} else if s != "" {
			out.Events = append(out.Events, kind+" "+s)
		}
	}
	take := func() {
		for _, ev := range e.Take() {
			switch ev.Kind {
			case Reasoning:
				note("reasoning", string(ev.Text))
			case Content:
				note("content", string(ev.Text))
				if open {
					t.Errorf("content %q inside of a call", ev.Text)
				}
			case ToolStart:
				out.Events, open = append(out.Events, "start "+ev.Call.Name), true
			case ToolArgs:
				note("args", string(ev.Text))
			case ToolEnd:
				out.Events, open = append(out.Events, "end "+ev.Call.Arguments), false
			}
			for _, n := range ev.Entries {
				out.Tokens = append(out.Tokens, n.ID)
			}
		}
	}
	for i, id := range ids {
		ok := e.Push(Entry{Candidate: Candidate{ID: id}})
		if cut(i) {
			take()
		}
		if !ok {
			break
		}
	}
	e.Finish(length)
	take()
	out.Stop, _ = e.StopString()
	out.Failed, out.Counts = e.ToolParseError(), e.Counts()
	return out
}

func TestTools(t *testing.T) {
	tok := gatewaytest.Tokenizer(t)
	open, closing := markers(t, tok)
	const call = "<tool_call>\n<function=write>\n<parameter=path>\na stop b\n</parameter>\n</function>\n</tool_call>"
	for _, tt := range []struct {
		name, text string
		thinking   bool
		stops      []string
		length     bool
		want       []string
		stop       string
		tokens     string // that the entries spell
	}{
		{"call alone", call, false, nil, false,
			[]string{"start write", `args {"path": "a stop b"}`, `end {"path": "a stop b"}`}, "", ""},
		{"stop strings pass over calls", "x " + call + "y stop z", false, []string{"stop"}, false,
			[]string{"content x ", "start write", `args {"path": "a stop b"}`, `end {"path": "a stop b"}`, "content y "}, "stop",
			"x y"}, {"stop string does not reach across a call", "st" + call + "op", false, []string{"stop"}, false,
			[]string{"content st", "start write", `args {"path": "a stop b"}`, `end {"path": "a stop b"}`, "content op"}, "",
			"stop"}, {"stop string before a call", "a stop" + call, false, []string{"stop"}, false,
			[]string{"content a "}, "stop", "a"},
		{"a planned call is reasoning", "plan " + call + "\n</think>\n\n" + call, true, nil, false,
			[]string{"reasoning plan " + call, "start write", `args {"path": "a stop b"}`, `end {"path": "a stop b"}`}, "", ""},
		{"a planned call before the answer", "plan " + call + "\n</think>\n\ndone", true, nil, false,
			[]string{"reasoning plan " + call, "content done"}, "", "done"},
		{"a planned call before more reasoning", "plan " + call + " or not\n</think>\n\ndone", true, nil, false,
			[]string{"reasoning plan " + call + " or not", "content done"}, "", "done"},
		{"a planned call before a marker", "plan " + call + "</think></think>x", true, nil, false,
			[]string{"reasoning plan " + call, "content </think>x"}, "", "</think>x"},
		{"a call ends reasoning", "plan\n\n" + call, true, nil, false,
			[]string{"reasoning plan", "start write", `args {"path": "a stop b"}`, `end {"path": "a stop b"}`}, "", ""},
		{"calls end reasoning", "plan\n" + call + "\n" + call + "\n", true, nil, false,
			[]string{"reasoning plan", "start write", `args {"path": "a stop b"}`, `end {"path": "a stop b"}`,
				"start write", `args {"path": "a stop b"}`, `end {"path": "a stop b"}`}, "", ""},
		{"a call at once ends reasoning", call, true, nil, false,
			[]string{"start write", `args {"path": "a stop b"}`, `end {"path": "a stop b"}`}, "", ""},
		{"a call closed after", "plan\n" + call + "\n</think>\n", true, nil, false,
			[]string{"reasoning plan", "start write", `args {"path": "a stop b"}`, `end {"path": "a stop b"}`}, "", ""},
		{"a call without its closing mark", "plan\n" + strings.TrimSuffix(call, "\n</tool_call>"), true, nil, false,
			[]string{"reasoning plan", "start write", `args {"path": "a stop b"}`, `end {"path": "a stop b"}`}, "", ""},
		{"JSON in reasoning", "plan <tool_call>\n" + `{"name": "f", "arguments": {"n": 1}}` + "\n</tool_call>", true, nil,
			false,
			[]string{"reasoning plan ", "start f", `args {"n": 1}`, `end {"n": 1}`}, "", ""},
		{"the bare form in reasoning", "plan <function=f>\n<parameter=n>\n1\n</parameter>\n</function>", true, nil, false,
			[]string{"reasoning plan ", "start f", `args {"n": 1}`, `end {"n": 1}`}, "", ""},
		{"a mention in reasoning", "I write <tool_call> and <function=f> and <tool_call>\n\n", true, nil, false,
			[]string{"reasoning I write <tool_call> and <function=f> and <tool_call>"}, "", ""},
		{"a mention, then a call", "the form is <tool_call>\n<function=write>\n<parameter=path> ...\n" + call, true, nil,
			false,
			[]string{"reasoning the form is <tool_call>\n<function=write>\n<parameter=path> ...", "start write",
				`args {"path": "a stop b"}`, `end {"path": "a stop b"}`}, "", ""},
		{"an unknown tool in reasoning", "<tool_call>\n<function=rm>\n</function>\n</tool_call>", true, nil, false,
			[]string{"reasoning <tool_call>\n<function=rm>\n</function>\n</tool_call>"}, "", ""},
		{"a malformed call in reasoning", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 1]\n</tool_call>", true, nil,
			false,
			[]string{"reasoning <tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 1]\n</tool_call>"}, "", ""},
		{"reasoning closed in a call", "a <tool_call>\n<function=write>\n<parameter=path>\nx</think>\n\n" + call, true, nil,
			false,
			[]string{"reasoning a <tool_call>\n<function=write>\n<parameter=path>\nx", "start write",
				`args {"path": "a stop b"}`, `end {"path": "a stop b"}`}, "", ""},
		{"length in a call in reasoning", "a <tool_call>\n<function=write>\n<parameter=path>\nx", true, nil, true,
			[]string{"reasoning a <tool_call>\n<function=write>\n<parameter=path>\nx"}, "", ""},
		{"markers in arguments", "<tool_call>\n<function=write>\n<parameter=path>\nif \"</think>\" in text: cut(\"<think>\")\n</parameter>\n</function>\n</tool_call>", false, nil, false,
			[]string{"start write", `args {"path": "if \"</think>\" in text: cut(\"<think>\")"}`,
				`end {"path": "if \"</think>\" in text: cut(\"<think>\")"}`}, "", ""},
		{"control tokens in arguments",
			"a<|im_start|>b<tool_call>\n<function=write>\n<parameter=path>\na<|im_start|>b\n</parameter>\n</function>\n</tool_call>", false, nil, false,
			[]string{"content ab", "start write", `args {"path": "a<|im_start|>b"}`, `end {"path": "a<|im_start|>b"}`}, "", "a"},
		{"length in a call", "ok " + strings.Split(call, " b\n")[0], false, nil, true,
			[]string{"content ok ", "start write", `args {"path": "a stop`}, "", "ok "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ids := tok.Encode(tt.text, tokenizer.Options{ParseSpecial: true})
			cfg := Config{Tokenizer: tok, ThinkOpen: open, ThinkClose: closing, Thinking: tt.thinking,
				Stops: tt.stops, Logprobs: true}
			got := tell(t, cfg, ids, tt.length, func(int) bool { return false })
			if d := cmp.Diff(tt.want, got.Events); d != "" {
				t.Error(d)
			}
			if got.Stop != tt.stop {
				t.Errorf("stop %q, want %q", got.Stop, tt.stop)
			}
			if text := tok.Decode(got.Tokens, true); !strings.HasPrefix(text, tt.tokens) || strings.Contains(text, "_call>") {
				t.Errorf("entries spell %q, want %q and no markup", text, tt.tokens)
			}
			if d := cmp.Diff(got, tell(t, cfg, ids, tt.length, func(int) bool { return true })); d != "" {
				t.Errorf("token by token: %s", d)
			}
			if got.Counts.Tool == 0 && strings.Contains(strings.Join(tt.want, ""), "start") {
				t.Errorf("no token counts as a call's: %+v", got.Counts)
			}
		})
	}
}

// TestToolCutsDoNotMatter: the whole pipeline with markers, stops, calls and entries gives one story for every cut.
func TestToolCutsDoNotMatter(t *testing.T) {
	tok := gatewaytest.Tokenizer(t)
	open, closing := markers(t, tok)
	pieces := []string{"a", "\n", " ", "日", "\U0001F600", "stop", "st", "op", "<think>", "</think>", "<tool_call>",
		"</tool_call>", "<function=f>", "<function=write>",
		"<parameter=path>", "<parameter=n>", "</parameter>", "</function>", "12", `{"name": "f", "arguments": {"n": 1}}`,
		`{"name": "f"`, "<tool_code>", "</tool_code>", "<"}
	rapid.Check(t, func(rt *rapid.T) {
		var ids []int32
		for range rapid.IntRange(0, 40).Draw(rt, "n") {
			if rapid.IntRange(0, 9).Draw(rt, "kind") == 0 {
				ids = append(ids, rapid.Int32Range(0, int32(tok.VocabSize())-1).Draw(rt, "id"))
				continue
			}
			ids = append(ids, tok.Encode(rapid.SampledFrom(pieces).Draw(rt, "piece"), tokenizer.Options{})...)
		}
		cfg := Config{
			Tokenizer: tok, ThinkOpen: open, ThinkClose: closing, Thinking: rapid.Bool().Draw(rt, "thinking"), Logprobs: true,
			Stops: rapid.SliceOfN(rapid.SampledFrom([]string{"stop", "日", "\n\n", "</", "12"}), 0, 2).Draw(rt, "stops"),
		}
		length := rapid.Bool().Draw(rt, "length")
		whole := tell(t, cfg, ids, length, func(int) bool { return false })
		mask := rapid.Uint64().Draw(rt, "cuts")
		got := tell(t, cfg, ids, length, func(i int) bool { return mask>>(i%64)&1 == 1 })
		if d := cmp.Diff(whole, got); d != "" {
			rt.Fatalf("%q cut at %x:\n%s", tok.Decode(ids, true), mask, d)
		}
	})
}
