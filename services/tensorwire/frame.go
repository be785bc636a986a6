package tensorwire

import (
	"sync"

	"google.golang.org/grpc/mem"
)

// frame is the memory of one outgoing message: header, buffer list and the payload's slices. It lives from Marshal
// until gRPC has freed the last buffer, and is used again. gRPC frees the buffers of a slice in order, every holder of
// the slice for itself, so when the last buffer's count drops to zero nobody looks at the slice any more.
type frame struct {
	header   []byte
	parts    Parts
	bufs     mem.BufferSlice
	released func()
}

// poolable is the capacity below which mem.NewBuffer would make a buffer that is not counted.
const poolable = 1<<10 + 1

var frames = sync.Pool{New: func() any { return &frame{header: make([]byte, 0, 4096)} }}

// borrowed is the pool of buffers whose memory belongs to somebody else.
type borrowed struct{}

func (borrowed) Get(n int) *[]byte { b := make([]byte, n); return &b }
func (borrowed) Put(*[]byte)       {}

var borrow mem.BufferPool = borrowed{}

// slice hands the frame to gRPC.
func (f *frame) slice(released func()) mem.BufferSlice {
	f.released = released
	parts := f.parts.list
	if len(parts) == 1 && cap(parts[0]) >= poolable {
		f.bufs = append(f.bufs, mem.NewBuffer(&f.header, borrow), mem.NewBuffer(&parts[0], f))
		return f.bufs
	}
	last := 0 // index of the last part that is passed by reference, plus one
	for i := range parts {
		if cap(parts[i]) >= poolable {
			last = i + 1
		}
	}
	if last == 0 { // a small payload travels in the header
		for _, p := range parts {
			f.header = append(f.header, p...)
		}
		f.bufs = append(f.bufs, mem.NewBuffer(&f.header, f))
		return f.bufs
	}
	bufs := append(f.bufs, mem.NewBuffer(&f.header, borrow))
	for i := range last - 1 {
		bufs = append(bufs, mem.NewBuffer(&parts[i], borrow)) // a small one costs an allocation here: it is not counted
	}
	if last == len(parts) {
		bufs = append(bufs, mem.NewBuffer(&parts[last-1], f))
	} else {
		bufs = append(bufs, mem.NewBuffer(&parts[last-1], borrow), mem.NewBuffer(join(parts[last:]), f))
	}
	f.bufs = bufs
	return bufs
}

// join copies the small parts after the last large one into one counted buffer.
func join(parts [][]byte) *[]byte {
	t := make([]byte, 0, poolable)
	for _, p := range parts {
		t = append(t, p...)
	}
	return &t
}

// Get makes a frame a mem.BufferPool; nothing gets from it.
func (f *frame) Get(n int) *[]byte { return borrow.Get(n) }

// Put is called when the last buffer is freed.
func (f *frame) Put(*[]byte) {
	if f.released != nil {
		f.released()
	}
	f.drop()
}

// maxKept… bound what an unusual message leaves behind in the pool.
const (
	maxKeptHeader = 1 << 20
	maxKeptParts  = 64
)

func (f *frame) drop() {
	if cap(f.header) > maxKeptHeader || cap(f.parts.list) > maxKeptParts {
		return
	}
	for i := 0; i < len(f.parts.list); i++ { // clear costs a call, for one or two
		f.parts.list[i] = nil
	}
	f.parts.list, f.parts.bytes, f.released = f.parts.list[:0], 0, nil
	f.bufs = f.bufs[:0] // what stays in it is gRPC's, for its next message
	frames.Put(f)
}
