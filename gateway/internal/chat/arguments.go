package chat

import (
	"strings"

	"github.com/tandem-inference/tandem/gateway/internal/chattemplate"
	"github.com/tandem-inference/tandem/gateway/internal/toolcall"
)

// ParseArguments reads the arguments of a call as clients send them back: text that holds a JSON object becomes that
// object with its keys in order, an object that was cut off (a token limit ended the call) is completed, blank text
// becomes an empty object, other text stays text.
func ParseArguments(text string) chattemplate.Value {
	if strings.TrimSpace(text) == "" {
		return chattemplate.NewDict()
	}
	whole, ok := toolcall.CompleteObject(text)
	if !ok {
		whole = text
	}
	if v, err := chattemplate.FromJSON([]byte(whole)); err == nil {
		if d, ok := v.(*chattemplate.Dict); ok {
			return d
		}
	}
	return chattemplate.Text(text)
}

// LooseAsText returns messages in which calls whose arguments are no object stand in the content, as NAME(ARGUMENTS),
// and whether there are any. msgs is not changed.
func LooseAsText(msgs []Message) (out []Message, found bool) {
	for i := range msgs {
		m := msgs[i]
		var kept []ToolCall
		content := m.Content
		for _, c := range m.ToolCalls {
			text, loose := c.Arguments.(chattemplate.Str)
			if !loose {
				kept = append(kept, c)
				continue
			}
			found = true
			if content != "" {
				content += "\n"
			}
			content += c.Name + "(" + text.String() + ")"
		}
		m.ToolCalls, m.Content = kept, content
		out = append(out, m)
	}
	return out, found
}
