package shmstream

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
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// pipeBytes is the room of one direction; longer messages pass through in pieces. It holds the hidden rows of a step
	// of the largest models, and only what messages fill is ever memory: see rewound.
	pipeBytes = 2 << 20
	// headBytes before the pipes hold the region's words.
	headBytes   = 4096
	regionBytes = headBytes + 2*pipeBytes
	nonceBytes  = 16
	seals       = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
)

// region is a mapped memory file: the words of two pipes, then their bytes. Pipe 0 is the client's to the server.
type region struct {
	memory []byte
	fd     int // of the maker, until the peer has mapped it; -1 = closed
	nonce  [nonceBytes]byte
}

// layout is the beginning of a region.
type layout struct {
	nonce [nonceBytes]byte
	_     [64 - nonceBytes]byte
	pipes [2]words
}

// newRegion makes a memory file that cannot change its size, so that no peer can make the mapping fault.
func newRegion() (*region, error) {
	fd, err := unix.MemfdCreate("tandem-stream", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, err
	}
	r := &region{fd: fd}
	if err = unix.Ftruncate(fd, regionBytes); err == nil {
		if _, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err == nil {
			r.memory, err = unix.Mmap(fd, 0, regionBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		}
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	_, _ = rand.Read(r.nonce[:]) // never fails
	r.layout().nonce = r.nonce
	return r, nil
}

// name tells a peer how to find the region.
func (r *region) name() string {
	return fmt.Sprintf("%d:%d:%s", os.Getpid(), r.fd, hex.EncodeToString(r.nonce[:]))
}

var namePattern = regexp.MustCompile(`^[1-9][0-9]{0,9}:[0-9]{1,9}:[0-9a-f]{32}$`)

var errNotOurs = errors.New("not a region of this host")

// openRegion maps the region of a peer. The name comes from the network: only a sealed file of the right size that
// holds the random number is taken, so what was found is what the peer made.
func openRegion(name string) (*region, error) {
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
		stat.Size != regionBytes {
		return nil, errNotOurs
	}
	r := &region{fd: -1}
	if r.memory, err = unix.Mmap(fd, 0, regionBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, err
	}
	if want, _ := hex.DecodeString(parts[2]); subtle.ConstantTimeCompare(r.layout().nonce[:], want) != 1 {
		r.unmap()
		return nil, errNotOurs
	}
	return r, nil
}

func (r *region) layout() *layout { return (*layout)(unsafe.Pointer(unsafe.SliceData(r.memory))) }

// pipe returns a direction's ring.
func (r *region) pipe(i int) pipe {
	return pipe{words: &r.layout().pipes[i], data: r.memory[headBytes+i*pipeBytes:][:pipeBytes]}
}

// hide closes the descriptor: nobody else can map the region any more.
func (r *region) hide() {
	if r.fd >= 0 {
		_ = unix.Close(r.fd)
		r.fd = -1
	}
}

func (r *region) unmap() {
	r.hide()
	_ = unix.Munmap(r.memory)
	r.memory = nil
}
