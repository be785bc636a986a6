package cli

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-inference/tandem/services/testwait"
)

// local starts a server where tandem run looks for one. It counts the questions that it gets.
func local(t *testing.T, props string, live int) (asked *int) {
	t.Helper()
	asked = new(int)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/health/live":
			w.WriteHeader(live)
		case "/v1/models":
			fmt.Fprint(w, "{}")
		case "/props":
			if props == "locked" && r.Header.Get("Authorization") != "Bearer right" {
				w.WriteHeader(http.StatusUnauthorized)
				fmt.Fprint(w, `{"error":{"code":"invalid_api_key"}}`)
				return
			}
			if props == "locked" {
				fmt.Fprint(w, tinyProps)
				return
			}
			fmt.Fprint(w, props)
		case "/v1/chat/completions":
			*asked++
			for _, e := range chatEvents {
				fmt.Fprintf(w, "data: %s\n\n", e)
			}
		}
	}))
	t.Cleanup(server.Close)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("TANDEM_PORT", u.Port())
	return asked
}

const tinyProps = `{"server":{"name":"tandem"},"model_alias":"tiny","model_path":"tiny.gguf"}`

func TestRunAsksTheServerOfThisMachineFirst(t *testing.T) {
	for name, c := range map[string]struct {
		props string
		live  int
		args  []string
		asked int
		says  string
	}{
		"no model given":    {tinyProps, 200, []string{"hi"}, 1, "asking the server at http://127.0.0.1:"},
		"its model":         {tinyProps, 200, []string{"dir/tiny.gguf", "hi"}, 1, "(tiny)"},
		"a draft beside it": {tinyProps, 200, []string{"dir/tiny.gguf", "--draft", "d.gguf", "hi"}, 1, "(tiny)"},
		"quiet":             {tinyProps, 200, []string{"-q", "hi"}, 1, ""},
		"another model":     {tinyProps, 200, []string{"other.gguf", "hi"}, 0, "serves tiny: loading other.gguf beside it"},
		"another, quiet": {tinyProps, 200, []string{"-q", "other.gguf", "hi"}, 0,
			"serves tiny: loading other.gguf beside it"},
		"flags of an engine": {tinyProps, 200, []string{"dir/tiny.gguf", "--threads", "3", "hi"}, 0,
			"--threads: not for the server at"},
		"none": {tinyProps, 200, []string{"--server", "none", "other.gguf", "hi"}, 0, ""},
		"no gateway of ours": {`{"default_generation_settings":{}}`, 404, []string{"other.gguf", "hi"}, 0,
			"no server at http://127.0.0.1:"},
		"other props": {`{"model_path":"other.gguf"}`, 200, []string{"other.gguf", "hi"}, 0,
			"no server at http://127.0.0.1:"},
		"locked":       {"locked", 200, []string{"hi"}, 0, "asks for a key: give --api-key"},
		"with its key": {"locked", 200, []string{"--api-key", "right", "hi"}, 1, "asking the server"},
	} {
		t.Run(name, func(t *testing.T) {
			asked := local(t, c.props, c.live)
			code, out, errOut := tandem(t, "", append([]string{"run"}, c.args...)...)
			if *asked != c.asked || (code == 0) != (c.asked == 1) || c.asked == 1 && !strings.HasSuffix(out, "Hello you\n") {
				t.Errorf("status %d, asked %d times, %q %q", code, *asked, out, errOut)
			}
			if !strings.Contains(errOut, c.says) || c.says == "" && strings.Contains(errOut, "server") {
				t.Errorf("stderr %q, want %q", errOut, c.says)
			}
			if c.asked == 0 && name != "locked" && !strings.Contains(errOut, ".gguf: no such file") {
				t.Errorf("no model was loaded here: %q", errOut)
			}
		})
	}
}

func TestRunSaysThatNoServerIsThere(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	u, _ := url.Parse(server.URL)
	server.Close()
	t.Setenv("TANDEM_PORT", u.Port())
	if _, _, errOut := tandem(t, "", "run", "other.gguf", "hi"); !strings.Contains(errOut,
		"no server at http://127.0.0.1:"+u.Port()+", loading other.gguf here") {
		t.Errorf("%q", errOut)
	}
	if _, _, errOut := tandem(t, "", "run", "-q", "other.gguf", "hi"); strings.Contains(errOut, "server") {
		t.Errorf("quiet: %q", errOut)
	}
}

func TestRunTakesOneModel(t *testing.T) {
	code, _, errOut := tandem(t, "", "run", "target.gguf", "draft.gguf", "hi")
	if code != 2 || !strings.Contains(errOut, "--draft draft.gguf") {
		t.Errorf("%d %q", code, errOut)
	}
}

// TestRunSaysWhyItWaits: a request that nobody takes is not silent for long.
func TestRunSaysWhyItWaits(t *testing.T) {
	answer := make(chan struct{})
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/health" {
			if asked++; asked == 1 {
				w.WriteHeader(http.StatusServiceUnavailable)
				fmt.Fprint(w, `{"status":"unavailable","detail":"no target worker is ready"}`)
				return
			}
			fmt.Fprint(w, `{"status":"ok"}`)
			close(answer)
			return
		}
		select {
		case <-answer:
		case <-time.After(testwait.Limit):
			return // the answer has no events: nobody looked at /health a second time
		}
		for _, e := range chatEvents {
			fmt.Fprintf(w, "data: %s\n\n", e)
		}
	}))
	defer server.Close()
	defer http.DefaultClient.CloseIdleConnections()
	code, out, errOut := tandem(t, "", "run", "--server", server.URL, "hi")
	if code != 0 || !strings.Contains(out, "Hello you") ||
		!strings.HasPrefix(errOut, "waiting for a target: /health says unavailable: no target worker is ready\n3 tokens") {
		t.Errorf("%d %q %q", code, out, errOut)
	}
}

// TestTypedWhileLoading: what is typed while the bar is drawn is not shown in it, and not lost.
func TestTypedWhileLoading(t *testing.T) {
	keyboard, screen := terminal(t)
	h := holdEcho(screen, true)
	if _, err := keyboard.WriteString("first line\nsecond"); err != nil {
		t.Fatal(err)
	}
	var got []byte
	for deadline := time.Now().Add(10 * time.Second); !bytes.HasSuffix(got, []byte("second")); {
		// What was typed reaches the other end in its own time.
		got = h.release()
		if time.Now().After(deadline) {
			break
		}
		if !bytes.HasSuffix(got, []byte("second")) {
			h.was, _ = unix.IoctlGetTermios(int(screen.Fd()), unix.TCGETS)
			time.Sleep(time.Millisecond)
		}
	}
	if string(got) != "first line\nsecond" || !bytes.Equal(h.release(), got) {
		t.Errorf("typed %q", got)
	}
	now, err := unix.IoctlGetTermios(int(screen.Fd()), unix.TCGETS)
	if err != nil || now.Lflag&unix.ECHO == 0 || now.Lflag&unix.ICANON == 0 {
		t.Errorf("the terminal is not as it was: %+v, %v", now, err)
	}
	// The echo would be the first thing that the keyboard's end reads.
	if _, err := screen.WriteString("bar"); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 3)
	if _, err := keyboard.Read(b); err != nil || string(b) != "bar" {
		t.Errorf("the screen shows %q, %v", b, err)
	}
}

func TestTryLineNamesAPathThatWorks(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "tandem")
	if err := os.WriteFile(program, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	was := os.Args[0]
	defer func() { os.Args[0] = was }()
	os.Args[0] = program
	t.Setenv("TANDEM_PORT", "")
	t.Setenv("PATH", t.TempDir())
	if got, want := tryLine("http://127.0.0.1:8000"), program+" run"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := tryLine("http://127.0.0.1:8001"), program+" run --server http://127.0.0.1:8001"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	t.Setenv("PATH", dir)
	if got, want := tryLine("http://127.0.0.1:8000"), "tandem run"; got != want {
		t.Errorf("found by its name: %q, want %q", got, want)
	}
}

func TestSameModelIsFoundByFileNameAndSize(t *testing.T) {
	write := func(name string, size int) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	mine := write("m.gguf", 3)
	link := filepath.Join(t.TempDir(), "link.gguf")
	if err := os.Symlink(mine, link); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{
		mine: true, link: true, write("m.gguf", 3): true, write("m.gguf", 4): false, write("n.gguf", 3): false,
		"m.gguf": true, "/models/m.gguf": true, "/models/n.gguf": false, "": false,
	} {
		s := served{path: path}
		if s.serves(mine) != want {
			t.Errorf("a server of %q serves %s: %v, want %v", path, mine, !want, want)
		}
	}
}
