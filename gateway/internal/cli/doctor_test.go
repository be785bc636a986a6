package cli

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/doctor"
	"github.com/tandem-inference/tandem/services/config"
)

// answeringPrograms makes a folder of programs that tell their version.
func answeringPrograms(t *testing.T) string {
	t.Helper()
	dir := programs(t)
	for _, name := range []string{workerTarget, workerDraft, workerPrefill, "tandem-engine"} {
		script := "#!/bin/sh\necho " + name + " " + config.Version() + " test\n"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "libtandem_cpu.so"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

func examined(t *testing.T, args ...string) (code int, results map[string]doctor.Result) {
	t.Helper()
	code, out, errOut := tandem(t, "", append([]string{"doctor", "--json", "--port", "0", "--grpc-port=-1"}, args...)...)
	var list []doctor.Result
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatalf("%v: %q %q", err, out, errOut)
	}
	results = map[string]doctor.Result{}
	for _, r := range list {
		if old, ok := results[r.Check]; !ok || old.Status == doctor.OK {
			results[r.Check] = r
		}
	}
	return code, results
}

// TestDoctorLooksAtWhatWouldBeServed: its flags and files are those of serve.
func TestDoctorLooksAtWhatWouldBeServed(t *testing.T) {
	dir := answeringPrograms(t)
	target, draft := filepath.Join(modelsDir, demoTarget), filepath.Join(modelsDir, demoDraft)
	code, r := examined(t, target, "--draft", draft, "--programs", dir)
	for _, check := range []string{"settings", "models", "programs", "device cpu", "port --port", "folder TMPDIR"} {
		if r[check].Status != doctor.OK {
			t.Errorf("%s: %+v", check, r[check])
		}
	}
	if code != 0 {
		t.Errorf("status %d: %v", code, r)
	}
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	_, port, _ := net.SplitHostPort(busy.Addr().String())
	file := filepath.Join(t.TempDir(), "t.yaml")
	if err := os.WriteFile(file, []byte("target-device: cuda:7\nlanes: -1\nhost: 0.0.0.0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, r = examined(t, "--config", file, "nosuch.gguf", "--draft", target, "--programs", dir, "--port", port)
	for check, want := range map[string]string{"settings": "--lanes", "models": "nosuch.gguf",
		"library cuda": "libtandem_cuda.so",
		"port --port":  port} {
		if r[check].Status != doctor.Fail || !strings.Contains(r[check].Text, want) || r[check].Mend == "" {
			t.Errorf("%s: %+v, want %q", check, r[check], want)
		}
	}
	if code != 1 {
		t.Errorf("status %d", code)
	}
}

func TestDoctorPrintsLines(t *testing.T) {
	code, out, errOut := tandem(t, "", "doctor", "--port", "0", "--grpc-port=-1", "--programs", t.TempDir())
	if code != 1 || !strings.Contains(out, "ok    models") || !strings.Contains(out, "\nfail  programs") ||
		!strings.Contains(out, "→ make build") || !strings.Contains(errOut, "something is wrong") {
		t.Errorf("%d %q %q", code, out, errOut)
	}
}
