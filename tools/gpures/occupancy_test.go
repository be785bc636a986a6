package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestFits: figures of the vendors' occupancy tables.
func TestFits(t *testing.T) {
	for _, c := range []struct {
		arch                                string
		registers, static, threads, dynamic int
		blocks                              int
		limit                               string
	}{
		{"sm_86", 32, 0, 256, 0, 6, "warps"},
		{"sm_86", 32, 0, 32, 0, 16, "blocks"},
		{"sm_86", 121, 0, 128, 0, 4, "registers"},
		{"sm_86", 168, 0, 128, 0, 3, "registers"},
		{"sm_86", 64, 0, 128, 101_376, 1, "shared"},
		{"sm_86", 64, 1, 128, 50_048, 2, "shared"},
		{"sm_86", 64, 0, 128, 50_177, 1, "shared"},
		{"gfx1100", 96, 0, 128, 0, 16, "warps"},
		{"gfx1100", 97, 0, 128, 0, 12, "registers"},
		{"gfx1100", 256, 0, 128, 0, 5, "registers"},
		{"gfx1100", 96, 0, 128, 65_536, 2, "shared"},
		{"gfx1100", 0, 0, 32, 0, 32, "blocks"},
	} {
		blocks, limit := processors[c.arch].fits(Kernel{Registers: c.registers, Shared: c.static},
			Launch{Threads: c.threads, Dynamic: c.dynamic})
		if blocks != c.blocks || limit != c.limit {
			t.Errorf("%+v: %d blocks by %s", c, blocks, limit)
		}
	}
}

// TestOccupancyFollows: the page of this repository follows from its table, and one that does not is told.
func TestOccupancyFollows(t *testing.T) {
	table, err := readTable("../../native/GPU_RESOURCES.tsv")
	if err != nil {
		t.Fatal(err)
	}
	const page = "../../native/GPU_OCCUPANCY.tsv"
	if err := table.checkOccupancy(page, nil, false); err != nil {
		t.Error(err)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for name, other := range map[string]string{
		"other figures": strings.Replace(string(text), "\tshared\n", "\twarps\n", 1),
		"no kernel":     strings.Replace(string(text), "\tmatmul_rows_kernel<", "\tmatmul_lines_kernel<", 1),
		"a column less": strings.Replace(string(text), "\tshared\n", "\n", 1),
		"no processor":  strings.Replace(string(text), "\nsm_86\t", "\nsm_99\t", 1),
	} {
		path := filepath.Join(t.TempDir(), "page.tsv")
		if err := os.WriteFile(path, []byte(other), 0o644); err != nil {
			t.Fatal(err)
		}
		if table.checkOccupancy(path, nil, false) == nil {
			t.Errorf("%s: passed", name)
		}
	}
}

// TestLaunchesOfProgram: what a program prints is read with the names of its own symbols, and what is no kernel's
// address is refused. The programs are built by the host's compiler.
func TestLaunchesOfProgram(t *testing.T) {
	program := func(offset string) string {
		return compile(t, `#include <cstdio>
extern "C" void tandem_launches_anchor() {}
namespace tnd { template <int N> void a_kernel(int) {} template void a_kernel<8>(int); }
int main() {
  for (int i = 0; i < 2; ++i)
    std::printf("out\t23\t%lld\t128\t4096\n", (long long)&tnd::a_kernel<8> - (long long)&tandem_launches_anchor + `+offset+`);
}`)
	}
	got, err := printed("sm_86", program("0"))
	if want := (Launch{"sm_86", "out", 23, "a_kernel<8>", 128, 4096}); err != nil || len(got) != 1 || got[0] != want {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := printed("sm_86", program("1")); err == nil || !strings.Contains(err.Error(), "no kernel") {
		t.Errorf("another address: %v", err)
	}
}

// compile makes a program of a C++ source.
func compile(t *testing.T, source string) string {
	t.Helper()
	compiler, err := exec.LookPath("c++")
	if err != nil {
		t.Skip("there is no C++ compiler")
	}
	path := filepath.Join(t.TempDir(), "program")
	cmd := exec.Command(compiler, "-x", "c++", "-", "-o", path)
	cmd.Stdin = strings.NewReader(source)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return path
}
