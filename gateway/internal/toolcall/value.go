package toolcall

import (
	"encoding/json"
	"math"
	"math/big"
	"strconv"
	"strings"
)

// maxIntegerDigits bounds integers that are read as such; longer ones stay text.
const maxIntegerDigits = 400

// appendValue appends the JSON of a parameter's text by the types that its schema allows (docs/spec/http-api.md §10.5):
// each type is tried in a fixed order, and what fits none stays a string. Without types everything but null is
// a string.
func appendValue(dst []byte, text string, k kinds) []byte {
	trimmed := strings.TrimSpace(text)
	if k == 0 {
		k = kindNull | kindString
	}
	for kind := kindInteger; kind < kindString; kind <<= 1 {
		if k&kind == 0 {
			continue
		}
		if out, ok := appendTyped(dst, trimmed, kind); ok {
			return out
		}
	}
	return appendQuoted(dst, text)
}

// appendCut appends the start of the JSON of a parameter's text that was cut off, by the types that its schema allows:
// as much of it as came. What has begun as none of them is a string without its end.
func appendCut(dst []byte, text string, k kinds) []byte {
	trimmed := strings.TrimSpace(text)
	for kind := kindInteger; kind < kindString; kind <<= 1 {
		if k&kind == 0 {
			continue
		}
		if out, ok := appendTyped(dst, trimmed, kind); ok {
			return out
		}
		if kind == kindObject && trimmed[0] == '{' || kind == kindArray && trimmed[0] == '[' {
			if b, ok := startOfJSON(trimmed); ok {
				return append(dst, b...)
			}
		}
	}
	dst = appendQuoted(dst, text)
	return dst[:len(dst)-1]
}

// startOfJSON returns text as the start of a JSON value, false when it is none.
func startOfJSON(text string) ([]byte, bool) {
	var s scanner
	for i := range len(text) {
		if s.push(text[i]) != more {
			return nil, false
		}
	}
	s.cut()
	return s.out, true
}

func appendTyped(dst []byte, text string, kind kinds) ([]byte, bool) {
	switch kind {
	case kindInteger:
		return appendInteger(dst, text)
	case kindNumber:
		if out, ok := appendInteger(dst, text); ok {
			return out, true
		}
		f, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsInf(f, 0) || math.IsNaN(f) || strings.ContainsAny(text, "xX_") {
			return dst, false
		}
		if f == math.Trunc(f) && math.Abs(f) < 1<<53 {
			return strconv.AppendInt(dst, int64(f), 10), true
		}
		return strconv.AppendFloat(dst, f, 'g', -1, 64), true
	case kindBoolean:
		switch strings.ToLower(text) {
		case "true", "1":
			return append(dst, "true"...), true
		case "false", "0":
			return append(dst, "false"...), true
		}
	case kindNull:
		if text == "null" {
			return append(dst, "null"...), true
		}
	case kindObject, kindArray:
		open := byte('{')
		if kind == kindArray {
			open = '['
		}
		if text != "" && text[0] == open && json.Valid([]byte(text)) {
			return append(dst, text...), true
		}
	}
	return dst, false
}

func appendInteger(dst []byte, text string) ([]byte, bool) {
	digits := strings.TrimLeft(text, "+-")
	if len(text)-len(digits) > 1 || digits == "" || len(digits) > maxIntegerDigits ||
		strings.Trim(digits, "0123456789") != "" {
		return dst, false
	}
	n, ok := new(big.Int).SetString(text, 10)
	if !ok {
		return dst, false
	}
	return n.Append(dst, 10), true
}

// appendQuoted appends text as a JSON string.
func appendQuoted(dst []byte, text string) []byte {
	dst = append(dst, '"')
	for i := range len(text) {
		dst = appendEscaped(dst, text[i])
	}
	return append(dst, '"')
}

// appendEscaped appends one byte of a JSON string's inside. Bytes of longer characters pass, so that a text may come
// cut anywhere.
func appendEscaped(dst []byte, c byte) []byte {
	const hex = "0123456789abcdef"
	switch {
	case c == '"' || c == '\\':
		return append(dst, '\\', c)
	case c == '\n':
		return append(dst, '\\', 'n')
	case c == '\r':
		return append(dst, '\\', 'r')
	case c == '\t':
		return append(dst, '\\', 't')
	case c < 0x20:
		return append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
	}
	return append(dst, c)
}
