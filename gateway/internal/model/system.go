package model

import (
	"strings"

	"github.com/tandem-inference/tandem/gateway/internal/chat"
)

// laterSystem tries whether the template shows a system message that stands after a user's: many refuse it, some leave
// it out.
func (m *Model) laterSystem() bool {
	const first, later = "The first rule.", "The later rule."
	r, err := m.Render(&chat.Conversation{Messages: []chat.Message{
		{Role: chat.RoleSystem, Content: first}, {Role: chat.RoleUser, Content: "A question."},
		{Role: chat.RoleAssistant, Content: "An answer."}, {Role: chat.RoleSystem, Content: later},
		{Role: chat.RoleUser, Content: "Another."},
	}})
	if err != nil {
		return false
	}
	text := r.Text()
	return strings.Count(text, later) == 1 && strings.Index(text, later) > strings.Index(text, "An answer.") &&
		strings.Contains(text, first)
}
