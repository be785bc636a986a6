//go:build unix

package transfer

import "golang.org/x/sys/unix"

// FreeBytes returns the bytes that a user may still write to the disk of dir.
func FreeBytes(dir string) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, err
	}
	return int64(min(s.Bavail, 1<<40)) * s.Bsize, nil
}
