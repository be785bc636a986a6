package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-inference/tandem/services/testwait"
	"golang.org/x/sys/unix"
)

// chatDesk is a person at a terminal with tandem run in it, and the gateway that it asks.
type chatDesk struct {
	t        *testing.T
	keyboard *os.File
	tty      *os.File
	ended    chan int

	mu     sync.Mutex
	screen bytes.Buffer
	asked  []chatRequest
}

// sitDown starts tandem run in a terminal. The gateway repeats the last message in Markdown; "wait" is an answer that
// only begins.
func sitDown(t *testing.T, args ...string) *chatDesk {
	t.Helper()
	t.Setenv("TERM", "xterm")
	keyboard, tty := terminal(t)
	d := &chatDesk{t: t, keyboard: keyboard, tty: tty, ended: make(chan int, 1)}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" {
			fmt.Fprint(w, `{"data":[{"id":"tiny"}]}`)
			return
		}
		w.Header().Set("X-Request-Id", "req-7")
		var request chatRequest
		body, _ := io.ReadAll(r.Body)
		_ = json.Unmarshal(body, &request)
		d.mu.Lock()
		d.asked = append(d.asked, request)
		d.mu.Unlock()
		last := request.Messages[len(request.Messages)-1].Content
		for _, piece := range []string{"You **sa", "id** ", fmt.Sprint(len(last)), " bytes"} {
			text, _ := json.Marshal(piece)
			fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":%s}}]}\n\n", text)
		}
		if last == "wait" {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return
		}
		fmt.Fprint(w, "data: [DONE]\n\n")
	}))
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
	go func() {
		d.ended <- Main(append([]string{"run", "--server", server.URL}, args...), tty, tty, tty)
	}()
	t.Cleanup(func() {
		_, _ = keyboard.WriteString("\r") // ends a read that is under way
		tty.Close()
		reader.Wait()
		server.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return d
}

func (d *chatDesk) shown() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.screen.String()
}

// typed writes keys at the prompt and waits until the screen shows want after them.
func (d *chatDesk) typed(keys, want string) {
	d.t.Helper()
	testwait.Until(d.t, "the prompt", func() bool {
		now, err := unix.IoctlGetTermios(int(d.tty.Fd()), unix.TCGETS)
		return err == nil && now.Lflag&unix.ISIG == 0
	})
	before := len(d.shown())
	if _, err := d.keyboard.WriteString(keys); err != nil {
		d.t.Fatal(err)
	}
	testwait.Until(d.t, want, func() bool { return strings.Contains(d.shown()[before:], want) })
}

func (d *chatDesk) requests() []chatRequest {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.asked
}

const pastedGo = "package main\n\nfunc main() {\n\tprintln(\"/bye\")\n}"

func TestChatOnATerminal(t *testing.T) {
	history := filepath.Join(t.TempDir(), "history")
	d := sitDown(t, "--history-file", history, "--system", "Be brief.")
	d.typed("hello\r", "You \x1b[1msaid\x1b[0m 5 bytes")
	d.typed("\x1b[200~"+strings.ReplaceAll(pastedGo, "\n", "\r")+"\x1b[201~\r", fmt.Sprintf("%d bytes", len(pastedGo)))
	d.typed("\"\"\"a\rb\"\"\"\r", "3 bytes")
	d.typed("\x03", "Ctrl-D or /bye leaves")
	d.typed("/hlep\r", "no command /hlep, did you mean /help?")
	d.typed("/set temprature 1\r", "did you mean temperature?")
	d.typed("/set temperature 7\r", "/set temperature: \"7\" is no number from 0 to 2")
	d.typed("/set temperature 0.5\r", "temperature = 0.5")
	d.typed("/set think off\r", "think = off")
	d.typed("/set speculation tree:9\r", "speculation = tree:9")
	d.typed("/set speculation tre\r", "is not auto")
	d.typed("/set seed 7\r", "seed = 7")
	d.typed("/show\r", "last request   req-7 (tandem trace")
	if !strings.Contains(d.shown(), "6 messages") {
		t.Error("/show does not count the messages")
	}
	d.typed("/?\r", "arrow keys and Ctrl-R"[1:])
	d.typed("again\r", "5 bytes")
	d.typed("/clear\r", "> ")
	d.typed("/set system\r", "system = –")
	d.typed("next\r", "4 bytes")
	d.typed("\x04", "\r\n")
	if code := testwait.For(t, d.ended, "the end"); code != 0 {
		t.Errorf("status %d", code)
	}
	var contents [][]string
	for _, r := range d.requests() {
		var c []string
		for _, m := range r.Messages {
			c = append(c, m.Role[:1]+" "+m.Content)
		}
		contents = append(contents, c)
	}
	said := func(n int) string { return fmt.Sprintf("a You **said** %d bytes", n) }
	first := []string{"s Be brief.", "u hello"}
	second := append(first[:2:2], said(5), "u "+pastedGo)
	third := append(second[:4:4], said(len(pastedGo)), "u a\nb")
	fourth := append(third[:6:6], said(3), "u again")
	if diff := cmp.Diff([][]string{first, second, third, fourth, {"u next"}}, contents); diff != "" {
		t.Error(diff)
	}
	last := d.requests()[4]
	if *last.Temperature != 0.5 || *last.Seed != 7 || *last.EnableThinking || last.Speculation.Budget != 9 {
		t.Errorf("settings were not sent: %+v", last)
	}
	if info, err := os.Stat(history); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("history: %v, %v", info, err)
	}
	if data, _ := os.ReadFile(history); bytes.Contains(data, []byte("pasted")) || !bytes.Contains(data, []byte("again")) {
		t.Errorf("history: %q", data)
	}
	now, err := unix.IoctlGetTermios(int(d.tty.Fd()), unix.TCGETS)
	if err != nil || now.Lflag&unix.ECHO == 0 || now.Lflag&unix.ICANON == 0 {
		t.Errorf("the terminal is not as it was: %+v, %v", now, err)
	}
}

// TestChatGoesOnAfterCtrlC: an interrupted answer stays as far as it came, and so does the conversation.
func TestChatGoesOnAfterCtrlC(t *testing.T) {
	d := sitDown(t, "--history-file", "none")
	d.typed("hello\r", "5 bytes")
	d.typed("wait\r", "\x1b[1msaid\x1b[0m")
	if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the answer stops", func() bool { return strings.Contains(d.shown(), "(stopped)") })
	d.typed("more\r", "4 bytes")
	d.typed("/bye\r", "")
	testwait.For(t, d.ended, "the end")
	messages := d.requests()[2].Messages
	if len(messages) != 5 || messages[3].Content != "You **said** 4 bytes" || messages[4].Content != "more" {
		t.Errorf("%+v", messages)
	}
}

// TestOneCtrlCTooMany: between an answer and the next prompt, it does nothing.
func TestOneCtrlCTooMany(t *testing.T) {
	e := &env{}
	if e.interrupted() {
		t.Error("taken, outside a chat")
	}
	e.stayOnInterrupt()
	if !e.interrupted() {
		t.Error("not taken, in a chat")
	}
}

func TestChatIsSavedAndLoaded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "chat.json")
	d := sitDown(t, "--history-file", "none", "--seed", "3")
	d.typed("hello\r", "5 bytes")
	d.typed("/save "+path+"\r", "2 messages in ")
	d.typed("/save\r", "needs the name of a file")
	d.typed("/bye\r", "")
	testwait.For(t, d.ended, "the end")
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	d = sitDown(t, "--history-file", "none")
	d.typed("/load chat_test.go\r", "no file that /save has written")
	d.typed("/load "+path+"\r", "2 messages from ")
	d.typed("more\r", "4 bytes")
	d.typed("\x04", "")
	testwait.For(t, d.ended, "the end")
	r := d.requests()[0]
	if len(r.Messages) != 3 || r.Messages[1].Content != "You **said** 5 bytes" || r.Seed == nil || *r.Seed != 3 {
		t.Errorf("%+v", r)
	}
}

// TestNoColour: with NO_COLOR a terminal gets no renditions, and Markdown stays as it is.
func TestNoColour(t *testing.T) {
	t.Setenv("NO_COLOR", "1")
	d := sitDown(t, "--history-file", "none")
	d.typed("hello\r", "You **said** 5 bytes")
	d.typed("\x04", "")
	testwait.For(t, d.ended, "the end")
	if found := regexp.MustCompile(`\x1b\[[0-9;]*m`).FindString(d.shown()); found != "" {
		t.Errorf("%q in %q", found, d.shown())
	}
}

func TestNoMarkdown(t *testing.T) {
	d := sitDown(t, "--no-markdown", "hi")
	testwait.Until(t, "the answer", func() bool { return strings.Contains(d.shown(), "You **said** 2 bytes") })
	testwait.For(t, d.ended, "the end")
}

func TestSettingsGoBackToDefaults(t *testing.T) {
	s := chatSettings{speculation: &speculationJSON{Mode: "auto"}}
	for _, f := range chatSettingFields {
		was := f.get(&s)
		for _, value := range []string{"1", "on", "tree"} {
			_ = f.set(&s, value)
		}
		if f.get(&s) == was {
			t.Errorf("%s does not change", f.name)
		}
		if err := f.set(&s, ""); err != nil || f.get(&s) != was {
			t.Errorf("%s: %q, %v", f.name, f.get(&s), err)
		}
	}
}
