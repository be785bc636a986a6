package lineedit

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/creack/pty"
	"github.com/tandem-inference/tandem/services/testwait"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// desk is a terminal with an editor on it.
type desk struct {
	t        *testing.T
	keyboard *os.File
	tty      *os.File
	editor   *Editor

	mu     sync.Mutex
	screen bytes.Buffer
}

func newDesk(t *testing.T, historyFile, typed string) *desk {
	t.Helper()
	keyboard, tty, err := pty.Open()
	if err != nil {
		t.Skip("no terminals here:", err)
	}
	d := &desk{t: t, keyboard: keyboard, tty: tty}
	var reader sync.WaitGroup
	reader.Go(func() {
		b := make([]byte, 4096)
		for {
			n, err := keyboard.Read(b)
			d.mu.Lock()
			d.screen.Write(b[:n])
			d.mu.Unlock()
			if err != nil {
				return
			}
		}
	})
	t.Cleanup(func() {
		d.editor.Close()
		_, _ = keyboard.WriteString("\r") // ends a read that is under way
		tty.Close()
		reader.Wait()
		keyboard.Close()
	})
	d.editor, err = New(Config{In: tty, Out: tty, Typed: []byte(typed), HistoryFile: historyFile,
		Warn: func(err error) { t.Error(err) }})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *desk) shown() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.screen.String()
}

type result struct {
	message Message
	err     error
}

func (d *desk) mode() uint32 {
	d.t.Helper()
	now, err := unix.IoctlGetTermios(int(d.tty.Fd()), unix.TCGETS)
	if err != nil {
		d.t.Fatal(err)
	}
	return now.Lflag & (unix.ECHO | unix.ICANON | unix.ISIG)
}

// read types keys at the prompt and returns the message that they make.
func (d *desk) read(keys string) (Message, error) {
	d.t.Helper()
	got := make(chan result, 1)
	go func() {
		m, err := d.editor.Read(context.Background(), "> ")
		got <- result{m, err}
	}()
	if strings.Contains(keys, "\x03") { // before, it would be a signal
		testwait.Until(d.t, "the prompt", func() bool { return d.mode() == 0 })
	}
	if _, err := d.keyboard.WriteString(keys); err != nil {
		d.t.Fatal(err)
	}
	r := testwait.For(d.t, got, "the message of "+keys)
	return r.message, r.err
}

const goFile = "package main\n\nfunc main() {\n\tif a < b {\n\t\tprintln(\"\"\"\\\"\"\"\")\n\t}\n}\n"

func TestMessages(t *testing.T) {
	d := newDesk(t, "", "")
	for name, c := range map[string]struct {
		keys    string
		want    string
		command bool
	}{
		"a line":            {"hello\r", "hello", false},
		"arrows":            {"helo\x1b[D\x1b[Dl\x1b[C\x1b[C!\r", "hello!", false},
		"home, end, delete": {"xbc\x01\x1b[3~a\x05d\r", "abcd", false},
		"wide characters":   {"你好\x1b[D\x7f您\r", "您好", false},
		"a command":         {"  \r", "", false},
		"triple quotes":     {"\"\"\"one\rtwo \\\r\rthree\"\"\"\r", "one\ntwo \\\n\nthree", false},
		"backslash":         {"one \\\rtwo\\\rthree\r", "one \ntwo\nthree", false},
		"slash":             {"/set seed 7\r", "/set seed 7", true},
		"slash, not first":  {" /etc is what?\r", "/etc is what?", false},
		"pasted": {pasteBegin + strings.ReplaceAll(goFile, "\n", "\r") + pasteEnd + "\r",
			strings.TrimSpace(goFile), false},
		"pasted in words": {"What does this do? " + pasteBegin + "a\r\nb" + pasteEnd + " And why?\r",
			"What does this do? a\nb And why?", false},
		"pasted in quotes": {"\"\"\"x\r" + pasteBegin + "a\n\"\"\"\nb" + pasteEnd + "\r\"\"\"\r", "x\na\n\"\"\"\nb", false},
		"pasted slash":     {pasteBegin + "/bye\nnow" + pasteEnd + "\r", "/bye\nnow", false},
		"pasted word":      {"a " + pasteBegin + "b c\n" + pasteEnd + "\r", "a b c", false},
		"pasted keys":      {pasteBegin + "a\x03\x1b[Ab\n\x04c" + pasteEnd + "\r", "a[Ab\nc", false},
	} {
		m, err := d.read(c.keys)
		if err != nil || m.Text != c.want || m.Command != c.command {
			t.Errorf("%s: %+v, %v; want %q", name, m, err, c.want)
		}
	}
	testwait.Until(t, "a paste is shown as such", func() bool { return strings.Contains(d.shown(), ", 7 lines]") })
}

func TestLeaving(t *testing.T) {
	d := newDesk(t, "", "")
	if _, err := d.read("half a li\x03"); err != ErrInterrupt {
		t.Errorf("Ctrl-C: %v", err)
	}
	if _, err := d.read("\"\"\"one\rtwo\x03"); err != ErrInterrupt {
		t.Errorf("Ctrl-C in a block: %v", err)
	}
	if m, err := d.read("next\r"); err != nil || m.Text != "next" {
		t.Errorf("after Ctrl-C: %+v, %v", m, err)
	}
	if _, err := d.read("\x04"); err != io.EOF {
		t.Errorf("Ctrl-D: %v", err)
	}
}

// TestTerminalIsGivenBack: however a session ends, the terminal is as it was.
func TestTerminalIsGivenBack(t *testing.T) {
	d := newDesk(t, "", "")
	if d.mode() != unix.ISIG {
		t.Errorf("between messages: %#x", d.mode())
	}
	ctx, cancel := context.WithCancel(context.Background())
	got := make(chan error, 1)
	go func() {
		_, err := d.editor.Read(ctx, "> ")
		got <- err
	}()
	testwait.Until(t, "keys without the line discipline", func() bool { return d.mode() == 0 })
	cancel()
	if err := testwait.For(t, got, "the end"); err != io.EOF {
		t.Errorf("Read = %v", err)
	}
	d.editor.Close()
	if d.mode() != unix.ECHO|unix.ICANON|unix.ISIG {
		t.Errorf("afterwards: %#x", d.mode())
	}
	testwait.Until(t, "pasted text is not marked any more", func() bool {
		shown := d.shown()
		return strings.LastIndex(shown, "\x1b[?2004h") < strings.LastIndex(shown, "\x1b[?2004l")
	})
}

// TestTypedBefore: what was typed while nobody read is the start of the first line.
func TestTypedBefore(t *testing.T) {
	d := newDesk(t, "", "first\nsec")
	if m, err := d.read(""); err != nil || m.Text != "first" {
		t.Errorf("%+v, %v", m, err)
	}
	if m, err := d.read("ond\r"); err != nil || m.Text != "second" {
		t.Errorf("%+v, %v", m, err)
	}
}

func TestHistoryFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "history")
	d := newDesk(t, path, "")
	for _, keys := range []string{"one\r", pasteBegin + "secret\ntext" + pasteEnd + "\r", "two\r", "/set seed 7\r"} {
		if _, err := d.read(keys); err != nil {
			t.Fatal(err)
		}
	}
	check := func(want string) {
		t.Helper()
		data, err := os.ReadFile(path)
		if err != nil || string(data) != want {
			t.Errorf("%q, %v; want %q", data, err, want)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("permissions %v, %v", info.Mode(), err)
		}
	}
	check("one\ntwo\n/set seed 7\n")
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	d.editor.Close()
	d = newDesk(t, path, "")
	if m, err := d.read("\x1b[A\x1b[A!\r"); err != nil || m.Text != "two!" {
		t.Errorf("arrow up: %+v, %v", m, err)
	}
	check("one\ntwo\n/set seed 7\ntwo!\n")
	if m, err := d.read("\x12one\r"); err != nil || m.Text != "one" {
		t.Errorf("search: %+v, %v", m, err)
	}
}

func TestHistoryIsShortened(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history")
	if err := os.WriteFile(path, []byte(strings.Repeat("old\n", 7)+strings.Repeat("new\n", historyLines)),
		0o644); err != nil {
		t.Fatal(err)
	}
	h := openHistory(path, nil)
	data, err := os.ReadFile(path)
	if err != nil || string(data) != strings.Repeat("new\n", historyLines) || len(h.lines) != historyLines {
		t.Errorf("%d lines, %d bytes, %v", len(h.lines), len(data), err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("permissions %v, %v", info.Mode(), err)
	}
	if left, _ := filepath.Glob(path + ".*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestHistoryThatCannotBeWritten: the session goes on, and says so once.
func TestHistoryThatCannotBeWritten(t *testing.T) {
	var said []string
	h := openHistory(filepath.Join("paste.go", "history"), func(err error) { said = append(said, err.Error()) })
	h.add("one")
	h.add("two")
	if len(said) != 1 || !strings.Contains(said[0], "--history-file: ") {
		t.Errorf("said %q", said)
	}
}

// TestPasteInPieces: marks may be cut anywhere.
func TestPasteInPieces(t *testing.T) {
	keys := "a\x1b[A" + pasteBegin + "x\ny" + pasteEnd + "\x1b[2~b\r"
	r := &pasteReader{in: iotest.OneByteReader(strings.NewReader(keys))}
	got, err := io.ReadAll(r)
	if err != nil || string(got) != "a\x1b[A[pasted text 1, 2 lines]\x1b[2~b\r" {
		t.Errorf("%q, %v", got, err)
	}
	if text := r.expand("[pasted text 1, 2 lines]!"); text != "x\ny!" {
		t.Errorf("%q", text)
	}
}
