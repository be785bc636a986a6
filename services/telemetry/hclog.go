package telemetry

import (
	"fmt"
	"io"
	"log"
	"strings"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// HCLog returns a logger for go-plugin that writes through l. Levels, names and fields are kept; trace becomes debug.
// The level is l's own: SetLevel does nothing.
func HCLog(l *zap.Logger) hclog.Logger {
	return &hclogAdapter{z: l}
}

// hclogAdapter implements hclog.Logger on a zap logger.
type hclogAdapter struct {
	z       *zap.Logger
	name    string
	implied []any
}

func (a *hclogAdapter) Log(level hclog.Level, msg string, args ...any) {
	lvl, ok := zapLevel(level)
	if !ok {
		return
	}
	if ce := a.z.Check(lvl, msg); ce != nil {
		ce.Write(fields(args)...)
	}
}

func (a *hclogAdapter) Trace(msg string, args ...any) { a.Log(hclog.Trace, msg, args...) }
func (a *hclogAdapter) Debug(msg string, args ...any) { a.Log(hclog.Debug, msg, args...) }
func (a *hclogAdapter) Info(msg string, args ...any)  { a.Log(hclog.Info, msg, args...) }
func (a *hclogAdapter) Warn(msg string, args ...any)  { a.Log(hclog.Warn, msg, args...) }
func (a *hclogAdapter) Error(msg string, args ...any) { a.Log(hclog.Error, msg, args...) }

// IsTrace is always false: zap has no such level.
func (a *hclogAdapter) IsTrace() bool { return false }
func (a *hclogAdapter) IsDebug() bool { return a.z.Core().Enabled(zapcore.DebugLevel) }
func (a *hclogAdapter) IsInfo() bool  { return a.z.Core().Enabled(zapcore.InfoLevel) }
func (a *hclogAdapter) IsWarn() bool  { return a.z.Core().Enabled(zapcore.WarnLevel) }
func (a *hclogAdapter) IsError() bool { return a.z.Core().Enabled(zapcore.ErrorLevel) }

func (a *hclogAdapter) ImpliedArgs() []any { return a.implied }

func (a *hclogAdapter) With(args ...any) hclog.Logger {
	return &hclogAdapter{z: a.z.With(fields(args)...), name: a.name,
		implied: append(append([]any(nil), a.implied...), args...)}
}

func (a *hclogAdapter) Name() string { return a.name }

func (a *hclogAdapter) Named(name string) hclog.Logger {
	full := name
	if a.name != "" {
		full = a.name + "." + name
	}
	return &hclogAdapter{z: a.z.Named(name), name: full, implied: a.implied}
}

// ResetNamed replaces the name in hclog's sense; zap can only append, so the name becomes one more part.
func (a *hclogAdapter) ResetNamed(name string) hclog.Logger {
	return &hclogAdapter{z: a.z.Named(name), name: name, implied: a.implied}
}

// SetLevel does nothing: the level belongs to the logger of the process.
func (a *hclogAdapter) SetLevel(hclog.Level) {}

func (a *hclogAdapter) GetLevel() hclog.Level {
	switch {
	case a.IsDebug():
		return hclog.Debug
	case a.IsInfo():
		return hclog.Info
	case a.IsWarn():
		return hclog.Warn
	}
	return hclog.Error
}

func (a *hclogAdapter) StandardLogger(*hclog.StandardLoggerOptions) *log.Logger {
	return log.New(a.StandardWriter(nil), "", 0)
}

func (a *hclogAdapter) StandardWriter(*hclog.StandardLoggerOptions) io.Writer {
	return lineWriter{a}
}

// lineWriter turns each write into one info line.
type lineWriter struct{ a *hclogAdapter }

func (w lineWriter) Write(p []byte) (int, error) {
	w.a.Info(strings.TrimRight(string(p), "\r\n"))
	return len(p), nil
}

func zapLevel(l hclog.Level) (zapcore.Level, bool) {
	switch l {
	case hclog.Trace, hclog.Debug:
		return zapcore.DebugLevel, true
	case hclog.NoLevel, hclog.Info:
		return zapcore.InfoLevel, true
	case hclog.Warn:
		return zapcore.WarnLevel, true
	case hclog.Error:
		return zapcore.ErrorLevel, true
	}
	return 0, false
}

// fields reads hclog's alternating keys and values. A value without a key gets hclog's own name for that case.
func fields(args []any) []zap.Field {
	out := make([]zap.Field, 0, (len(args)+1)/2)
	for i := 0; i < len(args); i += 2 {
		if i+1 == len(args) {
			out = append(out, zap.Any(hclog.MissingKey, args[i]))
			break
		}
		key, ok := args[i].(string)
		if !ok {
			key = fmt.Sprint(args[i])
		}
		if f, ok := args[i+1].(hclog.Format); ok && len(f) > 0 {
			layout, _ := f[0].(string)
			out = append(out, zap.String(key, fmt.Sprintf(layout, f[1:]...)))
			continue
		}
		out = append(out, zap.Any(key, args[i+1]))
	}
	return out
}
