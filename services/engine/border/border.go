// Package border holds hidden rows where two engine processes of one host and their worker all see them: the engine of
// a stage writes its rows there and that of the next reads them, so that they are copied by nobody.
//
// Whoever runs the stages makes a Region for each border, takes a slot of it for each step on its way, and passes it as
// StepResult.HiddenOut to one engine and as Step.HiddenIn to the next. Engines that were told of the region (Sharer)
// send its place instead of its bytes.
package border

import (
	"context"
	"sync"
	"unsafe"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/shmem"
)

// Sharer is an engine that can share regions with others.
type Sharer interface {
	// ShareRows tells the engine of the regions of its hidden rows: in holds those that it gets, out those that it
	// makes; nil = there is none. After an error rows are sent as before.
	ShareRows(ctx context.Context, in, out *Region) error
}

// Forwarder is an engine elsewhere that can hand its hidden rows to the engine of the next stage itself.
type Forwarder interface {
	// ForwardRows links the engine with that of the next stage: the rows of a step with RowsTo go straight to the step
	// with the same RowsFrom there. Numbers ascend. errors.ErrUnsupported: next is of another kind; after any error rows
	// come back as before.
	ForwardRows(ctx context.Context, next engine.Target) error
}

// align is what slots begin at multiples of, in bytes: a line of a processor's cache.
const align = 64

// Region is memory that processes share, in slots. Its methods are safe for concurrent use.
type Region struct {
	file  *shmem.File
	name  string  // of a region of another process; empty = it is this one's
	begin uintptr // where it is mapped
	bytes uintptr
	room  int // bytes of a slot

	mu   sync.Mutex // guards free
	free [][]byte
}

// New makes a region of slots of so many bytes. Only what is written to is ever memory.
func New(slots, bytes int) (*Region, error) {
	room := (bytes + align - 1) / align * align
	f, err := shmem.New("tandem-rows", align+slots*room)
	if err != nil {
		return nil, err
	}
	r := mapped(f)
	r.room = room
	for i := range slots {
		at := align + i*room
		r.free = append(r.free, f.Memory[at:at:at+room])
	}
	return r, nil
}

// Open maps the region of another process.
func Open(name string, bytes int) (*Region, error) {
	f, err := shmem.Open(name, bytes)
	if err != nil {
		return nil, err
	}
	r := mapped(f)
	r.name = name
	return r, nil
}

func mapped(f *shmem.File) *Region {
	return &Region{file: f, begin: uintptr(unsafe.Pointer(unsafe.SliceData(f.Memory))), bytes: uintptr(len(f.Memory))}
}

// Name and size for Open in another process, until its maker hides it.
func (r *Region) Name() (name string, bytes int) {
	if r.name != "" {
		return r.name, int(r.bytes)
	}
	return r.file.Name(), int(r.bytes)
}

// Hide keeps further processes from opening the region.
func (r *Region) Hide() { r.file.Hide() }

// Take returns an empty slot with its room as capacity; nil when all are taken.
func (r *Region) Take() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(r.free)
	if n == 0 {
		return nil
	}
	slot := r.free[n-1]
	r.free = r.free[:n-1]
	return slot
}

// Place returns where the bytes lie in the region, the capacity included; false when they lie elsewhere.
func (r *Region) Place(b []byte) (at uint64, ok bool) {
	if r == nil || cap(b) == 0 {
		return 0, false
	}
	first := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	if first < r.begin || first-r.begin+uintptr(cap(b)) > r.bytes {
		return 0, false
	}
	return uint64(first - r.begin), true
}

// At returns bytes of the region; false when there are no such bytes, as what a peer names may be.
func (r *Region) At(at, bytes uint64) ([]byte, bool) {
	if r == nil || at < align || at > uint64(len(r.file.Memory)) || bytes > uint64(len(r.file.Memory))-at {
		return nil, false
	}
	return r.file.Memory[at : at+bytes : at+bytes], true
}

// Close unmaps the region. Nobody touches it, or what was taken of it, any more.
func (r *Region) Close() {
	if r != nil {
		r.file.Close()
	}
}
