package supervise

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

const runDirPrefix = "tandem-"

// RunDir makes the private directory (0700) that holds the sockets of a local cluster, and removes directories that
// clusters killed earlier have left. The caller removes it at the end.
func RunDir() (string, error) {
	base := os.TempDir()
	sweep(base)
	// The pid comes first, so that a later start can see whether the owner still lives.
	dir, err := os.MkdirTemp(base, fmt.Sprintf("%s%d-", runDirPrefix, os.Getpid()))
	if err != nil {
		return "", fmt.Errorf("directory for sockets: %w", err)
	}
	return dir, nil
}

// sweep removes our user's directories whose process is gone.
func sweep(base string) {
	paths, _ := filepath.Glob(filepath.Join(base, runDirPrefix+"*-*"))
	for _, path := range paths {
		text, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(path), runDirPrefix), "-")
		pid, err := strconv.Atoi(text)
		if err != nil {
			continue
		}
		info, err := os.Lstat(path)
		if err != nil || !info.IsDir() {
			continue
		}
		if stat, ok := info.Sys().(*syscall.Stat_t); !ok || int(stat.Uid) != os.Getuid() {
			continue
		}
		if err := syscall.Kill(pid, 0); err == syscall.ESRCH {
			_ = os.RemoveAll(path)
		}
	}
}
