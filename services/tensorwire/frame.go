package tensorwire

import (
	"sync"

	"google.golang.org/grpc/mem"
)

// frame is the memory of one outgoing message: header, buffer list and the payload's slices. It lives from Marshal until
// gRPC has freed the last buffer, and is used again. gRPC frees the buffers of a slice in order, every holder of the slice
// for itself, so when the last buffer's count drops to zero nobody looks at the slice any more.
type frame struct {
	header   []byte
	parts    Parts
	bufs     [maxParts + 1]mem.Buffer
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

// slice hands the frame to gRPC with the first n parts.
func (f *frame) slice(n int, released func()) mem.BufferSlice {
	f.released = released
	list := f.bufs[:0]
	last := 0 // index of the last part that is passed by reference, plus one
	for i := range n {
		if cap(f.parts[i]) >= poolable && len(f.parts[i]) > 0 {
			last = i + 1
		}
	}
	if last == 0 { // a small payload travels in the header
		for i := range n {
			f.header = append(f.header, f.parts[i]...)
		}
		return append(list, mem.NewBuffer(&f.header, f))
	}
	list = append(list, mem.NewBuffer(&f.header, borrow))
	for i := range n {
		p := &f.parts[i]
		switch {
		case len(*p) == 0:
		case i == last-1:
			if tail := f.tail(last, n); tail != nil {
				list = append(list, mem.NewBuffer(p, borrow), mem.NewBuffer(tail, f))
			} else {
				list = append(list, mem.NewBuffer(p, f))
			}
		case i < last:
			list = append(list, mem.NewBuffer(p, borrow)) // a small one costs an allocation here: it is not counted
		}
	}
	return list
}

// tail joins the small parts after the last large one into one counted buffer.
func (f *frame) tail(from, n int) *[]byte {
	size := 0
	for i := from; i < n; i++ {
		size += len(f.parts[i])
	}
	if size == 0 {
		return nil
	}
	t := make([]byte, 0, max(size, poolable))
	for i := from; i < n; i++ {
		t = append(t, f.parts[i]...)
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

// maxKeptHeader bounds what an unusual message leaves behind in the pool.
const maxKeptHeader = 1 << 20

func (f *frame) drop() {
	if cap(f.header) > maxKeptHeader {
		return
	}
	f.parts, f.bufs, f.released = Parts{}, [maxParts + 1]mem.Buffer{}, nil
	frames.Put(f)
}
