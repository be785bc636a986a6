//go:build unix

package transfer

import "golang.org/x/sys/unix"

// free returns the bytes that a user may still write to the disk of dir; ok is false when that cannot be told.
func free(dir string) (bytes int64, ok bool) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, false
	}
	return int64(min(s.Bavail, 1<<40)) * s.Bsize, true
}
