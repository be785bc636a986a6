package gguf

import (
	"errors"
	"fmt"
)

// ErrInvalid is what every complaint about the content of a file matches with errors.Is.
var ErrInvalid = errors.New("invalid GGUF file")

// FormatError says what is wrong with a file and where.
type FormatError struct {
	Path  string // file, empty for data in memory
	Field string // header field, metadata key or tensor name
	Msg   string // what is wrong, with the numbers
}

// Error gives "path: field: message".
func (e *FormatError) Error() string {
	s := e.Msg
	if e.Field != "" {
		s = e.Field + ": " + s
	}
	if e.Path != "" {
		s = e.Path + ": " + s
	}
	return "gguf: " + s
}

// Is makes every FormatError match ErrInvalid.
func (e *FormatError) Is(target error) bool { return target == ErrInvalid }

func invalid(field, format string, args ...any) *FormatError {
	return &FormatError{Field: field, Msg: fmt.Sprintf(format, args...)}
}
