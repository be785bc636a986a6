package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// maxFolders bounds the processes that share a setting.
const maxFolders = 64

// temporaryPrefix begins the names of files that are being written.
const temporaryPrefix = "tmp-"

// folder is a subfolder that this process has locked.
type folder struct {
	path string
	lock *os.File
}

// errLocked says that another process has the folder.
var errLocked = errors.New("locked by another process")

// takeFolder locks a subfolder of dir: first one that a worker of the same model left, then any that is left, then a
// new one.
func takeFolder(dir, owner string) (*folder, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	own := func(path string) bool {
		text, err := os.ReadFile(filepath.Join(path, "model"))
		return err == nil && string(text) == owner
	}
	for _, mine := range []bool{true, false} {
		for i := 1; i <= maxFolders; i++ {
			path := filepath.Join(dir, strconv.Itoa(i))
			if mine != own(path) {
				continue
			}
			f, err := lockFolder(path)
			if errors.Is(err, errLocked) {
				continue
			}
			if err != nil {
				return nil, err
			}
			return f, os.WriteFile(filepath.Join(path, "model"), []byte(owner), 0o600)
		}
	}
	return nil, fmt.Errorf("%d processes have all folders in %s", maxFolders, dir)
}

func lockFolder(path string) (*folder, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(path, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errLocked
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return &folder{path: path, lock: lock}, nil
}

// close ends the lock.
func (f *folder) close() { _ = f.lock.Close() }
