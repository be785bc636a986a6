package turn

import (
	"encoding/json"
	"math"

	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	"github.com/tandem-inference/tandem/gateway/internal/reqjson"
	"github.com/tandem-inference/tandem/services/bounds"
)

// ParseThinking reads all fields about reasoning and the variables for the template (docs/spec/http-api.md §8.1, §8.3).
func ParseThinking(o reqjson.Object) (t Thinking, kwargs json.RawMessage, err error) {
	kw, ok, err := o.Object("chat_template_kwargs")
	if err != nil {
		return t, nil, err
	}
	if ok {
		kwargs, _, _ = o.Raw("chat_template_kwargs")
		if t.KwargsEnable, err = optionalBool(kw, "enable_thinking"); err != nil {
			return t, nil, err
		}
		if err := checkKwargs(kw); err != nil {
			return t, nil, err
		}
	}
	if t.Enable, err = optionalBool(o, "enable_thinking"); err != nil {
		return t, nil, err
	}
	if t.Effort, err = parseEffort(o); err != nil {
		return t, nil, err
	}
	if err := t.parseSwitch(o); err != nil {
		return t, nil, err
	}
	budget, _, err := o.Int(bounds.Between(1, math.MaxInt32), "thinking_budget")
	if err != nil {
		return t, nil, err
	}
	t.BudgetTokens = int(budget)
	th, ok, err := o.Object("thinking")
	if err != nil || !ok {
		return t, kwargs, err
	}
	if t.Type, ok, err = th.String("type"); err != nil {
		return t, nil, err
	}
	if ok && t.Type != "enabled" && t.Type != "adaptive" && t.Type != "disabled" {
		return t, nil, reqerr.InvalidValue("thinking.type", "must be enabled, adaptive or disabled, got %q", t.Type)
	}
	budget, ok, err = th.Int(bounds.Between(1, math.MaxInt32), "budget_tokens")
	if err != nil {
		return t, nil, err
	}
	if ok {
		t.BudgetTokens = int(budget)
	}
	reply, ok, err := th.Int(bounds.Between(0, math.MaxInt32), "reply_budget")
	if ok {
		n := int(reply)
		t.ReplyBudget = &n
	}
	return t, kwargs, err
}

// checkKwargs refuses variables that the request gives elsewhere, and values that the gateway's own variables
// cannot have.
func checkKwargs(kw reqjson.Object) error {
	for _, name := range []string{"messages", "tools"} {
		if kw.Has(name) {
			return reqerr.InvalidValue(kw.Path(name), "cannot be set here, use %s of the request", name)
		}
	}
	if _, err := optionalBool(kw, "add_generation_prompt"); err != nil {
		return err
	}
	for _, name := range []string{"bos_token", "eos_token"} {
		if _, _, err := kw.String(name); err != nil {
			return err
		}
	}
	return nil
}

// parseEffort finds the first effort of reasoning.effort, reasoning_effort and output_config.effort. reasoning may also
// be text of an earlier turn; only an object is read.
func parseEffort(o reqjson.Object) (string, error) {
	for _, from := range []string{"reasoning", "", "output_config"} {
		in, name := o, "reasoning_effort"
		if from != "" {
			var ok bool
			var err error
			if in, ok, err = innerObject(o, from); err != nil {
				return "", err
			} else if !ok {
				continue
			}
			name = "effort"
		}
		if effort, ok, err := in.String(name); ok || err != nil {
			return effort, err
		}
	}
	return "", nil
}

// parseSwitch reads reasoning.enabled, which OpenRouter defined and Hermes agent sends: false is effort none, true is
// enable_thinking, whatever else is given.
func (t *Thinking) parseSwitch(o reqjson.Object) error {
	in, ok, err := innerObject(o, "reasoning")
	if err != nil || !ok {
		return err
	}
	enabled, err := optionalBool(in, "enabled")
	if err != nil || enabled == nil {
		return err
	}
	if *enabled {
		t.Enable = enabled
	} else {
		t.Effort = "none"
	}
	return nil
}

// innerObject returns the member that is an object; a member of another type counts as absent.
func innerObject(o reqjson.Object, name string) (in reqjson.Object, ok bool, err error) {
	raw, _, ok := o.Peek(name)
	if !ok || reqjson.Kind(raw) != 'o' {
		return in, false, nil
	}
	in, _, err = o.Object(name)
	return in, err == nil, err
}

func optionalBool(o reqjson.Object, name string) (*bool, error) {
	v, ok, err := o.Bool(name)
	if !ok || err != nil {
		return nil, err
	}
	return &v, nil
}
