package model

import (
	"slices"
	"strings"

	"github.com/tandem-inference/tandem/gateway/internal/emit"
	"github.com/tandem-inference/tandem/gateway/internal/toolcall"
	"github.com/tandem-inference/tandem/services/tokenizer"
)

// familyOf an architecture.
func familyOf(arch string) toolcall.Family {
	switch {
	case strings.HasPrefix(arch, "qwen"):
		return toolcall.QwenFamily
	case strings.HasPrefix(arch, "gemma"):
		return toolcall.GemmaFamily
	case strings.HasPrefix(arch, "laguna"):
		return toolcall.LagunaFamily
	}
	return toolcall.Generic
}

// useFamily finds the tokens with a meaning in the family's output: markers of reasoning, markup of calls, ends of
// turns (docs/spec/http-api.md §7.3).
func (m *Model) useFamily() {
	tok := m.Tokenizer
	m.ThinkOpen, m.ThinkClose, m.Stops = marker(tok, "<think>"), marker(tok, "</think>"), slices.Clone(tok.StopTokens())
	m.addMarkup(toolcall.DeepSeekMarks) // its distillations are of other families
	end := ""
	switch m.Family {
	case toolcall.GemmaFamily:
		m.ThinkOpen, m.ThinkClose, m.ThinkLabel = marker(tok, "<|channel>"), marker(tok, "<channel|>"), "thought"
		m.addMarkup(toolcall.GemmaMarks)
		end = "<turn|>"
	case toolcall.LagunaFamily:
		end = "</assistant>"
	}
	if id := marker(tok, end); id != emit.None && !slices.Contains(m.Stops, id) {
		m.Stops = append(m.Stops, id)
	}
}

// addMarkup notes the marks of calls that are tokens of their own.
func (m *Model) addMarkup(marks []string) {
	for _, text := range marks {
		if id := marker(m.Tokenizer, text); id != emit.None {
			m.Markup = append(m.Markup, id)
		}
	}
}

// marker finds a token that is a mark, not a piece of text.
func marker(tok *tokenizer.Tokenizer, text string) int32 {
	id, ok := tok.ID(text)
	if !ok || tok.TokenKind(id) == tokenizer.KindNormal {
		return emit.None
	}
	return id
}

// EndsInThinking reports whether a prompt ends with the open marker, whitespace aside.
func (m *Model) EndsInThinking(tokens []int32) bool {
	at := m.lastOpen(tokens)
	if at < 0 {
		return false
	}
	rest := strings.TrimSpace(m.Tokenizer.Decode(tokens[at+1:], true))
	return rest == "" || rest == m.ThinkLabel
}

// OpenedThinking is the end of a prompt that ends in thinking, from the open marker on.
func (m *Model) OpenedThinking(tokens []int32) string {
	at := m.lastOpen(tokens)
	if at < 0 {
		return ""
	}
	return string(m.Tokenizer.TokenBytes(m.ThinkOpen)) + m.Tokenizer.Decode(tokens[at+1:], true)
}

// lastOpen finds the open marker at the end of a prompt, -1 = there is none.
func (m *Model) lastOpen(tokens []int32) int {
	if m.ThinkOpen == emit.None {
		return -1
	}
	at := len(tokens) - 1
	for at >= 0 && tokens[at] != m.ThinkOpen && len(tokens)-at < maxTail {
		at--
	}
	if at < 0 || tokens[at] != m.ThinkOpen {
		return -1
	}
	return at
}

// maxTail is how many tokens a label and whitespace may take after the open marker.
const maxTail = 16
