package telemetry

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"go.uber.org/zap/zapcore"
)

// Colours of levels on a terminal, as SGR codes.
var levelColours = map[zapcore.Level]string{zapcore.DebugLevel: "2", zapcore.InfoLevel: "36", zapcore.WarnLevel: "33",
	zapcore.ErrorLevel: "31"}

// console writes log lines for people:
//
//	15:04:05.000 warn  gateway.registry: worker left  worker=worker-draft reason="its connection was lost"
type console struct {
	zapcore.LevelEnabler
	out    *lockedWriter
	colour bool
	fields []zapcore.Field // of With
}

// lockedWriter is shared by a logger and all that were made of it.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func newConsole(level zapcore.LevelEnabler, w io.Writer, colour bool) zapcore.Core {
	return &console{LevelEnabler: level, out: &lockedWriter{w: w}, colour: colour}
}

// With implements zapcore.Core.
func (c *console) With(fields []zapcore.Field) zapcore.Core {
	more := *c
	more.fields = slices.Concat(c.fields, fields)
	return &more
}

// Check implements zapcore.Core.
func (c *console) Check(e zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return checked.AddCore(e, c)
	}
	return checked
}

// Write implements zapcore.Core.
func (c *console) Write(e zapcore.Entry, fields []zapcore.Field) error {
	var b strings.Builder
	b.WriteString(e.Time.Format("15:04:05.000 "))
	level := fmt.Sprintf("%-5s", e.Level)
	if colour := levelColours[e.Level]; c.colour && colour != "" {
		level = "\x1b[" + colour + "m" + level + "\x1b[0m"
	}
	b.WriteString(level + " ")
	if e.LoggerName != "" {
		b.WriteString(e.LoggerName + ": ")
	}
	b.WriteString(printable(e.Message))
	for i, f := range slices.Concat(c.fields, fields) {
		if i == 0 {
			b.WriteByte(' ')
		}
		writeField(&b, f)
	}
	b.WriteByte('\n')
	if e.Stack != "" {
		b.WriteString(e.Stack + "\n")
	}
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	_, err := io.WriteString(c.out.w, b.String())
	return err
}

// Sync implements zapcore.Core; lines are written at once.
func (c *console) Sync() error { return nil }

// writeField appends " key=value", or several pairs for a field that holds several.
func writeField(b *strings.Builder, f zapcore.Field) {
	values := zapcore.NewMapObjectEncoder()
	f.AddTo(values)
	keys := make([]string, 0, len(values.Fields))
	for k := range values.Fields {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, cmp.Compare[string])
	for _, k := range keys {
		b.WriteString(" " + k + "=" + fieldText(values.Fields[k]))
	}
}

// fieldText is a value in one word, or quoted.
func fieldText(v any) string {
	var s string
	switch v := v.(type) {
	case string:
		s = v
	case []byte:
		s = string(v)
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	case time.Duration:
		return v.String()
	case time.Time:
		return v.Format(time.RFC3339)
	case map[string]any, []any:
		if text, err := json.Marshal(v); err == nil {
			s = string(text)
		}
	default:
		s = fmt.Sprint(v)
	}
	if s == "" || strings.ContainsFunc(s,
		func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) || r == '"' || r == '=' }) {
		return strconv.Quote(s)
	}
	return s
}

// printable keeps a message in its line.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r != ' ' && !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, s)
}
