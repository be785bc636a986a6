package lineedit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/tandem-inference/tandem/services/wholefile"
)

// historyLines is how many lines are kept.
const historyLines = 1000

// history is the file of earlier lines. Questions are private: only the owner may read it.
type history struct {
	path  string
	lines []string // of earlier sessions
	warn  func(error)
}

func openHistory(path string, warn func(error)) *history {
	h := &history{path: path, warn: warn}
	if path == "" {
		return h
	}
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		h.fail(err)
		return h
	}
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimRight(line, "\n"); line != "" {
			h.lines = append(h.lines, line)
		}
	}
	if len(h.lines) > historyLines {
		h.lines = h.lines[len(h.lines)-historyLines:]
		if err := h.shorten(); err != nil {
			h.fail(err)
		}
	}
	return h
}

// fail says once what is wrong; the session goes on without the file.
func (h *history) fail(err error) {
	h.path = ""
	if h.warn != nil {
		h.warn(fmt.Errorf("--history-file: %w", err))
	}
}

// shorten writes the file again without the oldest lines.
func (h *history) shorten() error {
	return wholefile.Write(h.path, []byte(strings.Join(h.lines, "\n")+"\n"))
}

// add appends a line. Sessions that run at the same time append to the same file.
func (h *history) add(line string) {
	if h.path == "" {
		return
	}
	if err := h.append(line); err != nil {
		h.fail(err)
	}
}

func (h *history) append(line string) error {
	if err := os.MkdirAll(filepath.Dir(h.path), 0o700); err != nil {
		return err
	}
	file, err := os.OpenFile(h.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	err = file.Chmod(0o600) // it may have been there with other permissions
	_, writeErr := file.WriteString(line + "\n")
	return errors.Join(err, writeErr, file.Close())
}
