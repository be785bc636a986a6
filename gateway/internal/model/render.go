package model

import (
	"strings"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/chat"
	"github.com/tandem-inference/tandem/gateway/internal/chattemplate"
	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	"github.com/tandem-inference/tandem/services/tokenizer"
)

// Rendered is a prompt.
type Rendered struct {
	Segments []tokenizer.Segment
	Tokens   []int32
	// Thinking says that the prompt ends with the open marker: the output begins in reasoning.
	Thinking bool
	Rendering
}

// Rendering is the time that a prompt took.
type Rendering struct {
	Began              time.Time
	Template, Tokenize time.Duration
}

// Text is the prompt as text.
func (r *Rendered) Text() string {
	var b strings.Builder
	for _, s := range r.Segments {
		b.WriteString(s.Text)
	}
	return b.String()
}

// Render runs the chat template and tokenises its output: the template's own text with control tokens, the messages'
// text without. An assistant text at the end is continued: the turn before it is rendered up to the place where the
// answer starts, with thinking off, and the text follows. Errors are *chattemplate.Error.
func (m *Model) Render(c *chat.Conversation) (*Rendered, error) { return m.RenderWithin(c, 0) }

// RenderWithin is Render for a prompt of which at most limit tokens can be used, 0 = no limit. One that is certainly
// longer is refused before it is tokenised, with an rpcerr.ContextLength.
func (m *Model) RenderWithin(c *chat.Conversation, limit int) (*Rendered, error) {
	began := time.Now()
	segs, err := m.segments(c)
	if err != nil {
		return nil, err
	}
	if limit > 0 {
		texts := make([]string, len(segs))
		for i, s := range segs {
			texts[i] = s.Text
		}
		if least := m.Tokenizer.MinTokens(texts...); least > limit {
			return nil, reqerr.ContextLengthAtLeast(least, limit)
		}
	}
	took := time.Since(began)
	r := &Rendered{Segments: segs, Tokens: m.Tokenizer.EncodeSegments(segs)}
	r.Thinking = m.EndsInThinking(r.Tokens)
	r.Rendering = Rendering{Began: began, Template: took, Tokenize: time.Since(began) - took}
	return r, nil
}

// segments is the prompt as text. Calls of earlier turns whose arguments are no object reach the template as text; when
// it cannot take that, they are rendered as a part of the message's text, so that one such call does not end
// the conversation.
func (m *Model) segments(c *chat.Conversation) ([]tokenizer.Segment, error) {
	vars := chattemplate.NewDict()
	vars.Set("bos_token", chattemplate.Trusted(m.bos))
	vars.Set("eos_token", chattemplate.Trusted(m.eos))
	vars.Set("add_generation_prompt", true)
	if c.Kwargs != nil {
		for _, k := range c.Kwargs.Keys() {
			v, _ := c.Kwargs.Get(k)
			if _, own := vars.Get(k); own && v == nil {
				continue // null = not given
			}
			vars.Set(k, v)
		}
	}
	opens, _ := vars.Get("add_generation_prompt")
	msgs, prefill, thinking := c.Messages, "", c.Thinking
	if c.Prefill() && opens != false {
		last := msgs[len(msgs)-1]
		msgs, prefill, thinking = msgs[:len(msgs)-1], last.Content, false
	}
	if c.Tools != nil && c.Tools.Len() > 0 {
		vars.Set("tools", c.Tools)
	} else {
		vars.Set("tools", nil)
	}
	vars.Set("enable_thinking", thinking)
	vars.Set("messages", chat.TemplateMessages(msgs))
	segs, err := m.template.RenderSegments(vars)
	if err != nil {
		asText, found := chat.LooseAsText(msgs)
		if !found {
			return nil, err
		}
		vars.Set("messages", chat.TemplateMessages(asText))
		var again error
		if segs, again = m.template.RenderSegments(vars); again != nil {
			return nil, err
		}
	}
	if prefill != "" {
		segs = append(segs, tokenizer.Segment{Text: prefill})
	}
	return segs, nil
}
