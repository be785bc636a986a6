package telemetry

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"
)

// Names of the accepted log formats.
const (
	FormatJSON    = "json"
	FormatConsole = "console"
	// FormatAuto is console on a terminal and json elsewhere; ChooseFormat decides.
	FormatAuto = "auto"
)

// ChooseFormat returns format, or for auto the one that suits w.
func ChooseFormat(format string, w io.Writer) string {
	if format != FormatAuto {
		return format
	}
	if IsTerminal(w) {
		return FormatConsole
	}
	return FormatJSON
}

// IsTerminal reports whether a stream is a person's terminal.
func IsTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return err == nil
}

// LevelAuto is the level that depends on who reads; see ChooseLevel.
const LevelAuto = "auto"

// ChooseLevel resolves LevelAuto: on a terminal only what somebody should act on, elsewhere what an operator may
// want later.
func ChooseLevel(level string, w io.Writer) string {
	switch {
	case level != LevelAuto:
		return level
	case IsTerminal(w):
		return "warn"
	}
	return "info"
}

// NewLogger builds the one logger of a process. level is debug, info, warn or error (empty = info); format is json
// (empty = json) or console, "text" being another name of console. Levels have colours on a terminal, unless NO_COLOR
// is set. w is written by one goroutine at a time.
func NewLogger(level, format string, w io.Writer) (*zap.Logger, error) {
	log, _, err := NewLeveled(level, format, w)
	return log, err
}

// NewLeveled is NewLogger for a process that may change the level while it runs.
func NewLeveled(level, format string, w io.Writer) (*zap.Logger, zap.AtomicLevel, error) {
	lvl := zap.NewAtomicLevel()
	parsed, err := parseLevel(level)
	if err != nil {
		return nil, lvl, err
	}
	lvl.SetLevel(parsed)
	ec := zapcore.EncoderConfig{
		TimeKey: "time", LevelKey: "level", NameKey: "logger", MessageKey: "msg", StacktraceKey: KeyStack,
		LineEnding:     zapcore.DefaultLineEnding,
		EncodeLevel:    zapcore.LowercaseLevelEncoder,
		EncodeTime:     zapcore.RFC3339NanoTimeEncoder,
		EncodeDuration: zapcore.MillisDurationEncoder,
		EncodeName:     zapcore.FullNameEncoder,
	}
	var enc zapcore.Encoder
	switch strings.ToLower(format) {
	case "", FormatJSON:
		enc = zapcore.NewJSONEncoder(ec)
	case FormatConsole, "text":
		return zap.New(newConsole(lvl, w, IsTerminal(w) && os.Getenv("NO_COLOR") == "")), lvl, nil
	default:
		return nil, lvl, fmt.Errorf("log format %q is not one of json, console", format)
	}
	return zap.New(zapcore.NewCore(enc, zapcore.Lock(zapcore.AddSync(w)), lvl)), lvl, nil
}

// TraceField is the field with the id of ctx's trace, so that a line leads to its trace; nothing where there is none.
func TraceField(ctx context.Context) zap.Field {
	if s := trace.SpanContextFromContext(ctx); s.IsValid() {
		return zap.Stringer(KeyTraceID, s.TraceID())
	}
	return zap.Skip()
}

func parseLevel(level string) (zapcore.Level, error) {
	switch strings.ToLower(level) {
	case "debug":
		return zapcore.DebugLevel, nil
	case "", "info":
		return zapcore.InfoLevel, nil
	case "warn", "warning":
		return zapcore.WarnLevel, nil
	case "error":
		return zapcore.ErrorLevel, nil
	}
	return 0, fmt.Errorf("log level %q is not one of debug, info, warn, error", level)
}
