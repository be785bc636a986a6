package cli

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/tandem-inference/tandem/services/testwait"
	"golang.org/x/sys/unix"
)

func hangUp(t *testing.T) {
	t.Helper()
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
}

// TestHangupReloads: SIGHUP makes a server read its files again, any number of times, and go on.
func TestHangupReloads(t *testing.T) {
	e := &env{err: &bytes.Buffer{}}
	defer e.watchSignals()()
	reloaded := make(chan struct{})
	e.onHangup(func() { reloaded <- struct{}{} })
	for range 3 {
		hangUp(t)
		testwait.For(t, reloaded, "the files are read")
	}
	if e.ctx.Err() != nil {
		t.Error("the server ends")
	}
}

// TestHangupEndsOthers: a command without files to read ends in order.
func TestHangupEndsOthers(t *testing.T) {
	e := &env{err: &bytes.Buffer{}}
	defer e.watchSignals()()
	hangUp(t)
	testwait.For(t, e.ctx.Done(), "the end")
}

// terminal opens a terminal; closing its other end hangs it up.
func terminal(t *testing.T) (end, tty *os.File) {
	t.Helper()
	end, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no terminals here:", err)
	}
	if err := unix.IoctlSetPointerInt(int(end.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(end.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Skip("no terminals here:", err)
	}
	t.Cleanup(func() { end.Close(); tty.Close() })
	return end, tty
}

// TestTerminalIsClosed: the SIGHUP of a terminal that was closed ends a server that was started in it; one that
// somebody sends while the terminal is there does not.
func TestTerminalIsClosed(t *testing.T) {
	end, tty := terminal(t)
	e := &env{err: tty}
	defer e.watchSignals()()
	reloaded := make(chan struct{})
	e.onHangup(func() { reloaded <- struct{}{} })
	hangUp(t)
	testwait.For(t, reloaded, "the files are read")
	if e.ctx.Err() != nil {
		t.Error("the server ends")
	}
	end.Close()
	hangUp(t)
	testwait.For(t, e.ctx.Done(), "the end")
}
