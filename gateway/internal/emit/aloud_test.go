package emit

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/services/tokenizer"
)

// TestAloud: reasoning that stays in the content is there byte for byte, wherever events are taken; calls, stops and
// counts are those of split reasoning.
func TestAloud(t *testing.T) {
	tok := gatewaytest.Tokenizer(t)
	open, closing := markers(t, tok)
	const call = "<tool_call>\n<function=f>\n</function>\n</tool_call>"
	for name, test := range map[string]struct {
		opened, text string
		want         []string
	}{
		"opened by the prompt": {"<think>\n", "\nwhy\n\n</think>\n\nok",
			[]string{"content <think>\n\nwhy\n\n</think>\n\nok"}},
		"opened by the model": {"", " \n<think>why</think>\n\nok", []string{"content  \n<think>why</think>\n\nok"}},
		"no reasoning":        {"", "\nok </think>", []string{"content \nok </think>"}},
		"never closed":        {"<think>\n", "why\n\n", []string{"content <think>\nwhy\n\n"}},
		"a call in the answer": {"<think>\n", "why\n</think>\n\nok\n" + call,
			[]string{"content <think>\nwhy\n</think>\n\nok\n", "start f", "args {}", "end {}"}},
		"a call in reasoning is a plan": {"<think>\n", "a " + call + " b</think>ok",
			[]string{"content <think>\na " + call + " b</think>ok"}},
		"a plan before the end of reasoning": {"<think>\n", "a " + call + "</think>ok",
			[]string{"content <think>\na " + call + "</think>ok"}},
		"a call that ends the turn": {"<think>\n", "why\n" + call,
			[]string{"content <think>\nwhy\n", "start f", "args {}", "end {}"}},
		"stops are for the answer": {"<think>\n", "a stop b</think>c stop d",
			[]string{"content <think>\na stop b</think>c "}},
	} {
		t.Run(name, func(t *testing.T) {
			ids := tok.Encode(test.text, tokenizer.Options{ParseSpecial: true})
			cfg := Config{Tokenizer: tok, ThinkOpen: open, ThinkClose: closing, Thinking: test.opened != "",
				Stops: []string{"stop"}}
			never := func(int) bool { return false }
			split := tell(t, cfg, ids, false, never)
			cfg.Aloud, cfg.Opened = true, test.opened
			whole := tell(t, cfg, ids, false, never)
			if d := cmp.Diff(test.want, whole.Events); d != "" {
				t.Error(d)
			}
			if whole.Counts != split.Counts || whole.Stop != split.Stop {
				t.Errorf("%+v and stop %q, split %+v and %q", whole.Counts, whole.Stop, split.Counts, split.Stop)
			}
			each := tell(t, cfg, ids, false, func(int) bool { return true })
			if d := cmp.Diff(fmt.Sprint(whole), fmt.Sprint(each)); d != "" {
				t.Errorf("token by token: %s", d)
			}
			if len(whole.Events) == 1 && whole.Stop == "" && strings.TrimPrefix(whole.Events[0], "content ") !=
				test.opened+test.text {
				t.Errorf("%q is not what was written", whole.Events)
			}
		})
	}
}
