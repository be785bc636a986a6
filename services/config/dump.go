package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/alecthomas/kong"
)

// Dump writes the resolved flags of the chosen command as one JSON object in the order of --help.
func Dump(ctx *kong.Context, w io.Writer) error {
	var buf bytes.Buffer
	buf.WriteByte('{')
	first := true
	for _, flag := range ctx.Flags() {
		if slices.Contains(ownFlags, flag.Name) {
			continue
		}
		value := flag.Target.Interface()
		switch v := value.(type) {
		case time.Duration:
			value = v.String()
		}
		text, err := json.Marshal(value)
		if err != nil {
			return fmt.Errorf("dump of --%s: %w", flag.Name, err)
		}
		if !first {
			buf.WriteByte(',')
		}
		first = false
		fmt.Fprintf(&buf, "%q:%s", flag.Name, text)
	}
	buf.WriteByte('}')
	var out bytes.Buffer
	if err := json.Indent(&out, buf.Bytes(), "", "  "); err != nil {
		return err
	}
	out.WriteByte('\n')
	_, err := out.WriteTo(w)
	return err
}
