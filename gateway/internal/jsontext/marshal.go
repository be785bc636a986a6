package jsontext

import (
	"bytes"
	"encoding/json"
)

// Marshal is json.Marshal without the escapes for HTML: answers are full of code and markup, and nobody puts them into
// a page unescaped.
func Marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
