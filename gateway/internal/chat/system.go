package chat

import (
	"slices"
	"strings"
)

// JoinSystem makes one system message of all that lead the conversation, joined by a blank line. Later ones stay where
// they are if later is set, which says that the template takes them there; else they are joined to the first one too. A
// single one that leads stays as it is, empty or named. msgs is not changed.
func JoinSystem(msgs []Message, later bool) []Message {
	lead, join := 0, 0
	for i, m := range msgs {
		if m.Role != RoleSystem {
			continue
		}
		if lead == i {
			lead++
		}
		if lead > i || !later {
			join++
		}
	}
	if join == 0 || join == 1 && lead == 1 {
		return msgs
	}
	var texts []string
	var rest []Message
	for i, m := range msgs {
		switch {
		case m.Role != RoleSystem || later && i >= lead:
			rest = append(rest, m)
		case m.Content != "":
			texts = append(texts, m.Content)
		}
	}
	if len(texts) == 0 {
		return rest
	}
	return slices.Insert(rest, 0, Message{Role: RoleSystem, Content: strings.Join(texts, "\n\n")})
}
