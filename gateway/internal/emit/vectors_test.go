package emit

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/toolcall"
	"github.com/tandem-inference/tandem/services/tokenizer"
)

// answer is what a vector expects of an output.
type answer struct {
	Reasoning, Content string
	Calls              []struct{ Name, Arguments string }
}

// vector is a case of testdata/vectors.json.
type vector struct {
	Source, Family, Output string
	Thinking               bool
	Aloud                  bool
	Opened                 string
	Tools                  []string
	answer
}

// TestVectors runs outputs of models, as another project's parsers of the same formats read them (testdata/README.md).
func TestVectors(t *testing.T) {
	raw, err := os.ReadFile("testdata/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Tools   map[string]json.RawMessage
		Vectors []vector
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	tok := gatewaytest.Tokenizer(t)
	open, closing := markers(t, tok)
	// The test vocabulary has no channels: two other control tokens stand for Gemma's markers.
	channels := strings.NewReplacer("<|channel>", "<|fim_prefix|>", "<channel|>", "<|fim_suffix|>")
	back := strings.NewReplacer("<|fim_prefix|>", "<|channel>", "<|fim_suffix|>", "<channel|>")
	passed := map[string]int{}
	for _, v := range file.Vectors {
		t.Run(v.Source, func(t *testing.T) {
			cfg := Config{Tokenizer: tok, ThinkOpen: open, ThinkClose: closing, Thinking: v.Thinking, Aloud: v.Aloud,
				Opened: v.Opened}
			family := map[string]toolcall.Family{"qwen": toolcall.QwenFamily, "gemma": toolcall.GemmaFamily,
				"generic": toolcall.Generic}[v.Family]
			text := v.Output
			if family == toolcall.GemmaFamily {
				text, cfg.ThinkLabel = channels.Replace(text), "thought"
				cfg.ThinkOpen, _ = tok.ID("<|fim_prefix|>")
				cfg.ThinkClose, _ = tok.ID("<|fim_suffix|>")
			}
			set := &toolcall.Set{}
			for _, name := range v.Tools {
				if err := set.Add(toolcall.Tool{Name: name, Schema: file.Tools[name]}, nil); err != nil {
					t.Fatal(err)
				}
			}
			ids := tok.Encode(text, tokenizer.Options{ParseSpecial: true})
			parser := func() *toolcall.Parser {
				return toolcall.NewParser(toolcall.Config{Set: set, Family: family, NewID: func() string { return "id" }})
			}
			for _, each := range []bool{false, true} {
				if cfg.Trial = nil; len(v.Tools) > 0 {
					cfg.Tools, cfg.Trial = parser(), parser
				}
				e := New(cfg)
				var got answer
				take := func() {
					for _, ev := range e.Take() {
						switch ev.Kind {
						case Reasoning:
							got.Reasoning += string(ev.Text)
						case Content:
							got.Content += string(ev.Text)
						case ToolEnd:
							got.Calls = append(got.Calls, struct{ Name, Arguments string }{ev.Call.Name, ev.Call.Arguments})
						}
					}
				}
				for _, id := range ids {
					e.Push(Entry{Candidate: Candidate{ID: id}})
					if each {
						take()
					}
				}
				e.Finish(false)
				take()
				if family == toolcall.GemmaFamily {
					got.Content = back.Replace(got.Content)
				}
				if d := cmp.Diff(plain(t, v.answer), plain(t, got)); d != "" {
					t.Errorf("%q: %s", v.Output, d)
					return
				}
			}
			passed[strings.SplitN(v.Source, ":", 2)[0]]++
		})
	}
	t.Logf("passed: %v", passed)
}

// plain leaves out what the two projects write differently: newlines around reasoning, and how JSON is spelled.
func plain(t *testing.T, a answer) answer {
	a.Reasoning = strings.Trim(a.Reasoning, "\n")
	for i := range a.Calls {
		var v any
		if err := json.Unmarshal([]byte(a.Calls[i].Arguments), &v); err != nil {
			t.Errorf("arguments %q: %v", a.Calls[i].Arguments, err)
		}
		b, _ := json.Marshal(v)
		a.Calls[i].Arguments = string(b)
	}
	return a
}
