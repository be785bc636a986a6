package openai

import (
	"github.com/tandem-inference/tandem/gateway/internal/apierror"
	"github.com/tandem-inference/tandem/gateway/internal/reqjson"
	"github.com/tandem-inference/tandem/services/chattemplate"
)

// parseThinking resolves the switch: the first of thinking.type, an effort, enable_thinking and chat_template_kwargs that says
// something wins, else the server's default. Budgets are checked for their form.
func parseThinking(o reqjson.Object, byDefault bool) (on bool, kwargs *chattemplate.Dict, err error) {
	kw, hasKw, err := o.Object("chat_template_kwargs")
	if err != nil {
		return false, nil, err
	}
	if hasKw {
		raw, _, _ := o.Raw("chat_template_kwargs")
		v, err := chattemplate.FromJSON(raw)
		if err != nil {
			return false, nil, apierror.InvalidValue("chat_template_kwargs", "cannot be read: %v", err)
		}
		kwargs, _ = v.(*chattemplate.Dict)
	}
	on, found, err := thinkingSwitch(o)
	if err != nil {
		return false, nil, err
	}
	if !found && hasKw {
		if on, found, err = kw.Bool("enable_thinking"); err != nil {
			return false, nil, err
		}
	}
	if !found {
		on = byDefault
	}
	return on, kwargs, checkBudgets(o)
}

func thinkingSwitch(o reqjson.Object) (on, found bool, err error) {
	th, ok, err := o.Object("thinking")
	if err != nil {
		return false, false, err
	}
	if ok {
		kind, has, err := th.String("type")
		if err != nil {
			return false, false, err
		}
		if has {
			switch kind {
			case "enabled", "adaptive":
				return true, true, nil
			case "disabled":
				return false, true, nil
			}
			return false, false, apierror.InvalidValue("thinking.type", "must be enabled, adaptive or disabled, got %q", kind)
		}
	}
	for _, from := range []string{"reasoning", "", "output_config"} {
		in, name := o, "reasoning_effort"
		if from != "" {
			raw, _, ok := o.Raw(from)
			if !ok || reqjson.Kind(raw) != 'o' {
				continue
			}
			if in, _, err = o.Object(from); err != nil {
				return false, false, err
			}
			name = "effort"
		}
		effort, ok, err := in.String(name)
		if err != nil {
			return false, false, err
		}
		if ok {
			return effort != "none", true, nil
		}
	}
	return o.Bool("enable_thinking")
}

// checkBudgets refuses budgets below 1.
func checkBudgets(o reqjson.Object) error {
	if _, _, err := o.Int(reqjson.AtLeast(1), "thinking_budget"); err != nil {
		return err
	}
	th, ok, err := o.Object("thinking")
	if err != nil || !ok {
		return err
	}
	if _, _, err := th.Int(reqjson.AtLeast(1), "budget_tokens"); err != nil {
		return err
	}
	_, _, err = th.Int(reqjson.AtLeast(0), "reply_budget")
	return err
}
