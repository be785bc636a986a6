package chat

import (
	"slices"
	"strings"
)

// JoinSystem makes one system message of all that lead the conversation, joined by a blank line. Later ones stay where they are
// if later is set, which says that the template takes them there; else they are joined to the first one too. msgs is not changed.
func JoinSystem(msgs []Message, later bool) []Message {
	var texts []string
	var rest []Message
	for _, m := range msgs {
		if m.Role == RoleSystem && (len(rest) == 0 || !later) {
			if m.Content != "" {
				texts = append(texts, m.Content)
			}
			continue
		}
		rest = append(rest, m)
	}
	if len(texts) == 0 {
		return rest
	}
	return slices.Insert(rest, 0, Message{Role: RoleSystem, Content: strings.Join(texts, "\n\n")})
}
