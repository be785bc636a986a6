package device

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]Name{
		"cpu": {Backend: "cpu"}, "cuda": {Backend: "cuda"}, "cuda:0": {Backend: "cuda"},
		"hip:12": {Backend: "hip", Index: 12},
	} {
		got, err := Parse(text)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "cpu:0", "CUDA:0", "cuda:", "cuda:-1", "cuda:12345", "hip:0:1", "../x", "rocm 0",
		"gpu", "gpu:0", "nvidia", "rocm:1"} {
		if d, err := Parse(text); err == nil || !strings.Contains(err.Error(), "cuda:N") {
			t.Errorf("%q passed as %+v, or the error lists no devices: %v", text, d, err)
		}
	}
	for _, text := range []string{"cpu", "hip:1"} {
		if d, _ := Parse(text); d.String() != text {
			t.Errorf("%s became %s", text, d)
		}
	}
}

func TestFindLibrary(t *testing.T) {
	dir := t.TempDir()
	if _, err := FindLibrary(dir, Name{Backend: "cuda"}); err == nil ||
		!strings.Contains(err.Error(), "no engine library at all") {
		t.Errorf("an empty folder: %v", err)
	}
	for _, name := range []string{"libtandem_cpu.so", "libtandem_hip.so", "libother.so"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if path, err := FindLibrary(dir, Name{Backend: "hip", Index: 1}); err != nil ||
		path != filepath.Join(dir, "libtandem_hip.so") {
		t.Errorf("%q, %v", path, err)
	}
	_, err := FindLibrary(dir, Name{Backend: "cuda", Index: 2})
	for _, want := range []string{"cuda:2", "libtandem_cuda.so", "cpu, hip", "make build-cuda"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q: %v", want, err)
		}
	}
}
