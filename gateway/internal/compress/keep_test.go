package compress

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/tandem-inference/tandem/gateway/internal/chat"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"pgregory.net/rapid"
)

func TestKeepWidensToWords(t *testing.T) {
	tok := gatewaytest.Tokenizer(t)
	s := newSegment(tok, 0, "internationalisation of programming languages\nis remarkably uncomplicated nowadays")
	n := len(s.ends)
	tests := []struct {
		name string
		kept []span
		want string
	}{
		{"all", []span{{0, n}}, s.text},
		{"nothing", nil, ""},
		{"inside the first word", []span{{1, 2}}, "internationalisation"},
		{"ends of the text", []span{{0, 1}, {n - 1, n}}, "internationalisation\nnowadays"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := strings.TrimSpace(s.keep(tt.kept)); got != tt.want {
				t.Errorf("kept %q, want %q", got, tt.want)
			}
		})
	}
}

// TestKeepProperties: what is kept is made of pieces of the text in order, whole characters and whole words.
func TestKeepProperties(t *testing.T) {
	tok := gatewaytest.Tokenizer(t)
	words := []string{"alpha", "übermäßig", "日本語", "x", "longerword", "\U0001F600"}
	rapid.Check(t, func(rt *rapid.T) {
		text := strings.Join(rapid.SliceOfN(rapid.SampledFrom(words), 1, 40).Draw(rt, "words"),
			rapid.SampledFrom([]string{" ", "\n"}).Draw(rt, "sep"))
		s := newSegment(tok, 0, text)
		if s == nil {
			rt.Fatal("text could not be cut")
		}
		var kept []span
		for at := 0; at < len(s.ends); {
			n := rapid.IntRange(1, 6).Draw(rt, "n")
			end := min(at+n, len(s.ends))
			if rapid.Bool().Draw(rt, "keep") {
				kept = append(kept, span{at, end})
			}
			at = end
		}
		got := s.keep(kept)
		if !utf8.ValidString(got) {
			rt.Fatalf("broken characters in %q", got)
		}
		rest := strings.Fields(text)
		for _, w := range strings.Fields(got) {
			i := slices.Index(rest, w)
			if i < 0 {
				rt.Fatalf("%q is not a word of the text, or out of order, in %q", w, got)
			}
			rest = rest[i+1:]
		}
		if len(kept) > 0 && kept[0].first == 0 && kept[0].last == len(s.ends) && got != text {
			rt.Fatalf("whole text came back as %q", got)
		}
	})
}

func TestDocumentSpans(t *testing.T) {
	tok := gatewaytest.Tokenizer(t)
	long := strings.Repeat("some words that make a long text. ", 200)
	msgs := []chat.Message{
		{Role: chat.RoleSystem, Content: long}, {Role: chat.RoleUser, Content: long + "one"},
		{Role: chat.RoleAssistant, Content: long + "two"},
		{Role: chat.RoleUser, Content: "words"}, {Role: chat.RoleAssistant, ToolCalls: []chat.ToolCall{{Name: "f"}}},
		{Role: chat.RoleTool, Content: long + "three"},
	}
	prompt := "S:" + long + " U:" + long + "one A:" + long + "two U:words A: T:" + long + "three"
	d := newDocument(tok, prompt, &chat.Conversation{Messages: msgs})
	var got []int
	for _, s := range d.segments {
		got = append(got, s.message)
	}
	if !slices.Equal(got, []int{1, 2}) {
		t.Errorf("segments of messages %v, want 1 and 2: the system text, the last turn and the tool round are protected",
			got)
	}
	if text := tok.Decode(d.tokens, true); text != prompt {
		t.Errorf("tokens do not spell the prompt")
	}
}
