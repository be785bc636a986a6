package e2e

import (
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/tests/client"
)

// needle is a prompt with one fact hidden in it.
type needle struct {
	Tokens       int
	Prompt       string
	Answer       string
	FullOK       bool `json:"full_ok"`
	CompressedOK bool `json:"compressed_ok"`
}

// question splits a rendered prompt into the text of its user turn.
func (n needle) question() string {
	text := strings.TrimPrefix(n.Prompt, "<|im_start|>user\n")
	text, _, _ = strings.Cut(text, "<|im_end|>")
	return text
}

// TestNeedles: facts are found in long prompts as the reference finds them, with the prompt whole and compressed. Eight prompts
// here, all of them in bench/needle.
func TestNeedles(t *testing.T) {
	_, c := demo(t)
	var all []needle
	readJSON(t, "tandem-tiny-needle.json", &all)
	var chosen []needle
	for _, n := range all {
		if n.FullOK && n.CompressedOK && n.Tokens > 1500 && n.Tokens < 5000 && len(chosen) < 8 {
			chosen = append(chosen, n)
		}
	}
	if len(chosen) < 4 {
		t.Fatalf("%d prompts to try", len(chosen))
	}
	off := false
	for _, mode := range []string{"off", "always"} {
		found, kept, prompt := 0, 0, 0
		for _, n := range chosen {
			reply, err := c.Do(t.Context(), client.Request{
				Messages: chat(n.question()), MaxTokens: 24, EnableThinking: &off,
				PFlash: map[string]any{"mode": mode, "keep_ratio": 0.2},
			})
			if err != nil {
				t.Fatalf("%s, %d tokens: %v", mode, n.Tokens, err)
			}
			if strings.Contains(reply.Text, n.Answer) {
				found++
			} else {
				t.Logf("%s, %d tokens: %q lacks %s", mode, n.Tokens, reply.Text, n.Answer)
			}
			prompt += n.Tokens
			kept += n.Tokens - reply.Usage.PromptDetails.CompressedTokens
		}
		t.Logf("%s: %d of %d found, %d of %d tokens read", mode, found, len(chosen), kept, prompt)
		if found < len(chosen)-1 {
			t.Errorf("%s: %d of %d found", mode, found, len(chosen))
		}
		if mode == "always" && kept > prompt*2/3 {
			t.Errorf("compression kept %d of %d tokens", kept, prompt)
		}
	}
}
