package agents

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/tests/cluster"
)

// TestHermesLauncher runs the launcher with a program in Hermes agent's place. The agent reads no OPENAI_BASE_URL: what
// is not in its configuration does not exist, and it ends with "no inference provider configured".
func TestHermesLauncher(t *testing.T) {
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	length := "65536"
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/models" || r.Header.Get("Authorization") != `Bearer a"key` {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte(`{"object":"list","data":[{"id":"served","object":"model","context_length":` + length + `}]}`))
	}))
	defer gateway.Close()
	bin, home := t.TempDir(), t.TempDir()
	program := "#!/bin/sh\ncat \"$HERMES_HOME/config.yaml\"\necho \"$@\"\n"
	if err := os.WriteFile(filepath.Join(bin, "hermes"), []byte(program), 0o755); err != nil {
		t.Fatal(err)
	}
	launch := func() (string, error) {
		cmd := exec.Command(filepath.Join(root, "deploy", "clients", "hermes", "launch"), "-z", "hello")
		cmd.Env = []string{"PATH=" + bin + string(os.PathListSeparator) + os.Getenv("PATH"), "HOME=" + home,
			"TANDEM_SERVER=" + gateway.URL, `TANDEM_API_KEY=a"key`}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	want := "model:\n  provider: custom\n  base_url: \"" + gateway.URL +
		"/v1\"\n  api_key: \"a\\\"key\"\n  default: \"served\"\n-z hello\n"
	if out, err := launch(); err != nil || out != want {
		t.Errorf("%v, %q, want %q", err, out, want)
	}
	length = "32768"
	if out, err := launch(); err == nil || !strings.Contains(out, "below 64000 tokens") {
		t.Errorf("with a small context: %v, %q", err, out)
	}
}
