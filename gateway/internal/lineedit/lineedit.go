// Package lineedit reads messages that a person types on a terminal: lines with editing and history, pasted texts as
// one piece, several lines between triple quotes or after a backslash. The editor itself is ergochat/readline; this
// package gives it a terminal, bracketed paste and a private history file.
package lineedit

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"

	"github.com/ergochat/readline"
	"golang.org/x/sys/unix"
)

// ErrInterrupt is returned when Ctrl-C was pressed; what had been typed is dropped.
var ErrInterrupt = errors.New("interrupted")

// Config is what an editor needs.
type Config struct {
	In  *os.File // a terminal
	Out io.Writer
	// Typed is what was read from In before.
	Typed []byte
	// HistoryFile keeps lines between sessions, readable by its owner only; empty keeps none.
	HistoryFile string
	// Warn gets what is wrong with the history file.
	Warn func(error)
}

// Message is what a person has entered.
type Message struct {
	Text string
	// Command: it is one typed line that begins with a slash.
	Command bool
}

// Editor reads from a terminal. Between its calls, the terminal shows nothing of what is typed, which the next call
// then gets, and Ctrl-C is a signal.
type Editor struct {
	rl      *readline.Instance
	pastes  *pasteReader
	history *history
	fd      int
	was     *unix.Termios // the terminal as it was found

	out        io.Writer
	stopResize func()
	closeOnce  sync.Once
}

// New takes over the terminal until Close.
func New(c Config) (*Editor, error) {
	fd := int(c.In.Fd())
	was, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, err
	}
	e := &Editor{fd: fd, was: was, out: c.Out, stopResize: func() {}}
	e.pastes = &pasteReader{in: io.MultiReader(strings.NewReader(string(c.Typed)), c.In)}
	e.rl, err = readline.NewFromConfig(&readline.Config{
		Stdin: e.pastes, Stdout: &answeringWriter{w: c.Out, to: e.pastes}, Stderr: c.Out,
		HistoryLimit: historyLines, DisableAutoSaveHistory: true, HistorySearchFold: true, Undo: true,
		InterruptPrompt: "\n", EOFPrompt: "\n",
		FuncIsTerminal: func() bool { return true },
		// Read does that, once for all lines of a message.
		FuncMakeRaw: func() error { return nil }, FuncExitRaw: func() error { return nil },
		// Ctrl-Z would leave the shell a terminal in this mode.
		FuncFilterInputRune: func(r rune) (rune, bool) { return r, r != readline.CharCtrlZ },
		FuncGetSize: func() (width, height int) {
			size, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ)
			if err != nil || size.Col == 0 {
				return 80, 24
			}
			return int(size.Col), int(size.Row)
		},
		FuncOnWidthChanged: func(changed func()) { e.stopResize = onResize(changed) },
	})
	if err != nil {
		return nil, err
	}
	e.history = openHistory(c.HistoryFile, c.Warn)
	for _, line := range e.history.lines {
		_ = e.rl.SaveToHistory(line) // in memory: it cannot fail
	}
	return e, e.hold()
}

// onResize calls changed when the terminal's size changes, until stop.
func onResize(changed func()) (stop func()) {
	resized, ended := make(chan os.Signal, 1), make(chan struct{})
	var done sync.WaitGroup
	signal.Notify(resized, unix.SIGWINCH)
	done.Go(func() {
		for {
			select {
			case <-resized:
				changed()
			case <-ended:
				return
			}
		}
	})
	return func() {
		signal.Stop(resized)
		close(ended)
		done.Wait()
	}
}

// edit makes the terminal hand over every key, Ctrl-C too, and mark pasted text.
func (e *Editor) edit() error {
	raw := *e.was
	raw.Iflag &^= unix.ICRNL | unix.INLCR | unix.IXON
	raw.Lflag &^= unix.ECHO | unix.ICANON | unix.ISIG | unix.IEXTEN
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 1, 0
	_, _ = io.WriteString(e.out, "\x1b[?2004h")
	return unix.IoctlSetTermios(e.fd, unix.TCSETS, &raw)
}

// hold makes the terminal keep what is typed, unseen, and turn Ctrl-C into a signal.
func (e *Editor) hold() error {
	held := *e.was
	held.Iflag &^= unix.ICRNL | unix.INLCR
	held.Lflag &^= unix.ECHO | unix.ICANON
	held.Cc[unix.VMIN], held.Cc[unix.VTIME] = 1, 0
	_, _ = io.WriteString(e.out, "\x1b[?2004l")
	return unix.IoctlSetTermios(e.fd, unix.TCSETS, &held)
}

// Close gives the terminal back as it was.
func (e *Editor) Close() {
	e.closeOnce.Do(func() {
		_ = e.rl.Close()
		e.stopResize()
		_ = unix.IoctlSetTermios(e.fd, unix.TCSETS, e.was)
	})
}

const (
	fence        = `"""`
	continuation = "... "
)

// Read returns the next message: a line, several that end in a backslash, or those between triple quotes. Pasted
// texts are part of it as they are. It returns io.EOF when the person leaves or ctx ends.
func (e *Editor) Read(ctx context.Context, prompt string) (Message, error) {
	defer context.AfterFunc(ctx, func() { _ = e.rl.Close() })()
	if err := e.edit(); err != nil {
		return Message{}, err
	}
	message, err := e.message(prompt)
	if restoreErr := e.hold(); err == nil {
		err = restoreErr
	}
	return message, err
}

func (e *Editor) message(prompt string) (Message, error) {
	line, err := e.line(prompt)
	if err != nil {
		return Message{}, err
	}
	if strings.HasPrefix(line, "/") {
		return Message{Text: strings.TrimSpace(line), Command: true}, nil
	}
	text := line
	if rest, fenced := strings.CutPrefix(strings.TrimLeft(line, " \t"), fence); fenced {
		text, err = e.fenced(rest)
	} else {
		for err == nil && strings.HasSuffix(text, `\`) {
			line, err = e.line(continuation)
			text = text[:len(text)-1] + "\n" + line
		}
	}
	if err != nil {
		return Message{}, err
	}
	return Message{Text: e.pastes.expand(strings.TrimSpace(text))}, nil
}

// fenced reads up to the closing quotes; text begins after the opening ones.
func (e *Editor) fenced(text string) (string, error) {
	for {
		if before, _, closed := strings.Cut(text, fence); closed {
			return before, nil
		}
		line, err := e.line(continuation)
		if err != nil {
			return "", err
		}
		text += "\n" + line
	}
}

// line reads one line and remembers it.
func (e *Editor) line(prompt string) (string, error) {
	e.rl.SetPrompt(prompt)
	line, err := e.rl.ReadLine()
	if errors.Is(err, readline.ErrInterrupt) {
		return "", ErrInterrupt
	}
	if err != nil {
		return "", io.EOF
	}
	if strings.TrimSpace(line) != "" {
		_ = e.rl.SaveToHistory(line)
		// The mark of a pasted text means something in this session only.
		if e.pastes.expand(line) == line {
			e.history.add(line)
		}
	}
	return line, nil
}

// answeringWriter answers the editor's question where the cursor is, which some terminals never do: a prompt always
// stands at the start of a line here.
type answeringWriter struct {
	w  io.Writer
	to *pasteReader
}

func (a *answeringWriter) Write(p []byte) (int, error) {
	if string(p) == "\x1b[6n" {
		a.to.inject("\x1b[1;1R")
		return len(p), nil
	}
	return a.w.Write(p)
}
