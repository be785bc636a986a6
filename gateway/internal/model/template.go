package model

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/tandem-inference/tandem/gateway/internal/chat"
	"github.com/tandem-inference/tandem/gateway/internal/chattemplate"
	"github.com/tandem-inference/tandem/gateway/internal/toolcall"
	"github.com/tandem-inference/tandem/services/telemetry"
	"go.uber.org/zap"
)

// Templates of model files that bring none (docs/spec/http-api.md §7.3).
var (
	//go:embed templates/qwen.jinja
	qwenTemplate string
	//go:embed templates/gemma4.jinja
	gemmaTemplate string
	//go:embed templates/laguna.jinja
	lagunaTemplate string
)

// chatML is the template of models of unknown families.
const chatML = `{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\n' }}
{%- endif %}`

// builtIn is the template of a family.
func builtIn(f toolcall.Family) string {
	switch f {
	case toolcall.QwenFamily:
		return qwenTemplate
	case toolcall.GemmaFamily:
		return gemmaTemplate
	case toolcall.LagunaFamily:
		return lagunaTemplate
	}
	return chatML
}

// chooseTemplate takes the configured file, else the model's own template, else the built-in one. A template of the
// model that cannot be compiled, or cannot render a first question, is a warning; one that the operator named is
// an error.
func (m *Model) chooseTemplate(own string, opt Options) error {
	if opt.TemplateFile != "" {
		src, err := os.ReadFile(opt.TemplateFile)
		if err != nil {
			return fmt.Errorf("--chat-template-file: %w", err)
		}
		if len(src) > 0 {
			if err := m.tryTemplate(string(src), "file"); err != nil {
				return fmt.Errorf("--chat-template-file %s: %w", opt.TemplateFile, err)
			}
			return nil
		}
		own = ""
	}
	if own != "" {
		err := m.tryTemplate(own, "model")
		if err == nil {
			return nil
		}
		if opt.Logger != nil {
			opt.Logger.Warn("the model's chat template cannot be used, the built-in one serves",
				zap.NamedError(telemetry.KeyErr, err))
		}
	}
	if err := m.useTemplate(builtIn(m.Family), "built-in"); err != nil {
		return fmt.Errorf("built-in chat template: %w", err)
	}
	return nil
}

// tryTemplate uses a template that renders one user message. One that refuses it by raise_exception may have
// its reasons.
func (m *Model) tryTemplate(src, source string) error {
	if err := m.useTemplate(src, source); err != nil {
		return err
	}
	_, err := m.segments(&chat.Conversation{Messages: []chat.Message{{Role: chat.RoleUser, Content: "A question."}}})
	var te *chattemplate.Error
	if errors.As(err, &te) && !te.Raised {
		return fmt.Errorf("one user message cannot be rendered: %w", err)
	}
	return nil
}

func (m *Model) useTemplate(src, source string) error {
	t, err := chattemplate.Compile(src)
	if err != nil {
		return err
	}
	m.template, m.TemplateSource, m.CallForm = t, source, callForm(src, m.Family)
	return nil
}

// callForm finds the form of calls that a template shows the model.
func callForm(template string, f toolcall.Family) toolcall.Format {
	switch {
	case strings.Contains(template, "<|tool_call>"), f == toolcall.GemmaFamily:
		return toolcall.Gemma
	case strings.Contains(template, "<arg_key>"), f == toolcall.LagunaFamily:
		return toolcall.Laguna
	case strings.Contains(template, "<function="):
		return toolcall.QwenXML
	}
	return toolcall.Hermes
}
