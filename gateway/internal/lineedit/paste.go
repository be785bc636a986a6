package lineedit

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync"
	"unicode"
)

const (
	pasteBegin = "\x1b[200~"
	pasteEnd   = "\x1b[201~"
	// longPaste is the number of characters from which a pasted line becomes a mark: the editor draws the line again
	// for each of them.
	longPaste = 400
)

// pasteReader hands typed keys on. What is pasted between the marks of bracketed paste goes on as one short mark in
// square brackets when it has several lines, so that it is neither sent line by line nor taken for keys.
type pasteReader struct {
	in io.Reader

	mu       sync.Mutex // guards the rest
	ready    []byte     // to be handed on
	held     []byte     // read, but not understood yet
	inPaste  bool
	replaced []string // marks and texts in turn, as strings.NewReplacer takes them
}

func (r *pasteReader) inject(keys string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ready = append(r.ready, keys...)
}

// expand puts pasted texts where their marks stand.
func (r *pasteReader) expand(text string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.NewReplacer(r.replaced...).Replace(text)
}

func (r *pasteReader) Read(p []byte) (int, error) {
	var b [4096]byte
	for {
		r.mu.Lock()
		n := copy(p, r.ready)
		r.ready = r.ready[n:]
		r.mu.Unlock()
		if n > 0 {
			return n, nil
		}
		n, err := r.in.Read(b[:])
		r.mu.Lock()
		r.held = append(r.held, b[:n]...)
		r.sort()
		r.mu.Unlock()
		if n == 0 && err != nil {
			return 0, err
		}
	}
}

// sort moves what is understood of held to ready.
func (r *pasteReader) sort() {
	for {
		mark := pasteBegin
		if r.inPaste {
			mark = pasteEnd
		}
		before, after, found := bytes.Cut(r.held, []byte(mark))
		switch {
		case found && r.inPaste:
			r.ready = append(r.ready, r.pasted(string(before))...)
		case found:
			r.ready = append(r.ready, before...)
		case r.inPaste:
			return
		default:
			// The start of a mark may be all that has come so far.
			keep := len(r.held)
			for n := min(len(mark)-1, len(r.held)); n > 0; n-- {
				if strings.HasPrefix(mark, string(r.held[len(r.held)-n:])) {
					keep = len(r.held) - n
					break
				}
			}
			r.ready = append(r.ready, r.held[:keep]...)
			r.held = append([]byte(nil), r.held[keep:]...)
			return
		}
		r.held = append([]byte(nil), after...)
		r.inPaste = !r.inPaste
	}
}

// pasted is what the editor gets in place of text.
func (r *pasteReader) pasted(text string) string {
	text = strings.ToValidUTF8(strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(text), "\uFFFD")
	text = strings.Map(func(c rune) rune {
		if unicode.IsControl(c) && c != '\n' && c != '\t' {
			return -1
		}
		return c
	}, text)
	line := strings.TrimSuffix(text, "\n")
	if !strings.ContainsAny(line, "\n\t") && len(line) < longPaste {
		return line
	}
	lines := strings.Count(line, "\n") + 1
	plural := "s"
	if lines == 1 {
		plural = ""
	}
	mark := fmt.Sprintf("[pasted text %d, %d line%s]", len(r.replaced)/2+1, lines, plural)
	r.replaced = append(r.replaced, mark, line)
	return mark
}
