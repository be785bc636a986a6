package rig

import (
	"strings"
)

// WithStream asks for a stream; errors before the first event must look the same.
func WithStream(body string) string {
	if strings.HasPrefix(body, "{") && strings.HasSuffix(body, "}") &&
		!strings.Contains(body, `"stream"`) && body != "{}" {
		return strings.TrimSuffix(body, "}") + `,"stream":true}`
	}
	return body
}
