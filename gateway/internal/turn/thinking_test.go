package turn

import (
	"testing"
)

// TestThinkingSwitch is the order of docs/spec/http-api.md §8.1.
func TestThinkingSwitch(t *testing.T) {
	for body, want := range map[string]bool{
		`{}`: true, `{"reasoning":null}`: true, `{"reasoning":{}}`: true, `{"reasoning":"text of a turn"}`: true,
		`{"chat_template_kwargs":{"enable_thinking":false}}`:                                           false,
		`{"chat_template_kwargs":{"enable_thinking":false},"enable_thinking":true}`:                    true,
		`{"enable_thinking":true,"reasoning_effort":"none"}`:                                           false,
		`{"reasoning_effort":"none","reasoning":{"effort":"low"}}`:                                     true,
		`{"reasoning":{"enabled":false}}`:                                                              false,
		`{"reasoning":{"enabled":false,"effort":"high"},"enable_thinking":true}`:                       false,
		`{"reasoning":{"enabled":true},"enable_thinking":false}`:                                       true,
		`{"reasoning":{"enabled":true,"effort":"none"}}`:                                               false,
		`{"reasoning":{"enabled":null},"enable_thinking":false}`:                                       false,
		`{"output_config":{"effort":"none"}}`:                                                          false,
		`{"thinking":{"type":"disabled"},"reasoning":{"effort":"high"}}`:                               false,
		`{"thinking":{"type":"adaptive"},"reasoning_effort":"none","enable_thinking":false}`:           true,
		`{"thinking":{"budget_tokens":5},"enable_thinking":false}`:                                     false,
		`{"thinking":null,"reasoning_effort":null,"enable_thinking":null,"chat_template_kwargs":null}`: true,
	} {
		th, _, err := ParseThinking(object(t, body))
		if err != nil || th.On(true) != want {
			t.Errorf("%s: %v %v, want %v", body, th.On(true), err, want)
		}
	}
	th, _, err := ParseThinking(object(t,
		`{"thinking":{"type":"enabled","budget_tokens":9,"reply_budget":0},"thinking_budget":7}`))
	if err != nil || th.BudgetTokens != 9 || th.ReplyBudget == nil || *th.ReplyBudget != 0 {
		t.Errorf("%+v, %v", th, err)
	}
	for body, param := range map[string]string{
		`{"thinking":{"type":"maybe"}}`:                  "thinking.type",
		`{"thinking":{"budget_tokens":0}}`:               "thinking.budget_tokens",
		`{"thinking_budget":0}`:                          "thinking_budget",
		`{"reasoning":{"effort":3}}`:                     "reasoning.effort",
		`{"reasoning":{"enabled":"no"}}`:                 "reasoning.enabled",
		`{"chat_template_kwargs":{"enable_thinking":3}}`: "chat_template_kwargs.enable_thinking",
	} {
		_, _, err := ParseThinking(object(t, body))
		if faultAt(err) != param {
			t.Errorf("%s: %v, want a fault at %s", body, err, param)
		}
	}
}
