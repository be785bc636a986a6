package toolcall

import (
	"encoding/json"
	"strings"
	"sync"
)

// maxRefs bounds the chain of $ref that is followed.
const maxRefs = 32

// schema answers questions about the JSON schema of a tool's arguments. The zero schema knows nothing. It is read when
// it is first asked: most requests call few of their tools, and read, a schema takes many times its text.
type schema struct {
	text json.RawMessage
	once sync.Once
	tree any
}

func newSchema(raw json.RawMessage) *schema { return &schema{text: raw} }

// root is the schema itself.
func (s *schema) root() any {
	s.once.Do(func() {
		if s.text != nil {
			// What cannot be read has no types; the definition itself was checked before.
			_ = json.Unmarshal(s.text, &s.tree)
		}
	})
	return s.tree
}

// kinds is a set of JSON types.
type kinds uint8

const (
	kindInteger kinds = 1 << iota
	kindNumber
	kindBoolean
	kindNull
	kindObject
	kindArray
	kindString
)

var kindNames = map[string]kinds{
	"integer": kindInteger, "number": kindNumber, "boolean": kindBoolean, "null": kindNull, "object": kindObject,
	"array": kindArray, "string": kindString,
}

// of returns the types that parameter key may have; 0 = unknown.
func (s *schema) of(key string) kinds {
	obj, _ := s.resolve(s.root()).(map[string]any)
	props, _ := s.resolve(obj["properties"]).(map[string]any)
	p, ok := props[key]
	if !ok {
		return 0
	}
	return s.types(p, 0)
}

func (s *schema) types(node any, depth int) kinds {
	obj, ok := s.resolve(node).(map[string]any)
	if !ok || depth > maxRefs {
		return 0
	}
	var out kinds
	switch t := obj["type"].(type) {
	case string:
		out |= kindNames[t]
	case []any:
		for _, e := range t {
			if name, ok := e.(string); ok {
				out |= kindNames[name]
			}
		}
	}
	if out != 0 {
		return out
	}
	for _, key := range []string{"anyOf", "oneOf", "allOf"} {
		list, _ := obj[key].([]any)
		for _, e := range list {
			out |= s.types(e, depth+1)
		}
	}
	if list, ok := obj["enum"].([]any); ok {
		for _, e := range list {
			out |= kindOf(e)
		}
	}
	if c, ok := obj["const"]; ok {
		out |= kindOf(c)
	}
	return out
}

func kindOf(v any) kinds {
	switch x := v.(type) {
	case string:
		return kindString
	case bool:
		return kindBoolean
	case nil:
		return kindNull
	case float64:
		if x == float64(int64(x)) {
			return kindInteger
		}
		return kindNumber
	case map[string]any:
		return kindObject
	}
	return kindArray
}

// resolve follows local references.
func (s *schema) resolve(node any) any {
	for range maxRefs {
		obj, ok := node.(map[string]any)
		if !ok {
			return node
		}
		ref, ok := obj["$ref"].(string)
		if !ok {
			return node
		}
		path, ok := strings.CutPrefix(ref, "#")
		if !ok {
			return nil
		}
		node = s.root()
		for _, part := range strings.Split(strings.TrimPrefix(path, "/"), "/") {
			part = strings.ReplaceAll(strings.ReplaceAll(part, "~1", "/"), "~0", "~")
			m, ok := node.(map[string]any)
			if !ok {
				return nil
			}
			node = m[part]
		}
	}
	return nil
}
