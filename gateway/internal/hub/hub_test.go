package hub

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestFetch(t *testing.T) {
	h := newFakeHub(t, map[string][]byte{"m.gguf": contents()})
	dir := t.TempDir()
	d := h.download(dir)
	var last atomic.Int64
	d.Progress = func(n int64) { last.Store(max(n, last.Load())) }
	path, err := d.Fetch(t.Context(), h.file("m.gguf"))
	if err != nil || path != filepath.Join(dir, "o", "m", "m.gguf") {
		t.Fatal(path, err)
	}
	h.check(dir, contents())
	if last.Load() != int64(len(contents())) || h.n != 8 {
		t.Errorf("progress %d, %d requests", last.Load(), h.n)
	}
	for _, token := range h.tokens {
		if token != "" {
			t.Error("another host gets the token")
		}
	}
	if _, err := d.Fetch(t.Context(), h.file("m.gguf")); err != nil || h.n != 8 {
		t.Errorf("fetched again: %v", err)
	}
	if err := os.Truncate(path, 5); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Fetch(t.Context(), h.file("m.gguf")); err == nil || !strings.Contains(err.Error(),
		"is there with 5 bytes") {
		t.Errorf("another file of that name: %v", err)
	}
}

func TestEmptyFile(t *testing.T) {
	h := newFakeHub(t, map[string][]byte{"m.gguf": {}})
	dir := t.TempDir()
	if _, err := h.download(dir).Fetch(t.Context(), h.file("m.gguf")); err != nil {
		t.Fatal(err)
	}
	h.check(dir, []byte{})
}

// TestFaults: what goes wrong on the way is mended or reported, and nothing incomplete has the file's name.
func TestFaults(t *testing.T) {
	wrongRange := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes 1-1000/%d", len(contents())))
		w.WriteHeader(http.StatusPartialContent)
		_, _ = w.Write(make([]byte, piece))
	}
	cut := func(w http.ResponseWriter, r *http.Request) {
		var from, to int
		_, _ = fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &to)
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to, len(contents())))
		w.Header().Set("Content-Length", fmt.Sprint(to-from+1))
		w.WriteHeader(http.StatusPartialContent)
		_, _ = w.Write(contents()[from:min(from+400, to+1)])
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
	always := func(f func(http.ResponseWriter, *http.Request)) func(http.ResponseWriter, *http.Request, int) bool {
		return func(w http.ResponseWriter, r *http.Request, _ int) bool { f(w, r); return true }
	}
	sometimes := func(f func(http.ResponseWriter, *http.Request)) func(http.ResponseWriter, *http.Request, int) bool {
		return func(w http.ResponseWriter, r *http.Request, n int) bool {
			if n%2 == 1 {
				f(w, r)
			}
			return n%2 == 1
		}
	}
	status := func(code int, header ...string) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, _ *http.Request) {
			if len(header) > 0 {
				w.Header().Set("Retry-After", header[0])
			}
			w.WriteHeader(code)
		}
	}
	for name, c := range map[string]struct {
		fault func(w http.ResponseWriter, r *http.Request, n int) bool
		want  string // in the error; empty: it is mended
	}{
		"connections are cut":     {sometimes(cut), ""},
		"all connections are cut": {always(cut), ""}, // each brings a bit more
		"connections bring nothing": {always(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }),
			"tried 6 times"},
		"ranges are ignored": {always(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(contents()) }),
			""},
		"wrong ranges, sometimes":    {sometimes(wrongRange), ""},
		"wrong ranges":               {always(wrongRange), "sends bytes from 1, asked for 0"},
		"no range in the answer":     {always(status(http.StatusPartialContent)), "without saying which"},
		"overloaded, sometimes":      {sometimes(status(http.StatusTooManyRequests, "7")), ""},
		"overloaded":                 {always(status(http.StatusServiceUnavailable)), "503"},
		"refused":                    {always(status(http.StatusForbidden)), "accept the conditions at"},
		"no token":                   {always(status(http.StatusUnauthorized)), "HF_TOKEN"},
		"missing":                    {always(status(http.StatusNotFound)), "check the name"},
		"shorter than the hub lists": {always(status(http.StatusRequestedRangeNotSatisfiable)), "the file changed"},
		"it changed": {func(w http.ResponseWriter, _ *http.Request, n int) bool {
			w.Header().Set("ETag", fmt.Sprintf(`"%d"`, n/4))
			return false
		}, "the file changed"},
		"another file": {always(func(w http.ResponseWriter, r *http.Request) {
			data := contents()
			data[5000]++
			http.ServeContent(w, r, "", time.Time{}, strings.NewReader(string(data)))
		}), "the hub says"},
		"another size": {always(func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, "", time.Time{}, strings.NewReader("short"))
		}), "the file changed"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newFakeHub(t, map[string][]byte{"m.gguf": contents()})
			h.fault = c.fault
			dir := t.TempDir()
			_, err := h.download(dir).Fetch(t.Context(), h.file("m.gguf"))
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Fatalf("%v, want %q", err, c.want)
			}
			if c.want == "" {
				h.check(dir, contents())
				return
			}
			h.check(dir, nil)
			// Once the fault is gone, the same call succeeds.
			h.mend()
			if _, err := h.download(dir).Fetch(t.Context(), h.file("m.gguf")); err != nil {
				t.Error("afterwards:", err)
			}
			h.check(dir, contents())
		})
	}
}

func TestRetryAfterIsKept(t *testing.T) {
	h := newFakeHub(t, map[string][]byte{"m.gguf": contents()})
	h.fault = func(w http.ResponseWriter, _ *http.Request, n int) bool {
		if n == 1 {
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(http.StatusTooManyRequests)
		}
		return n == 1
	}
	if _, err := h.download(t.TempDir()).Fetch(t.Context(), h.file("m.gguf")); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]time.Duration{7 * time.Second}, h.waits); d != "" {
		t.Error(d)
	}
	for value, want := range map[string]time.Duration{"": 0, "x": 0, "-3": 0, "99999": 10 * time.Minute,
		"Mon, 02 Jan 2006 15:04:05 GMT": 0} {
		if got := retryAfter(value); got != want {
			t.Errorf("Retry-After: %s: %v, want %v", value, got, want)
		}
	}
}

// TestResume: a call that was ended is continued, with the bytes that it had.
func TestResume(t *testing.T) {
	h := newFakeHub(t, map[string][]byte{"m.gguf": contents()})
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	d := h.download(dir)
	d.Connections = 1
	d.Progress = func(n int64) {
		if n >= 3*piece {
			cancel()
		}
	}
	if _, err := d.Fetch(ctx, h.file("m.gguf")); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	h.check(dir, nil)
	h.served = 0
	if _, err := h.download(dir).Fetch(t.Context(), h.file("m.gguf")); err != nil {
		t.Fatal(err)
	}
	h.check(dir, contents())
	if h.served > int64(len(contents())-3*piece) {
		t.Errorf("fetched %d bytes again", h.served)
	}
}

// TestDamagedPartIsDropped: what a crash made of a part file is found.
func TestDamagedPartIsDropped(t *testing.T) {
	for name, damage := range map[string]func(path string) error{
		"bytes":  func(path string) error { return os.WriteFile(path+".part", make([]byte, len(contents())), 0o644) },
		"length": func(path string) error { return os.Truncate(path+".part", 100) },
		"state":  func(path string) error { return os.WriteFile(path+".part.json", []byte(`{"size":`), 0o644) },
		"numbers": func(path string) error {
			return os.WriteFile(path+".part.json", []byte(`{"size":7123,"piece":1000,"done":[9999,0,0,0,0,0,0,0]}`), 0o644)
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newFakeHub(t, map[string][]byte{"m.gguf": contents()})
			dir := t.TempDir()
			h.fault = func(w http.ResponseWriter, _ *http.Request, n int) bool {
				if n > 3 {
					w.WriteHeader(http.StatusForbidden)
				}
				return n > 3
			}
			d := h.download(dir)
			d.Connections = 1
			if _, err := d.Fetch(t.Context(), h.file("m.gguf")); err == nil {
				t.Fatal("no error")
			}
			h.mend()
			if err := damage(filepath.Join(dir, "o", "m", "m.gguf")); err != nil {
				t.Fatal(err)
			}
			_, err := h.download(dir).Fetch(t.Context(), h.file("m.gguf"))
			if err != nil && strings.Contains(err.Error(), "what was fetched is dropped") {
				h.check(dir, nil)
				_, err = h.download(dir).Fetch(t.Context(), h.file("m.gguf"))
			}
			if err != nil {
				t.Fatal(err)
			}
			h.check(dir, contents())
		})
	}
}

func TestOnePullAtATime(t *testing.T) {
	h := newFakeHub(t, map[string][]byte{"m.gguf": contents()})
	dir := t.TempDir()
	var second error
	h.fault = func(_ http.ResponseWriter, _ *http.Request, n int) bool {
		if n == 2 {
			_, second = h.download(dir).Fetch(context.Background(), h.file("m.gguf"))
		}
		return false
	}
	d := h.download(dir)
	d.Connections = 1
	if _, err := d.Fetch(t.Context(), h.file("m.gguf")); err != nil {
		t.Fatal(err)
	}
	if second == nil || !strings.Contains(second.Error(), "another tandem pull") {
		t.Errorf("the second says %v", second)
	}
	h.check(dir, contents())
}

func TestFullDisk(t *testing.T) {
	h := newFakeHub(t, map[string][]byte{"m.gguf": contents()})
	dir := t.TempDir()
	d := h.download(dir)
	d.free = func(string) (int64, error) { return 5000, nil }
	if _, err := d.Fetch(t.Context(), h.file("m.gguf")); err == nil || !strings.Contains(err.Error(), "4.9 KiB left") ||
		h.n > 0 {
		t.Errorf("%v after %d requests", err, h.n)
	}
	h.check(dir, nil)

	// The system refuses bytes from 4000 on.
	received := make(chan os.Signal, 8)
	signal.Notify(received, syscall.SIGXFSZ)
	defer signal.Stop(received)
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &was); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 4000, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	_, err := h.download(dir).Fetch(t.Context(), h.file("m.gguf"))
	if restoreErr := unix.Setrlimit(unix.RLIMIT_FSIZE, &was); restoreErr != nil {
		t.Fatal(restoreErr)
	}
	if !errors.Is(err, unix.EFBIG) {
		t.Errorf("%v", err)
	}
	h.check(dir, nil)
	if _, err := h.download(dir).Fetch(t.Context(), h.file("m.gguf")); err != nil {
		t.Error("afterwards:", err)
	}
	h.check(dir, contents())
}

// TestSilentServer: a connection that is open and dead does not hold a pull up for ever.
func TestSilentServer(t *testing.T) {
	h := newFakeHub(t, map[string][]byte{"m.gguf": contents()})
	ended := make(chan struct{})
	defer close(ended)
	h.fault = func(w http.ResponseWriter, r *http.Request, n int) bool {
		if n != 1 {
			return false
		}
		w.Header().Set("Content-Range", fmt.Sprintf("bytes 0-999/%d", len(contents())))
		w.WriteHeader(http.StatusPartialContent)
		w.(http.Flusher).Flush()
		select {
		case <-r.Context().Done():
		case <-ended:
		}
		return true
	}
	d := h.download(t.TempDir())
	d.Client.silence = 50 * time.Millisecond
	if _, err := d.Fetch(t.Context(), h.file("m.gguf")); err != nil {
		t.Error(err)
	}
}

func TestList(t *testing.T) {
	h := newFakeHub(t, map[string][]byte{"d/a.gguf": []byte("abc")})
	files, err := h.client().Files(t.Context(), "o/m", "main")
	if err != nil {
		t.Fatal(err)
	}
	want := h.file("d/a.gguf")
	want.Blob = "x"
	if d := cmp.Diff([]File{want}, files); d != "" {
		t.Error(d)
	}
	page := 0
	h.api = func(w http.ResponseWriter, r *http.Request) bool {
		if page++; page == 1 {
			w.Header().Set("Link", fmt.Sprintf(`<%s%s?cursor=x>; rel="next"`, h.hub.URL, r.URL.Path))
		}
		fmt.Fprintf(w, `[{"type":"file","path":"%d","oid":"o","size":%d}]`, page, page)
		return true
	}
	files, err = h.client().Files(t.Context(), "o/m", "main")
	if d := cmp.Diff([]File{{Path: "1", Size: 1, Blob: "o"}, {Path: "2", Size: 2, Blob: "o"}}, files); d != "" ||
		err != nil {
		t.Error(d, err)
	}
	for _, bad := range []string{"../x", "/etc/x", "a//b", "a/./b", `a\\b`, "x.part"} {
		h.api = func(w http.ResponseWriter, _ *http.Request) bool {
			fmt.Fprintf(w, `[{"type":"file","path":"%s","oid":"o","size":1}]`, bad)
			return true
		}
		if files, err := h.client().Files(t.Context(), "o/m", "main"); err == nil {
			t.Errorf("%s is listed: %v", bad, files)
		}
	}
	h.api = nil
	if _, err := h.client().Files(t.Context(), "o/none", "main"); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("%v", err)
	}
}

// TestSmallFileIsCheckedToo: one that is no LFS object has git's hash only.
func TestSmallFileIsCheckedToo(t *testing.T) {
	h := newFakeHub(t, map[string][]byte{"m.gguf": []byte("hello\n")})
	// echo hello | git hash-object --stdin
	file := File{Path: "m.gguf", Size: 6, Blob: "ce013625030ba8dba906f756967f9e9ca394464a"}
	dir := t.TempDir()
	if _, err := h.download(dir).Fetch(t.Context(), file); err != nil {
		t.Fatal(err)
	}
	h.check(dir, []byte("hello\n"))
	file.Blob = "ce013625030ba8dba906f756967f9e9ca394464b"
	if _, err := h.download(t.TempDir()).Fetch(t.Context(), file); err == nil {
		t.Error("another hash is accepted")
	}
}

func TestRedirects(t *testing.T) {
	c, err := NewClient("https://hub.example", "secret")
	if err != nil {
		t.Fatal(err)
	}
	for address, token := range map[string]string{"https://hub.example/x": "t", "https://cdn.hub.example/x": "",
		"https://hub.example:8443/x": "", "https://other.example/x": ""} {
		request, err := http.NewRequest(http.MethodGet, address, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "t")
		if err := c.redirect(request, nil); err != nil || request.Header.Get("Authorization") != token {
			t.Errorf("%s gets %q, %v", address, request.Header.Get("Authorization"), err)
		}
	}
	request, _ := http.NewRequest(http.MethodGet, "http://hub.example/x", nil)
	if c.redirect(request, nil) == nil {
		t.Error("a redirect to an address without encryption is followed")
	}
	if _, err := NewClient("hub.example", ""); err == nil {
		t.Error("an address without a scheme is taken")
	}
}

func TestChoose(t *testing.T) {
	var files []File
	for _, path := range []string{"README.md", "M-Q4_K_M.gguf", "M-Q8_0.gguf", "UD/M-UD-IQ4_XS.gguf",
		"M-DFlash-Q8_0.gguf",
		"mmproj-F16.gguf", "M-BF16-00001-of-00002.gguf", "M-BF16-00002-of-00002.gguf", "M-F32-00001-of-00003.gguf",
		"M-F32-00003-of-00003.gguf"} {
		files = append(files, File{Path: path, Size: 10})
	}
	models := Models(files)
	for choice, want := range map[string]string{
		"Q4_K_M": "M-Q4_K_M.gguf", "q8_0": "M-Q8_0.gguf", "UD-IQ4_XS": "UD/M-UD-IQ4_XS.gguf", "M-Q8_0": "M-Q8_0.gguf",
		"M-DFlash-Q8_0.gguf": "M-DFlash-Q8_0.gguf", "bf16": "M-BF16-00001-of-00002.gguf",
		"mmproj-F16.gguf": "mmproj-F16.gguf",
		"Q4":              "", "": "", "F32": "", "F16": "",
	} {
		m, err := Choose("o/m", models, choice)
		if want == "" && (err == nil || !strings.Contains(err.Error(), "o/m:M-Q4_K_M.gguf  10 B")) ||
			want != "" && (err != nil || m.Path() != want) {
			t.Errorf("%q: %v, %v; want %q", choice, m, err, want)
		}
	}
	target, _ := Choose("o/m", models, "Q8_0")
	if draft, ok := DraftFor(target, models); !ok || draft.Path() != "M-DFlash-Q8_0.gguf" {
		t.Errorf("draft %v, %v", draft, ok)
	}
	if m, _ := Choose("o/m", models, "bf16"); m.Size() != 20 {
		t.Errorf("a split model has %d bytes", m.Size())
	}
	if _, ok := DraftFor(target, Models(files[:4])); ok {
		t.Error("a draft is found where there is none")
	}
}

func TestRefs(t *testing.T) {
	for text, want := range map[string]Ref{"o/m": {"o/m", ""}, "o/m:Q4_K_M": {"o/m", "Q4_K_M"}, "o/m:d/x.gguf": {"o/m",
		"d/x.gguf"},
		"m.gguf": {}, "/o/m": {}, "o/m/x": {}, "../m:x": {}, "o/m:../x": {}, "o/m:/x": {}, "what is o/m:x?": {},
		"o/..": {}, "o/m:": {}} {
		if got, ok := ParseRef(text); got != want || ok != (want != Ref{}) {
			t.Errorf("%q: %+v, %v", text, got, ok)
		}
	}
}

func TestFind(t *testing.T) {
	dir := t.TempDir()
	s := Store{dir}
	for _, path := range []string{"a-Q4_0.gguf", "a-Q8_0.gguf", "b-Q2_K.gguf.part"} {
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, "o", "m"), 0o755), os.WriteFile(s.Path("o/m", path),
			[]byte("abc"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if path, err := s.Find(Ref{"o/m", "Q8_0"}); err != nil || path != s.Path("o/m", "a-Q8_0.gguf") {
		t.Error(path, err)
	}
	for ref, want := range map[Ref]string{{"o/m", ""}: "choose one", {"o/m", "Q2_K"}: "tandem pull o/m:Q2_K",
		{"o/x", "Q8_0"}: "tandem pull o/x:Q8_0"} {
		if _, err := s.Find(ref); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", ref, err)
		}
	}
}
