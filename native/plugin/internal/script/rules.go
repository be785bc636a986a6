// Package script is a model whose output is read from a file. Tests use it as the engine to drive every path of gateway
// and workers with exact output, at an exact pace, in steps of exact sizes. It opens real model files for their shapes
// and tokenizer, but computes nothing with them.
package script

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
)

// Variable names the environment variable that holds the path of the rules.
const Variable = "TANDEM_SCRIPT"

// Rule is one entry of the rules, a JSON list of which the first entry that matches is followed.
type Rule struct {
	// Prompt is an RE2 expression searched for in the rendered prompt: the text of all its tokens, control tokens such as
	// <|im_start|> included. It is usually anchored at the end, where the newest turn stands.
	Prompt string `json:"prompt"`
	// Emit is the text of the answer. $1 or ${name} stand for what the expression matched, $$ for a dollar. Text of
	// special tokens such as <think>, </think> and <tool_call> becomes these tokens. The end of the turn follows by
	// itself.
	Emit string `json:"emit"`
	// TokensPerSecond paces each answer, 0 = as fast as it goes.
	TokensPerSecond float64 `json:"tokens_per_second"`
	// FirstTokenMs is how long the prompt takes.
	FirstTokenMs int `json:"first_token_ms"`
	// Accept lists, cyclically, how many tokens the rounds commit that follow the first token, as far as blocks and
	// budgets reach: the draft is right that often, less one, and then wrong. Empty = the draft is always right.
	Accept []int `json:"accept"`

	prompt *regexp.Regexp
}

// Load reads rules from a file. Errors name the entry and the field.
func Load(path string) ([]Rule, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", Variable, err)
	}
	rules, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", Variable, path, err)
	}
	return rules, nil
}

// Parse reads and checks rules.
func Parse(data []byte) ([]Rule, error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	var rules []Rule
	if err := decoder.Decode(&rules); err != nil {
		return nil, err
	}
	if decoder.More() {
		return nil, errors.New("there is text behind the list of rules")
	}
	for i := range rules {
		if err := rules[i].check(); err != nil {
			return nil, fmt.Errorf("rule %d: %w", i+1, err)
		}
	}
	return rules, nil
}

func (r *Rule) check() error {
	var err error
	if r.prompt, err = regexp.Compile(r.Prompt); err != nil {
		return fmt.Errorf("prompt: %w", err)
	}
	switch {
	case r.TokensPerSecond < 0:
		return fmt.Errorf("tokens_per_second: %v is negative", r.TokensPerSecond)
	case r.FirstTokenMs < 0:
		return fmt.Errorf("first_token_ms: %d is negative", r.FirstTokenMs)
	}
	for _, n := range r.Accept {
		if n < 1 {
			return fmt.Errorf("accept: a round commits at least 1 token, got %d", n)
		}
	}
	return nil
}

// answer finds the rule for a prompt and what it makes the model say. Without one the rule is empty and the text says
// so.
func answer(rules []Rule, prompt string) (*Rule, string) {
	for i := range rules {
		r := &rules[i]
		if at := r.prompt.FindStringSubmatchIndex(prompt); at != nil {
			return r, string(r.prompt.ExpandString(nil, r.Emit, prompt, at))
		}
	}
	if len(rules) == 0 {
		return &Rule{}, "The scripted engine has no rules: name a file of rules by " + Variable + "."
	}
	return &Rule{}, fmt.Sprintf("None of the %d rules of %s matches this prompt.", len(rules), Variable)
}
