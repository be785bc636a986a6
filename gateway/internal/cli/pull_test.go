package cli

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// modelHub has the demonstration models, named as on a hub.
func modelHub(t *testing.T) string {
	t.Helper()
	files := map[string][]byte{}
	for name, path := range map[string]string{"m-Q4_K_M.gguf": demoTarget, "m-DFlash-Q8_0.gguf": demoDraft} {
		data, err := os.ReadFile(filepath.Join(modelsDir, path))
		if err != nil {
			t.Fatal(err)
		}
		files[name] = data
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api/models/o/m/tree/main" {
			var list []map[string]any
			for name, data := range files {
				sum := sha256.Sum256(data)
				list = append(list, map[string]any{"type": "file", "path": name, "size": len(data),
					"lfs": map[string]any{"oid": hex.EncodeToString(sum[:]), "size": len(data)}})
			}
			_ = json.NewEncoder(w).Encode(list)
			return
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(files[filepath.Base(r.URL.Path)]))
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// TestPullAndServe: what was pulled is found by its name, what was not is said with the command that fetches it.
func TestPullAndServe(t *testing.T) {
	url, dir := modelHub(t), t.TempDir()
	t.Setenv("TANDEM_MODEL_STORE", dir)
	workers := programs(t)
	serve := []string{"serve", "o/m:Q4_K_M", "--draft", "o/m:m-DFlash-Q8_0.gguf", "--programs", workers,
		"--verify-config"}
	if code, _, errOut := tandem(t, "", serve...); code != 2 || !strings.Contains(errOut, "tandem pull o/m:Q4_K_M") ||
		!strings.Contains(errOut, "tandem pull o/m:m-DFlash-Q8_0.gguf") {
		t.Errorf("before: %d %q", code, errOut)
	}
	if code, _, errOut := tandem(t, "", "run", "--server", "none", "o/m:Q4_K_M", "hi"); code != 2 ||
		!strings.Contains(errOut, "tandem pull o/m:Q4_K_M") {
		t.Errorf("run: %d %q", code, errOut)
	}
	code, out, errOut := tandem(t, "", "pull", "--hub", url, "o/m")
	if code != 0 || !strings.HasPrefix(out, filepath.Join(dir, "o", "m", "m-Q4_K_M.gguf")+"\n") ||
		!strings.Contains(out, "tandem serve o/m:m-Q4_K_M.gguf") ||
		!strings.Contains(errOut, "A draft lies beside it: o/m:m-DFlash-Q8_0.gguf") {
		t.Errorf("pull: %d %q %q", code, out, errOut)
	}
	code, out, errOut = tandem(t, "", "pull", "--hub", url, "-q", "--with-draft", "o/m:Q4_K_M")
	if code != 0 || out != filepath.Join(dir, "o", "m", "m-Q4_K_M.gguf")+"\n" || errOut != "" {
		t.Errorf("pull with the draft: %d %q %q", code, out, errOut)
	}
	if code, _, errOut := tandem(t, "", serve...); code != 0 {
		t.Errorf("serve: %q", errOut)
	}
	if code, _, errOut := tandem(t, "", "pull", "--hub", url, "o/m:Q2_K"); code != 1 || !strings.Contains(errOut,
		"o/m has no model Q2_K, but:\n  o/m:m-DFlash-Q8_0.gguf") {
		t.Errorf("another quantisation: %d %q", code, errOut)
	}
	for _, args := range [][]string{{"pull", "nonsense"}, {"pull", "o/m", "--connections", "0"}} {
		if code, _, _ := tandem(t, "", args...); code != 2 {
			t.Errorf("%v: %d", args, code)
		}
	}
	if code, _, errOut := tandem(t, "", "pull", "o/m", "--hub", "ftp://x"); code != 1 || !strings.Contains(errOut,
		"--hub") {
		t.Errorf("a wrong hub: %d %q", code, errOut)
	}
}

// TestNamesOfFilesStayFiles: a path that is there is never taken for a model of the hub.
func TestNamesOfFilesStayFiles(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	if err := os.Mkdir("o", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join("o", "m"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	f := StoreFlags{ModelStore: t.TempDir()}
	for _, path := range []string{"", "o/m", filepath.Join(dir, "o", "m"), "x.gguf", "dir/x.gguf", "/dir/x",
		"a/b/c.gguf"} {
		if got, err := f.resolve(path); got != path || err != nil {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
}

func TestPullBar(t *testing.T) {
	b := newPullBar(nil, "m.gguf", 4<<30, true)
	began := time.Now()
	b.done.Store(1 << 30)
	if line := b.line(began, 100); line != "m.gguf [#####...............] 25 %, 1.0 GiB of 4.0 GiB" {
		t.Errorf("%q", line)
	}
	b.done.Store(2 << 30)
	if line := b.line(began.Add(2*time.Second), 100); !strings.HasSuffix(line, "512.0 MiB/s, 4s left") {
		t.Errorf("%q", line)
	}
	b.checking.Store(true)
	if line := b.line(began, 30); len(line) != 29 {
		t.Errorf("%q", line)
	}
	b.stop()
}
