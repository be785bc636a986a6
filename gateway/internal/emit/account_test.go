package emit

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/toolcall"
	"github.com/tandem-inference/tandem/services/tokenizer"
	"pgregory.net/rapid"
)

// TestChannels: channels in the answer whose markers are control tokens with a label.
func TestChannels(t *testing.T) {
	tok := gatewaytest.Tokenizer(t)
	id := func(s string) int32 {
		n, ok := tok.ID(s)
		if !ok || tok.TokenKind(n) != tokenizer.KindControl {
			t.Fatalf("%s is no control token", s)
		}
		return n
	}
	// The test vocabulary has no channels: two other control tokens stand for the markers.
	names := strings.NewReplacer("<|channel>", "<|fim_prefix|>", "<channel|>", "<|fim_suffix|>")
	cfg := Config{Tokenizer: tok, ThinkOpen: id("<|fim_prefix|>"), ThinkClose: id("<|fim_suffix|>"),
		ThinkLabel: "thought", Logprobs: true}
	for _, tt := range []struct{ name, text, reasoning, content string }{
		{"reasoning", "<|channel>thought\nwhy<channel|>Hello", "why", "Hello"},
		{"empty after the answer", "Hello<|channel>thought\n<channel|>", "", "Hello"},
		{"empty and closed twice", "<|channel>thought\n<channel|>Hello<|channel>thought\n<channel|><channel|>", "", "Hello"},
		{"empty without a label", "Hello<|channel><channel|> you", "", "Hello you"},
		{"empty inside of the answer", "Hello<|channel>thought\n<channel|> you", "", "Hello you"},
		{"with text", "Hello <|channel>thought\nmore<channel|>", "", "Hello thought\nmore"},
		{"half a label", "Hello <|channel>thou<channel|>", "", "Hello thou"},
		{"another label", "Hello <|channel>final<channel|>", "", "Hello final"},
		{"not closed", "Hello <|channel>thought\n", "", "Hello thought\n"},
		{"opened twice", "<|channel><|channel>thought\n<channel|>Hello", "", "Hello"},
	} {
		ids := tok.Encode(names.Replace(tt.text), tokenizer.Options{ParseSpecial: true})
		for name, cut := range map[string]bool{"whole": false, "each": true} {
			got := run(cfg, ids, func(int) bool { return cut })
			if got.Reasoning != tt.reasoning || got.Content != tt.content {
				t.Errorf("%s, %s: reasoning %q, content %q, want %q and %q", tt.name, name, got.Reasoning, got.Content,
					tt.reasoning, tt.content)
			}
			if text := tok.Decode(got.Tokens, false); strings.TrimSpace(text) != strings.TrimSpace(tt.content) {
				t.Errorf("%s, %s: entries spell %q, want %q", tt.name, name, text, tt.content)
			}
		}
	}
}

// TestEveryByteIsAccountedFor: whatever a model writes, with markers and markup anywhere, comes out as reasoning, as
// content or as a call, in its order, but for what the rules drop: whitespace, the markers that open and close the
// reasoning, and marks after a call that close nothing.
func TestEveryByteIsAccountedFor(t *testing.T) {
	tok := gatewaytest.Tokenizer(t)
	open, closing := markers(t, tok)
	const call = "<tool_call>\n<function=write>\n<parameter=path>\nif a < b: \"</think>\" 日\n</parameter>\n</function>\n</tool_call>"
	pieces := []string{"a", "b c", "\n", " ", "日", "\U0001F600", "<think>", "</think>", "<think>", "</think>",
		"<tool_call>", "</tool_call>", "<function=f>",
		"<function=write>", "<parameter=path>", "<parameter=n>", "</parameter>", "</function>", "12", call, "\n" + call,
		`{"name": "f", "arguments": {"n": 1}}`, "<tool_call>\n" + `{"name": "f", "arguments": {"n": 1}}` + "\n</tool_call>",
		"<", "</thi", "nk>", "<tool_", "call>", "\xE6\x97"}
	value := regexp.MustCompile(`(?s)<parameter=path>\n?(.*?)\n?</parameter>`)
	set := &toolcall.Set{}
	for _, name := range []string{"f", "write"} {
		if err := set.Add(toolcall.Tool{Name: name,
			Schema: []byte(`{"properties":{"path":{"type":"string"},"n":{"type":"integer"}}}`)}, nil); err != nil {
			t.Fatal(err)
		}
	}
	tools := toolcall.Config{Set: set, Family: toolcall.QwenFamily, NewID: func() string { return "id" }}
	rapid.Check(t, func(rt *rapid.T) {
		var text strings.Builder
		for range rapid.IntRange(0, 25).Draw(rt, "n") {
			text.WriteString(rapid.SampledFrom(pieces).Draw(rt, "piece"))
		}
		ids := tok.Encode(text.String(), tokenizer.Options{ParseSpecial: true})
		cfg := Config{Tokenizer: tok, ThinkOpen: open, ThinkClose: closing,
			Thinking: rapid.Bool().Draw(rt, "thinking"), Logprobs: true}
		if rapid.Bool().Draw(rt, "tools") {
			cfg.Tools, cfg.Trial = toolcall.NewParser(tools), func() *toolcall.Parser { return toolcall.NewParser(tools) }
		}
		e := New(cfg)
		var reasoning, content, all strings.Builder
		var seen []int32
		mask := rapid.Uint64().Draw(rt, "cuts")
		take := func() {
			for _, ev := range e.Take() {
				switch ev.Kind {
				case Reasoning:
					reasoning.Write(ev.Text)
					all.Write(ev.Text)
				case Content:
					content.Write(ev.Text)
					all.Write(ev.Text)
				case ToolEnd:
					all.WriteString(ev.Call.Raw)
					// An argument is the text between its tags.
					var args map[string]any
					if err := json.Unmarshal([]byte(ev.Call.Arguments), &args); err != nil {
						rt.Fatalf("arguments %q: %v", ev.Call.Arguments, err)
					}
					if m := value.FindAllStringSubmatch(ev.Call.Raw, -1); len(m) == 1 && args["path"] != nil &&
						args["path"] != m[0][1] {
						rt.Fatalf("the argument is %q, written was %q", args["path"], m[0][1])
					}
				}
				for _, n := range ev.Entries {
					seen = append(seen, n.ID)
				}
			}
		}
		for i, id := range ids {
			e.Push(Entry{Candidate: Candidate{ID: id}})
			if mask>>(i%64)&1 == 1 {
				take()
			}
		}
		e.Finish(false)
		take()
		if n := e.Counts(); n.Total != len(ids) || n.Thinking < 0 || n.Tool < 0 || n.Thinking+n.Tool > n.Total {
			rt.Fatalf("counts %+v of %d tokens", n, len(ids))
		}
		in, out := tight(tok.Decode(ids, true)), tight(all.String())
		if !accounts(in, out, !cfg.Thinking, true) {
			rt.Fatalf("%q (thinking %v) came out as\n%q", text.String(), cfg.Thinking, all.String())
		}
		// Each piece of the answer is spelled by the entries; they may hold more, such as dropped whitespace or the start of
		// a call.
		spelled := tight(tok.Decode(seen, true))
		if !subsequence(tight(content.String()), spelled) {
			rt.Fatalf("%q: content %q is not spelled by its entries %q", text.String(), content.String(), spelled)
		}
	})
}

// tight leaves whitespace out.
func tight(s string) string { return strings.Join(strings.Fields(s), "") }

// accounts reports whether out is in without at most one open and one close marker and without marks that
// close nothing.
func accounts(in, out string, opens, closes bool) bool {
	type state struct {
		in, out       int
		opens, closes bool
	}
	failed := map[state]bool{}
	var try func(s state) bool
	try = func(s state) bool {
		if failed[s] {
			return false
		}
		if s.in == len(in) && s.out == len(out) {
			return true
		}
		skip := func(mark string, allowed bool, next state) bool {
			next.in += len(mark)
			return allowed && strings.HasPrefix(in[s.in:], mark) && try(next)
		}
		if s.in < len(in) && s.out < len(out) && in[s.in] == out[s.out] &&
			try(state{s.in + 1, s.out + 1, s.opens, s.closes}) {
			return true
		}
		ok := skip("<think>", s.opens, state{s.in, s.out, false, s.closes}) ||
			skip("</think>", s.closes, state{s.in, s.out, s.opens, false})
		for n := len("</tool_call>"); n > 0 && !ok; n-- {
			ok = skip("</tool_call>"[:n], true, s)
		}
		failed[s] = !ok
		return ok
	}
	return try(state{0, 0, opens, closes})
}

// subsequence reports whether the bytes of s occur in t in their order.
func subsequence(s, t string) bool {
	for i := 0; i < len(s); i++ {
		at := strings.IndexByte(t, s[i])
		if at < 0 {
			return false
		}
		t = t[at+1:]
	}
	return true
}
