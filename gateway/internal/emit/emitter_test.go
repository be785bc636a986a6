package emit

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/services/tokenizer"
	"pgregory.net/rapid"
)

func markers(tb testing.TB, tok *tokenizer.Tokenizer) (open, closing int32) {
	tb.Helper()
	open, ok1 := tok.ID("<think>")
	closing, ok2 := tok.ID("</think>")
	if !ok1 || !ok2 {
		tb.Fatal("the model has no think markers")
	}
	return open, closing
}

type output struct {
	Reasoning, Content, Stop string
	Tokens                   []int32
}

// run pushes ids and takes a delta after each group; cuts holds the sizes of the groups.
func run(cfg Config, ids []int32, cut func(i int) bool) output {
	e := New(cfg)
	var out output
	take := func() {
		for _, ev := range e.Take() {
			switch ev.Kind {
			case Reasoning:
				out.Reasoning += string(ev.Text)
			case Content:
				out.Content += string(ev.Text)
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
	e.Finish(false)
	take()
	out.Stop, _ = e.StopString()
	return out
}

func TestEmitter(t *testing.T) {
	tok := gatewaytest.Tokenizer(t)
	open, closing := markers(t, tok)
	enc := func(s string) []int32 { return tok.Encode(s, tokenizer.Options{ParseSpecial: true}) }
	tests := []struct {
		name     string
		text     string
		thinking bool
		plain    bool
		stops    []string
		want     output
	}{
		{name: "content", text: "Hello, world", want: output{Content: "Hello, world"}},
		{name: "leading blank without reasoning stays", text: "\n\n Hello", want: output{Content: "\n\n Hello"}},
		{name: "only blank", text: " \n", want: output{Content: " \n"}},
		{name: "reasoning first", text: "\n<think>\nwhy not\n\n</think>\n\n Yes.\n",
			want: output{Reasoning: "why not", Content: "Yes.\n"}},
		{name: "started in reasoning", thinking: true, text: "a\nb\n</think>\n\nc",
			want: output{Reasoning: "a\nb", Content: "c"}},
		{name: "never closed", thinking: true, text: "a\nb\n\n", want: output{Reasoning: "a\nb"}},
		{name: "markers in an answer", text: "a<think>b</think>c", want: output{Content: "a<think>b</think>c"}},
		{name: "markers in an answer after reasoning", thinking: true,
			text: "why\n</think>\n\nUse `<think>` and\n</think>\n\n.",
			want: output{Reasoning: "why", Content: "Use `<think>` and\n</think>\n\n."}},
		{name: "close marker without an open one", text: "</think>\n\nHello", want: output{Content: "</think>\n\nHello"}},
		{name: "second close marker", thinking: true, text: "a</think>\n</think>b",
			want: output{Reasoning: "a", Content: "</think>b"}},
		{name: "open marker after reasoning", thinking: true, text: "a</think>\n\n<think>\nb",
			want: output{Reasoning: "a", Content: "<think>\nb"}},
		{name: "open marker in reasoning", thinking: true, text: "<think>\na <think> b\n</think>\nc",
			want: output{Reasoning: "<think>\na <think> b", Content: "c"}},
		{name: "half a character before the open marker", text: "\xE6\x97<think>a", want: output{Content: "\uFFFD<think>a"}},
		{name: "markers around a stop string", text: "a </think>stop", stops: []string{"k>st"},
			want: output{Content: "a </thin", Stop: "k>st"}},
		{name: "a marker as a stop string", text: "a </think>b", stops: []string{"</think>"},
			want: output{Content: "a ", Stop: "</think>"}},
		{name: "no split", plain: true, text: "a<think>b</think>c", want: output{Content: "a<think>b</think>c"}},
		{name: "control tokens are left out", text: "a<|im_start|>b", want: output{Content: "ab"}},
		{name: "tool markup passes", text: "<tool_call>\n<function=f>\n</function>\n</tool_call>",
			want: output{Content: "<tool_call>\n<function=f>\n</function>\n</tool_call>"}},
		{name: "stop", text: "one two three", stops: []string{"two"}, want: output{Content: "one ", Stop: "two"}},
		{name: "stop across tokens", text: "the quick brown fox", stops: []string{"ck bro"},
			want: output{Content: "the qui", Stop: "ck bro"}},
		{name: "stop prefix that does not complete", text: "abcabd", stops: []string{"abe", "bdx"},
			want: output{Content: "abcabd"}},
		{name: "first to end wins", text: "xabcdy", stops: []string{"abcd", "bc"}, want: output{Content: "xa", Stop: "bc"}},
		{name: "longest of those that end together", text: "xabcy", stops: []string{"c", "abc"},
			want: output{Content: "x", Stop: "abc"}},
		{name: "stop in reasoning is ignored", thinking: true, text: "stop\n</think>\n\ngo stop here",
			stops: []string{"stop"}, want: output{Reasoning: "stop", Content: "go ", Stop: "stop"}},
		{name: "multi-byte stop", text: "日本語です。はい", stops: []string{"。"}, want: output{Content: "日本語です", Stop: "。"}},
		{name: "overlap", text: "aaab", stops: []string{"aab"}, want: output{Content: "a", Stop: "aab"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := Config{Tokenizer: tok, ThinkOpen: open, ThinkClose: closing, Thinking: tt.thinking, Stops: tt.stops}
			if tt.plain {
				cfg.ThinkOpen, cfg.ThinkClose = None, None
			}
			for name, cut := range map[string]func(int) bool{
				"whole": func(int) bool { return false }, "each": func(int) bool { return true },
				"odd": func(i int) bool { return i%2 == 1 },
			} {
				if d := cmp.Diff(tt.want, run(cfg, enc(tt.text), cut)); d != "" {
					t.Errorf("%s: %s", name, d)
				}
			}
		})
	}
}

func TestInvalidBytes(t *testing.T) {
	tok := gatewaytest.Tokenizer(t)
	id := func(b byte) int32 {
		for i := range int32(tok.VocabSize()) {
			if tb := tok.TokenBytes(i); len(tb) == 1 && tb[0] == b && tok.TokenKind(i) == tokenizer.KindNormal {
				return i
			}
		}
		t.Fatalf("no token for byte %#x", b)
		return 0
	}
	ids := []int32{id('a'), id(0xE6), id(0x97), id('b'), id(0xFF), id(0xE6), id(0x97), id(0xA5), id(0xF0), id(0x9F)}
	e := New(Config{Tokenizer: tok, ThinkOpen: None, ThinkClose: None, Logprobs: true})
	var got []string
	var tokens int
	take := func(id int32) {
		text, n := "", 0
		for _, ev := range e.Take() {
			text += string(ev.Text)
			n += len(ev.Entries)
		}
		got = append(got, text)
		tokens += n
		if n > 0 && text == "" {
			t.Errorf("token %d was reported before its text", id)
		}
	}
	for _, i := range ids {
		e.Push(Entry{Candidate: Candidate{ID: i}})
		take(i)
	}
	e.Finish(false)
	take(-1)
	want := []string{"a", "", "", "\uFFFDb", "\uFFFD", "", "", "日", "", "", "\uFFFD"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if tokens != len(ids) {
		t.Errorf("%d entries for %d tokens", tokens, len(ids))
	}
}

// TestCutsDoNotMatter is the property behind streaming: however the tokens are grouped, the joined deltas equal
// the whole.
func TestCutsDoNotMatter(t *testing.T) {
	tok := gatewaytest.Tokenizer(t)
	open, closing := markers(t, tok)
	pieces := []string{"a", "b", "\n", " ", "ab", "日", "é", "\U0001F600", "stop", "st", "op", "<think>",
		"</think>", "\n\n", "<tool_call>"}
	rapid.Check(t, func(rt *rapid.T) {
		var ids []int32
		for range rapid.IntRange(0, 40).Draw(rt, "n") {
			switch rapid.IntRange(0, 3).Draw(rt, "kind") {
			case 0:
				ids = append(ids, rapid.Int32Range(0, int32(tok.VocabSize())-1).Draw(rt, "id"))
			case 1:
				ids = append(ids, rapid.SampledFrom([]int32{open, closing}).Draw(rt, "marker"))
			default:
				ids = append(ids, tok.Encode(rapid.SampledFrom(pieces).Draw(rt, "piece"), tokenizer.Options{})...)
			}
		}
		cfg := Config{
			Tokenizer: tok, ThinkOpen: open, ThinkClose: closing, Thinking: rapid.Bool().Draw(rt, "thinking"),
			Stops: rapid.SliceOfN(rapid.SampledFrom([]string{"stop", "ab", "aab", "日", "\n\n", " st", "opé"}),
				0, 3).Draw(rt, "stops"),
		}
		whole := run(cfg, ids, func(int) bool { return false })
		cfg.Logprobs = rapid.Bool().Draw(rt, "logprobs")
		mask := rapid.Uint64().Draw(rt, "cuts")
		got := run(cfg, ids, func(i int) bool { return mask>>(i%64)&1 == 1 })
		tokens := got.Tokens
		got.Tokens = nil
		if d := cmp.Diff(whole, got); d != "" {
			rt.Fatalf("cut output differs from the whole:\n%s", d)
		}
		if cfg.Logprobs {
			// Tokens reported for the content must spell it, but for trimmed whitespace and replaced bytes.
			text := tok.Decode(tokens, false)
			if c := strings.ReplaceAll(whole.Content, "\uFFFD", ""); !strings.Contains(strings.ReplaceAll(text, "\uFFFD", ""),
				c) && whole.Stop == "" {
				rt.Fatalf("content %q is not spelled by its tokens %q", whole.Content, text)
			}
		}
		if whole.Stop != "" && strings.Contains(whole.Content, whole.Stop) {
			rt.Fatalf("content %q holds the stop string %q", whole.Content, whole.Stop)
		}
	})
}

func TestNoAllocationPerToken(t *testing.T) {
	tok := gatewaytest.Tokenizer(t)
	open, closing := markers(t, tok)
	ids := tok.Encode("func main() { println(1) }\n", tokenizer.Options{})
	e := New(Config{Tokenizer: tok, ThinkOpen: open, ThinkClose: closing, Stops: []string{"never there", "pri"}[:1]})
	step := func() {
		for _, id := range ids {
			e.Push(Entry{Candidate: Candidate{ID: id}})
			e.Take()
		}
	}
	step()
	if n := testing.AllocsPerRun(50, step); n > 0 {
		t.Errorf("%v allocations per %d tokens, want none", n, len(ids))
	}
}
