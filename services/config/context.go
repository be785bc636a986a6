package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Context is a length of context in tokens. 0, written auto, leaves it to the engine: the model's own, as far as memory
// allows.
type Context int32

const auto = "auto"

// UnmarshalText reads a context for kong and for JSON.
func (c *Context) UnmarshalText(text []byte) error {
	s := strings.TrimSpace(string(text))
	if strings.EqualFold(s, auto) {
		*c = 0
		return nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt32 {
		return fmt.Errorf("must be auto or a number of tokens >= 0, got %q", s)
	}
	*c = Context(n)
	return nil
}

// MarshalText writes the context as String does.
func (c Context) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// String writes auto or the number of tokens.
func (c Context) String() string {
	if c == 0 {
		return auto
	}
	return strconv.Itoa(int(c))
}
