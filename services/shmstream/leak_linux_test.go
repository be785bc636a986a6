package shmstream

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

// mappings counts the regions that this process has mapped or holds open.
func mappings(t testing.TB) int {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	n := bytes.Count(maps, []byte("memfd:tandem-stream"))
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if to, err := os.Readlink("/proc/self/fd/" + f.Name()); err == nil && strings.Contains(to, "memfd:tandem-stream") {
			n++
		}
	}
	return n
}
