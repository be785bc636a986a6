package cli

import (
	"os"

	"github.com/tandem-inference/tandem/services/telemetry"
	"golang.org/x/sys/unix"
)

// isTerminal says whether a stream of ours is a person's terminal.
func isTerminal(stream any) bool {
	return telemetry.IsTerminal(stream)
}

// heldEcho is a terminal that does not show what is typed.
type heldEcho struct {
	fd   int
	was  *unix.Termios
	text []byte
}

// holdEcho keeps a terminal from showing what is typed until release. It does nothing when wanted is false or in is
// no terminal.
func holdEcho(in any, wanted bool) *heldEcho {
	h := &heldEcho{}
	file, ok := in.(*os.File)
	if !ok || !wanted {
		return h
	}
	was, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	if err != nil {
		return h
	}
	silent := *was
	silent.Lflag &^= unix.ECHO
	if unix.IoctlSetTermios(int(file.Fd()), unix.TCSETS, &silent) == nil {
		h.fd, h.was = int(file.Fd()), was
	}
	return h
}

// release shows again what is typed and returns what was typed meanwhile, the unfinished line too. Further calls return
// the same.
func (h *heldEcho) release() []byte {
	if h.was == nil {
		return h.text
	}
	// Without the line discipline a read returns what there is, at once.
	raw := *h.was
	raw.Lflag &^= unix.ECHO | unix.ICANON
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 0, 0
	if unix.IoctlSetTermios(h.fd, unix.TCSETS, &raw) == nil {
		var b [4096]byte
		for {
			n, err := unix.Read(h.fd, b[:])
			if n <= 0 || err != nil {
				break
			}
			h.text = append(h.text, b[:n]...)
		}
	}
	_ = unix.IoctlSetTermios(h.fd, unix.TCSETS, h.was)
	h.was = nil
	return h.text
}

// terminalWidth is the number of columns, 80 when it is not known.
func terminalWidth(stream any) int {
	if file, ok := stream.(*os.File); ok {
		if size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 0 {
			return int(size.Col)
		}
	}
	return 80
}
