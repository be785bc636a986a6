package cli

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tandem-inference/tandem/services/testwait"
	"golang.org/x/sys/unix"
)

// topGateway answers what tandem top asks; its target decodes ten tokens between two looks.
func topGateway(t *testing.T) string {
	t.Helper()
	var looks atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Authorization") != "Bearer right":
			w.WriteHeader(http.StatusUnauthorized)
		case r.URL.Path == "/cluster":
			fmt.Fprintf(w, `{"workers":[{"id":"worker-target","role":"target","device":"cpu","state":"ready","lanes":4,
				"counters":{"generated_tokens":%d}}]}`, 10*looks.Add(1))
		case r.URL.Path == "/metrics":
			fmt.Fprint(w, "tandem_queue_depth 3\n")
		}
	}))
	t.Cleanup(server.Close)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	return server.URL
}

func TestTopOnce(t *testing.T) {
	url := topGateway(t)
	code, out, errOut := tandem(t, "", "top", "--server", url, "--api-key", "right", "--once", "--interval", "100ms")
	if code != 0 || !strings.Contains(out, "1 workers") || !strings.Contains(out,
		"\nworker-target  target  cpu     ready") ||
		strings.Contains(out, "\x1b") || strings.Contains(out, " 0.0 tokens/s") {
		t.Errorf("%d %q %q", code, out, errOut)
	}
	if code, _, errOut := tandem(t, "", "top", "--server", url, "--once"); code != 1 || !strings.Contains(errOut,
		"--api-key") {
		t.Errorf("without the key: %d %q", code, errOut)
	}
	if code, _, errOut := tandem(t, "", "top", "--interval", "1ms"); code != 2 || !strings.Contains(errOut,
		"--interval") {
		t.Errorf("interval: %d %q", code, errOut)
	}
}

func TestTopOnATerminal(t *testing.T) {
	url := topGateway(t)
	keyboard, tty := terminal(t)
	if err := unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 20, Col: 50}); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var screen bytes.Buffer
	shown := func() string {
		mu.Lock()
		defer mu.Unlock()
		return screen.String()
	}
	var reader sync.WaitGroup
	reader.Go(func() {
		b := make([]byte, 4096)
		for {
			n, err := keyboard.Read(b)
			mu.Lock()
			screen.Write(b[:n])
			mu.Unlock()
			if err != nil {
				return
			}
		}
	})
	ended := make(chan int, 1)
	go func() {
		ended <- Main([]string{"top", "--server", url, "--api-key", "right", "--interval", "100ms"}, tty, tty, tty)
	}()
	for _, step := range []struct{ key, want string }{{"", "worker-target"}, {"s", "sorts (tokens)"}, {"s",
		"sorts (slots)"},
		{"p", "paused"}} {
		if _, err := keyboard.WriteString(step.key); err != nil {
			t.Fatal(err)
		}
		testwait.Until(t, step.want, func() bool { return strings.Contains(shown(), step.want) })
	}
	if _, err := keyboard.WriteString("q"); err != nil {
		t.Fatal(err)
	}
	if code := testwait.For(t, ended, "the end"); code != 0 {
		t.Errorf("status %d", code)
	}
	now, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
	if err != nil || now.Lflag&unix.ECHO == 0 || now.Lflag&unix.ICANON == 0 {
		t.Errorf("the terminal is not as it was: %+v, %v", now, err)
	}
	testwait.Until(t, "the screen of before", func() bool { return strings.HasSuffix(shown(), "\x1b[?25h\x1b[?1049l") })
	tty.Close()
	reader.Wait()
}
