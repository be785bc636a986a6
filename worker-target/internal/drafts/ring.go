package drafts

import "sync"

// Ring keeps the features of the newest positions of a sequence, so that a draft that comes (back) in the middle of a
// request can be given its context again. Rows are appended by the decode loop and read by the sender; memory grows to
// capacity rows and stays there.
type Ring struct {
	mu       sync.Mutex
	width    int // bytes per row
	capacity int // rows
	data     []byte
	first    int // position of the oldest row kept
	next     int // position after the newest row
}

// NewRing returns a ring of at most capacity rows.
func NewRing(capacity int) *Ring { return &Ring{capacity: capacity} }

// Reset empties the ring for rows of width bytes, of which the first will be that of position.
func (r *Ring) Reset(width, position int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if width != r.width {
		r.width, r.data = width, nil
	}
	r.first, r.next = position, position
}

// Append adds the row of the next position.
func (r *Ring) Append(row []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.append(row)
}

func (r *Ring) append(row []byte) {
	slot := r.next % r.capacity
	if end := (slot + 1) * r.width; len(r.data) < end {
		// Slots are positions modulo the capacity, so a ring that starts in the middle of a prompt may need a late slot
		// first: then it is allocated whole.
		size := min(max(2*end, 64*r.width), r.capacity*r.width)
		grown := make([]byte, size)
		copy(grown, r.data)
		r.data = grown
	}
	copy(r.data[slot*r.width:(slot+1)*r.width], row)
	r.next++
	r.first = max(r.first, r.next-r.capacity)
}

// AppendRows adds rows [0, n) of data, each of the ring's width.
func (r *Ring) AppendRows(data []byte, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range n {
		r.append(data[i*r.width : (i+1)*r.width])
	}
}

// AppendPath adds the rows of data that path names, in its order.
func (r *Ring) AppendPath(data []byte, path []int32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, i := range path {
		r.append(data[int(i)*r.width : (int(i)+1)*r.width])
	}
}

// Span is the range of positions that the ring holds.
func (r *Ring) Span() (first, next int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.first, r.next
}

// Copy appends to dst up to n rows from position on. ok is false when the ring no longer holds them.
func (r *Ring) Copy(dst []byte, position, n int) (out []byte, rows int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if position < r.first {
		return dst, 0, false
	}
	rows = max(0, min(n, r.next-position))
	for i := range rows {
		slot := (position + i) % r.capacity
		dst = append(dst, r.data[slot*r.width:(slot+1)*r.width]...)
	}
	return dst, rows, true
}
