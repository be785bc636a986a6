package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/tandem-inference/tandem/native/plugin/internal/native"
	"github.com/tandem-inference/tandem/native/plugin/internal/program"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginetest"
	"github.com/tandem-inference/tandem/services/engine/host"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// files finds the library and the demonstration models, or skips.
func files(t testing.TB) (lib string, models enginetest.Models) {
	t.Helper()
	lib = os.Getenv("TANDEM_ENGINE_LIB")
	if lib == "" {
		lib = "../../bin/libtandem_cpu.so"
	}
	dir := "../../models"
	models = enginetest.Models{
		Target:  filepath.Join(dir, "tandem-tiny-target-q4_k_m.gguf"),
		Draft:   filepath.Join(dir, "tandem-tiny-draft-q8_0.gguf"),
		Tables:  filepath.Join(dir, "tandem-tiny-target-q4_k_m.gguf"),
		Score:   filepath.Join(dir, "tandem-tiny-prefill-q8_0.gguf"),
		Missing: filepath.Join(dir, "no-such-file.gguf"),
		OtherKV: 0,
	}
	for _, f := range []string{lib, models.Target, models.Draft, models.Score} {
		if _, err := os.Stat(f); err != nil {
			t.Skipf("%s is missing: build the native engine or set TANDEM_ENGINE_LIB", f)
		}
	}
	lib, err := filepath.Abs(lib)
	if err != nil {
		t.Fatal(err)
	}
	return lib, models
}

// TestLibrary runs the suite in process.
func TestLibrary(t *testing.T) {
	path, models := files(t)
	runInProcess(t, path, models)
}

// TestLibrarySmall runs what the suite asks of a target with the smallest model there is, random 16-bit weights with
// six value heads to two key heads: little enough work for tools that check every access to memory.
func TestLibrarySmall(t *testing.T) {
	path, models := files(t)
	runInProcess(t, path, enginetest.Models{Target: randomModel(t, "ratio3"), Missing: models.Missing})
}

func runInProcess(t *testing.T, path string, models enginetest.Models) {
	t.Helper()
	lib, err := native.Load(path, func(level int, text string) {
		if level >= 2 {
			t.Logf("native: %s", text)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	enginetest.Run(t, func(*testing.T) (engine.Opener, enginetest.Models) { return lib, models })
}

// build builds tandem-engine.
func build(t testing.TB) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "tandem-engine")
	cmd := exec.Command("go", "build", "-o", bin, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return bin
}

// TestPlugin runs the suite against the library behind the engine program.
func TestPlugin(t *testing.T) {
	lib, models := files(t)
	bin := build(t)
	enginetest.Run(t, func(t *testing.T) (engine.Opener, enginetest.Models) {
		h, err := host.NewHost(host.HostConfig{Program: bin, Library: lib, Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		return h, models
	})
}

func TestCommandLine(t *testing.T) {
	bin := build(t)
	for _, c := range []struct {
		name string
		args []string
		ok   bool
		want string
	}{
		{"version", []string{"--version"}, true, "tandem-engine "},
		{"by hand", nil, false, "started by Tandem's workers"},
		{"info without a library", []string{"info"}, false, "no engine library"},
		{"info of no library", []string{"info", "--lib", "go.mod"}, false, "load engine library"},
	} {
		cmd := exec.Command(bin, c.args...)
		cmd.Env = []string{"HOME=/"}
		out, err := cmd.CombinedOutput()
		if (err == nil) != c.ok || !strings.Contains(string(out), c.want) {
			t.Errorf("%s: %v: %s", c.name, err, out)
		}
	}
}

// follow starts the engine program for a worker of the given process id, and returns its first line: the handshake when
// it serves.
func follow(t *testing.T, bin, lib, parent string) (cmd *exec.Cmd, line string) {
	t.Helper()
	cmd = exec.Command(bin, "--lib", lib)
	h := host.Handshake
	cmd.Env = append(os.Environ(), h.MagicCookieKey+"="+h.MagicCookieValue, "PLUGIN_PROTOCOL_VERSIONS=1",
		"PLUGIN_UNIX_SOCKET_DIR="+t.TempDir(), host.ParentPIDVariable+"="+parent)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	first := make([]byte, 256)
	n, _ := out.Read(first) // nothing when it ended without a word
	return cmd, string(first[:n])
}

// TestOrphan: the engine program ends when its worker has died.
func TestOrphan(t *testing.T) {
	lib, _ := files(t)
	bin := build(t)
	worker := exec.Command("sleep", "3600")
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	cmd, line := follow(t, bin, lib, strconv.Itoa(worker.Process.Pid))
	if !strings.Contains(line, "|unix|") {
		t.Fatalf("%q", line)
	}
	if err := worker.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = worker.Wait()
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != program.ExitOrphaned {
		t.Errorf("ended with %v", cmd.ProcessState)
	}
}

// TestParent: a worker may be process 1, that of a container; what is no process id is refused.
func TestParent(t *testing.T) {
	lib, _ := files(t)
	bin := build(t)
	for pid, ok := range map[string]bool{"1": true, "0": false, "-1": false, "x": false} {
		cmd, line := follow(t, bin, lib, pid)
		if serves := strings.Contains(line, "|unix|"); serves != ok {
			t.Errorf("parent %s: serves %t, want %t: %q", pid, serves, ok, line)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}
