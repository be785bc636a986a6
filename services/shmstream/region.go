package shmstream

import (
	"unsafe"

	"github.com/tandem-inference/tandem/services/shmem"
)

const (
	// pipeBytes is the room of one direction; longer messages pass through in pieces. It holds the hidden rows of a step
	// of the largest models, and only what messages fill is ever memory: see rewound.
	pipeBytes = 2 << 20
	// headBytes before the pipes hold the region's words.
	headBytes   = 4096
	regionBytes = headBytes + 2*pipeBytes
)

// region is a memory file: the words of two pipes, then their bytes. Pipe 0 is the client's to the server.
type region struct{ *shmem.File }

// layout is the beginning of a region.
type layout struct {
	_     [64]byte // begins with the random number of the file
	pipes [2]words
}

func newRegion() (*region, error) {
	f, err := shmem.New("tandem-stream", regionBytes)
	return &region{f}, err
}

// openRegion maps the region of a peer.
func openRegion(name string) (*region, error) {
	f, err := shmem.Open(name, regionBytes)
	return &region{f}, err
}

func (r *region) layout() *layout { return (*layout)(unsafe.Pointer(unsafe.SliceData(r.Memory))) }

// pipe returns a direction's ring.
func (r *region) pipe(i int) pipe {
	return pipe{words: &r.layout().pipes[i], data: r.Memory[headBytes+i*pipeBytes:][:pipeBytes]}
}
