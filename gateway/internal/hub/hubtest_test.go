package hub

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeHub speaks the API: it lists files and redirects to another host, which has their bytes.
type fakeHub struct {
	t     *testing.T
	files map[string][]byte
	// fault may answer instead of the second host; n counts the requests to it from 1. It is set before the first.
	fault func(w http.ResponseWriter, r *http.Request, n int) bool
	// api may answer instead of the hub.
	api func(w http.ResponseWriter, r *http.Request) bool

	hub, bytes *httptest.Server

	mu     sync.Mutex // guards the rest
	n      int
	served int64
	tokens []string // that the second host got
	waits  []time.Duration
}

func newFakeHub(t *testing.T, files map[string][]byte) *fakeHub {
	h := &fakeHub{t: t, files: files}
	h.bytes = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		h.n++
		n := h.n
		h.tokens = append(h.tokens, r.Header.Get("Authorization"))
		fault := h.fault
		h.mu.Unlock()
		w.Header().Set("ETag", `"one"`)
		if fault != nil && fault(w, r, n) {
			return
		}
		h.send(w, r)
	}))
	h.hub = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case h.api != nil && h.api(w, r):
		case strings.HasPrefix(r.URL.Path, "/api/models/o/m/tree/main"):
			h.list(w, r)
		case strings.HasPrefix(r.URL.Path, "/o/m/resolve/main/"):
			if r.Header.Get("Authorization") != "Bearer secret" {
				t.Errorf("the hub gets %q", r.Header.Get("Authorization"))
			}
			http.Redirect(w, r, h.bytes.URL+strings.TrimPrefix(r.URL.Path, "/o/m/resolve/main"), http.StatusFound)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(func() {
		h.hub.Close()
		h.bytes.Close()
	})
	return h
}

// mend takes the fault away.
func (h *fakeHub) mend() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fault = nil
}

// list sends one file a page.
func (h *fakeHub) list(w http.ResponseWriter, r *http.Request) {
	var entries []map[string]any
	for path, data := range h.files {
		sum := sha256.Sum256(data)
		entries = append(entries, map[string]any{"type": "file", "path": path, "oid": "x", "size": 130,
			"lfs": map[string]any{"oid": hex.EncodeToString(sum[:]), "size": len(data)}})
	}
	page := 0
	_, _ = fmt.Sscan(r.URL.Query().Get("cursor"), &page)
	if page+1 < len(entries) {
		w.Header().Set("Link", fmt.Sprintf(`<%s?cursor=%d>; rel="next"`, r.URL.Path, page+1))
	}
	// The order of a map changes: the test of pages gives one file only to each name.
	_ = json.NewEncoder(w).Encode(append([]map[string]any{{"type": "directory", "path": "d"}}, entries[page]))
}

func (h *fakeHub) send(w http.ResponseWriter, r *http.Request) {
	data := h.files[strings.TrimPrefix(r.URL.Path, "/")]
	counted := &countingWriter{ResponseWriter: w}
	http.ServeContent(counted, r, "", time.Time{}, bytes.NewReader(data))
	h.mu.Lock()
	h.served += counted.n
	h.mu.Unlock()
}

type countingWriter struct {
	http.ResponseWriter
	n int64
}

func (c *countingWriter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return c.ResponseWriter.Write(p)
}

// client asks the hub, and does not wait between tries.
func (h *fakeHub) client() *Client {
	h.t.Helper()
	c, err := NewClient(h.hub.URL, "secret")
	if err != nil {
		h.t.Fatal(err)
	}
	c.wait = func(ctx context.Context, d time.Duration) bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.waits = append(h.waits, d)
		return ctx.Err() == nil
	}
	h.t.Cleanup(c.Close)
	return c
}

const piece = 1000

// contents are those of m.gguf, seven pieces and a bit.
func contents() []byte {
	data := make([]byte, 7*piece+123)
	for i := range data {
		data[i] = byte(i * i >> 3)
	}
	return data
}

func (h *fakeHub) download(dir string) *Download {
	return &Download{Client: h.client(), Store: Store{dir}, Repo: "o/m", Revision: "main", Connections: 3, piece: piece}
}

func (h *fakeHub) file(path string) File {
	sum := sha256.Sum256(h.files[path])
	return File{Path: path, Size: int64(len(h.files[path])), SHA256: hex.EncodeToString(sum[:])}
}

// check compares what lies in a store with what should.
func (h *fakeHub) check(dir string, want []byte) {
	h.t.Helper()
	path := filepath.Join(dir, "o", "m", "m.gguf")
	got, err := os.ReadFile(path)
	if want == nil && !os.IsNotExist(err) {
		h.t.Errorf("the file has its name: %d bytes, %v", len(got), err)
	}
	if want != nil && (err != nil || !bytes.Equal(got, want)) {
		h.t.Errorf("%d bytes, %v; want %d", len(got), err, len(want))
	}
	left, _ := filepath.Glob(path + ".*")
	if want != nil && len(left) > 0 {
		h.t.Errorf("left behind: %v", left)
	}
}
