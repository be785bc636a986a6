package telemetry

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// TestConsoleLines: key=value after the message, quoted where a word would not do, and never a second line.
func TestConsoleLines(t *testing.T) {
	var buf bytes.Buffer
	l, err := NewLogger("info", "console", &buf)
	if err != nil {
		t.Fatal(err)
	}
	l = l.Named("gateway").With(zap.String(KeyWorker, "t1")).Named("http")
	l.Debug("hidden")
	l.Info("request", zap.Int(KeyStatus, 200), zap.Float64(KeyTokenRate, 61.5), zap.Bool("yes", true),
		zap.Duration("took", 1500*time.Millisecond))
	l.Warn("evil\x1b[2J\nmessage", zap.String(KeyReason, "two words\nof \x1b[31mtwo lines"), zap.String("empty", ""),
		zap.NamedError(KeyErr, errors.New(`say "no"`)))
	l.Error("bare")
	lines := strings.Split(strings.TrimSuffix(buf.String(), "\n"), "\n")
	want := []string{
		`info  gateway.http: request  worker=t1 status=200 tokens_per_s=61.5 yes=true took=1.5s`,
		"warn  gateway.http: evil\ufffd[2J\ufffdmessage  worker=t1 " +
			`reason="two words\nof \x1b[31mtwo lines" empty="" err="say \"no\""`,
		`error gateway.http: bare  worker=t1`,
	}
	stamp := regexp.MustCompile(`^\d\d:\d\d:\d\d\.\d\d\d (.*)$`)
	if len(lines) != len(want) {
		t.Fatalf("%q", lines)
	}
	for i, line := range lines {
		if m := stamp.FindStringSubmatch(line); m == nil || m[1] != want[i] {
			t.Errorf("line %d:\n%q, want\n%q", i, line, want[i])
		}
	}
}

// TestConsoleOnATerminal: levels have colours there, unless NO_COLOR is set, and auto is quiet; elsewhere neither
// is so.
func TestConsoleOnATerminal(t *testing.T) {
	end, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no terminals here:", err)
	}
	defer end.Close()
	if err := unix.IoctlSetPointerInt(int(end.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(end.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no terminals here:", err)
	}
	defer tty.Close()
	for noColour, want := range map[string]bool{"": true, "1": false} {
		t.Setenv("NO_COLOR", noColour)
		l, err := NewLogger("info", "console", tty)
		if err != nil {
			t.Fatal(err)
		}
		l.Warn("x")
		out := make([]byte, 200)
		n, err := end.Read(out)
		if err != nil || strings.Contains(string(out[:n]), "\x1b[33mwarn") != want {
			t.Errorf("NO_COLOR=%q: %q, %v", noColour, out[:n], err)
		}
	}
	var buf bytes.Buffer
	t.Setenv("NO_COLOR", "")
	l, _ := NewLogger("info", "console", &buf)
	l.Warn("x")
	if strings.Contains(buf.String(), "\x1b") {
		t.Errorf("colours in a file: %q", buf.String())
	}
	if a, b, c := ChooseLevel(LevelAuto, tty), ChooseLevel(LevelAuto, &buf), ChooseLevel("debug", tty); a != "warn" ||
		b != "info" || c != "debug" {
		t.Errorf("levels %s, %s, %s", a, b, c)
	}
}
