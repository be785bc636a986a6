package chat

import (
	"strings"

	"github.com/tandem-inference/tandem/services/chattemplate"
)

// ParseArguments reads the arguments of a call as clients send them back: text that holds a JSON object becomes that object
// with its keys in order, blank text an empty one, other text stays text.
func ParseArguments(text string) chattemplate.Value {
	if strings.TrimSpace(text) == "" {
		return chattemplate.NewDict()
	}
	if v, err := chattemplate.FromJSON([]byte(text)); err == nil {
		if d, ok := v.(*chattemplate.Dict); ok {
			return d
		}
	}
	return chattemplate.Text(text)
}
