package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/tests/cluster"
)

// TestEveryWorkerKeepsDigests: with --cache-dir, and without a home, every worker keeps the digest of its model there,
// so that the next start need not hash it.
func TestEveryWorkerKeepsDigests(t *testing.T) {
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	for program, model := range map[string]string{"worker-target": "tandem-tiny-target-q4_k_m.gguf",
		"worker-draft": "tandem-tiny-draft-q8_0.gguf", "worker-prefill": "tandem-tiny-prefill-q8_0.gguf"} {
		dir := t.TempDir()
		s := run(t, []string{"HOME=", "XDG_CACHE_HOME="}, nil, program, "--model", filepath.Join(root, "models", model),
			"--listen", "unix://"+filepath.Join(dir, "s"), "--max-ctx", "512", "--threads", "1", "--lanes", "1",
			"--cache-dir", filepath.Join(dir, "cache"))
		eventually(t, program+" is up", func() bool { return strings.Contains(s.log.String(), "worker is up") })
		kept, err := os.ReadDir(filepath.Join(dir, "cache", "digests"))
		if err != nil || len(kept) == 0 || strings.Contains(s.log.String(), "hashed at every start") {
			t.Errorf("%s keeps %v, %v:\n%s", program, kept, err, s.log)
		}
	}
}
