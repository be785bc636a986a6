// Package wirecheck judges streamed answers: framing of the events, the grammar of each dialect (docs/spec/http-api.md
// §11.4, §13.4, §14.3), and that the deltas spell what the closing events say. Each checker returns the answer put
// together from its events, for comparison with the answer in one piece.
package wirecheck

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// Event is one server-sent event.
type Event struct {
	// Name is the event: line, empty without one.
	Name string
	// Raw is the data line; Data is its object, nil when the line is no JSON object.
	Raw  string
	Data map[string]any
}

// Parse splits a body into events: an optional event: line, one data: line, a blank line, and nothing else.
func Parse(body []byte) ([]Event, error) {
	var out []Event
	if len(body) > 0 && !bytes.HasSuffix(body, []byte("\n\n")) {
		return nil, fmt.Errorf("the stream does not end with a blank line: %q", tail(body))
	}
	for i, block := range strings.Split(strings.TrimSuffix(string(body), "\n\n"), "\n\n") {
		if block == "" && len(body) == 0 {
			break
		}
		var e Event
		rest := block
		if name, after, ok := strings.Cut(block, "\n"); ok {
			if e.Name, ok = strings.CutPrefix(name, "event: "); !ok || e.Name == "" {
				return nil, fmt.Errorf("event %d begins with %q, want an event: line", i, name)
			}
			rest = after
		}
		data, ok := strings.CutPrefix(rest, "data: ")
		if !ok || strings.ContainsAny(data, "\r\n") {
			return nil, fmt.Errorf("event %d has %q, want one data: line", i, rest)
		}
		e.Raw = data
		if data != "[DONE]" {
			if err := json.Unmarshal([]byte(data), &e.Data); err != nil {
				return nil, fmt.Errorf("event %d: %q: %w", i, data, err)
			}
		}
		out = append(out, e)
	}
	return out, nil
}

func tail(b []byte) []byte { return b[max(0, len(b)-80):] }

// obj, list, str, num and has read members of decoded JSON; a member of another type counts as absent.
func obj(v any, key string) map[string]any {
	m, _ := v.(map[string]any)
	o, _ := m[key].(map[string]any)
	return o
}

func list(v any, key string) []any {
	m, _ := v.(map[string]any)
	l, _ := m[key].([]any)
	return l
}

func str(v any, key string) string {
	m, _ := v.(map[string]any)
	s, _ := m[key].(string)
	return s
}

// num is -1 when there is no number.
func num(v any, key string) int {
	m, _ := v.(map[string]any)
	if f, ok := m[key].(float64); ok {
		return int(f)
	}
	return -1
}

func has(v any, keys ...string) error {
	m, ok := v.(map[string]any)
	if !ok {
		return fmt.Errorf("%v is no object", v)
	}
	for _, k := range keys {
		if _, ok := m[k]; !ok {
			return fmt.Errorf("%q is missing in %v", k, m)
		}
	}
	return nil
}

// complete reports whether text is a JSON object.
func complete(text string) bool {
	var v map[string]json.RawMessage
	return json.Unmarshal([]byte(text), &v) == nil && v != nil
}
