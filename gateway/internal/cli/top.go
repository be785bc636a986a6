package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/top"
	"github.com/tandem-inference/tandem/services/config"
	"golang.org/x/sys/unix"
)

// TopCmd is tandem top.
type TopCmd struct {
	Server   string        `default:"${gateway}" help:"HTTP address of the gateway."`
	APIKey   config.Secret `name:"api-key" placeholder:"KEY" help:"Key for --server."`
	Interval time.Duration `default:"1s" env:"-" help:"Time between two looks."`
	Once     bool          `env:"-" help:"Look for one --interval, print a table and end."`
	Sort     string        `default:"worker" env:"-" enum:"worker,tokens,slots" help:"Order of the workers: worker, tokens (a second), slots (that are busy)."`
	TrustFlags
}

// Validate reports what cannot work.
func (c *TopCmd) Validate() error {
	if c.Interval < 100*time.Millisecond {
		return fmt.Errorf("--interval: must be at least 100ms, got %v", c.Interval)
	}
	return nil
}

// Run shows the table until q or Ctrl-C.
func (c *TopCmd) Run(e *env) error {
	client, err := c.client(c.Server)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	ask := top.Asker(client, baseURL(c.Server), c.APIKey.Reveal())
	look := func() (top.Sample, error) {
		ctx, cancel := context.WithTimeout(e.ctx, 10*time.Second)
		defer cancel()
		return top.Look(ctx, time.Now(), ask)
	}
	before, err := look()
	if err != nil {
		return reached(c.Server, err)
	}
	terminal, ok := e.in.(*os.File)
	if c.Once || !ok || !isTerminal(e.in) || !isTerminal(e.out) {
		select {
		case <-time.After(c.Interval):
		case <-e.ctx.Done():
			return nil
		}
		now, err := look()
		if err != nil {
			return err
		}
		width := 1 << 10
		if isTerminal(e.out) {
			width = terminalWidth(e.out)
		}
		fmt.Fprintln(e.out, strings.Join(top.Lines(before, now, baseURL(c.Server), c.Sort, width), "\n"))
		return nil
	}
	keys, restore, err := readKeys(terminal)
	if err != nil {
		return err
	}
	defer restore()
	// The screen of before comes back at the end.
	fmt.Fprint(e.out, "\x1b[?1049h\x1b[?25l")
	defer fmt.Fprint(e.out, "\x1b[?25h\x1b[?1049l")
	return c.watch(e, look, before, keys)
}

// watch draws the table again after each interval and key.
func (c *TopCmd) watch(e *env, look func() (top.Sample, error), before top.Sample, keys <-chan byte) error {
	ticker := time.NewTicker(c.Interval)
	defer ticker.Stop()
	older, newer, paused, trouble := before, before, false, error(nil)
	for {
		note := "q quits, p pauses, s sorts (" + c.Sort + ")"
		if paused {
			note = "paused; " + note
		}
		if trouble != nil {
			note = trouble.Error()
		}
		width := terminalWidth(e.out)
		lines := append(top.Lines(older, newer, baseURL(c.Server), c.Sort, width), "", note[:min(len(note), width)])
		drawScreen(e.out, lines)
		select {
		case <-e.ctx.Done():
			return nil
		case key, ok := <-keys:
			switch {
			case !ok || key == 'q' || key == 3:
				return nil
			case key == 'p' || key == ' ':
				paused = !paused
			case key == 's':
				c.Sort = top.Orders[(slices.Index(top.Orders, c.Sort)+1)%len(top.Orders)]
			}
		case <-ticker.C:
			if paused {
				continue
			}
			next, err := look()
			// A gateway that restarts comes back; until then the last table stays.
			if trouble = err; err == nil {
				older, newer = newer, next
			}
		}
	}
}

// drawScreen writes lines over what was there.
func drawScreen(w io.Writer, lines []string) {
	fmt.Fprint(w, "\x1b[H"+strings.Join(lines, "\x1b[K\r\n")+"\x1b[K\x1b[J")
}

// readKeys hands out keys as they are pressed, until restore.
func readKeys(terminal *os.File) (_ <-chan byte, restore func(), err error) {
	fd := int(terminal.Fd())
	was, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, nil, err
	}
	raw := *was
	raw.Lflag &^= unix.ECHO | unix.ICANON | unix.ISIG
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 0, 1 // a read ends after a tenth of a second, so that the reader can
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &raw); err != nil {
		return nil, nil, err
	}
	keys, ended := make(chan byte), make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() {
		defer close(keys)
		var b [1]byte
		for {
			n, err := unix.Read(fd, b[:])
			if err != nil && err != unix.EINTR {
				return
			}
			select {
			case <-ended:
				return
			default:
			}
			if n == 0 {
				continue
			}
			select {
			case keys <- b[0]:
			case <-ended:
				return
			}
		}
	})
	return keys, func() {
		close(ended)
		reader.Wait()
		_ = unix.IoctlSetTermios(fd, unix.TCSETS, was)
	}, nil
}
