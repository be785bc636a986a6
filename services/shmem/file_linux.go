package shmem

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// File is a mapped memory file.
type File struct {
	Memory []byte // nil after Close
	fd     int    // of the maker, until it is hidden; -1 = closed
	nonce  [NonceBytes]byte
}

const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// New makes a file that cannot change its size, so that no peer can make the mapping fault. Memory that is never
// touched costs nothing. The label shows in /proc/PID/maps.
func New(label string, bytes int) (*File, error) {
	fd, err := unix.MemfdCreate(label, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, err
	}
	f := &File{fd: fd}
	if err = unix.Ftruncate(fd, int64(bytes)); err == nil {
		if _, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err == nil {
			f.Memory, err = unix.Mmap(fd, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		}
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	_, _ = rand.Read(f.nonce[:]) // never fails
	copy(f.Memory, f.nonce[:])
	return f, nil
}

// Name tells a peer how to find the file, until Hide.
func (f *File) Name() string {
	return fmt.Sprintf("%d:%d:%s", os.Getpid(), f.fd, hex.EncodeToString(f.nonce[:]))
}

var namePattern = regexp.MustCompile(`^[1-9][0-9]{0,9}:[0-9]{1,9}:[0-9a-f]{32}$`)

var errNotOurs = errors.New("not a memory file of this host")

// Open maps the file of a peer, which has so many bytes.
func Open(name string, bytes int) (*File, error) {
	if !namePattern.MatchString(name) {
		return nil, errNotOurs
	}
	parts := strings.Split(name, ":")
	pid, err := strconv.Atoi(parts[0])
	if err != nil {
		return nil, errNotOurs
	}
	// O_NONBLOCK: whatever else the name leads to is not waited for.
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/fd/%s", pid, parts[1]), unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return nil, err
	}
	if has, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err != nil || has&seals != seals ||
		stat.Size != int64(bytes) || bytes < NonceBytes {
		return nil, errNotOurs
	}
	f := &File{fd: -1}
	if f.Memory, err = unix.Mmap(fd, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, err
	}
	if want, _ := hex.DecodeString(parts[2]); subtle.ConstantTimeCompare(f.Memory[:NonceBytes], want) != 1 {
		f.Close()
		return nil, errNotOurs
	}
	return f, nil
}

// Hide closes the descriptor: nobody else can map the file any more.
func (f *File) Hide() {
	if f.fd >= 0 {
		_ = unix.Close(f.fd)
		f.fd = -1
	}
}

// Close unmaps the file. Nobody touches Memory any more.
func (f *File) Close() {
	f.Hide()
	_ = unix.Munmap(f.Memory)
	f.Memory = nil
}
