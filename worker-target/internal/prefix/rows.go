package prefix

import "github.com/tandem-inference/tandem/worker-target/internal/disk"

// PageRows is the number of positions of a page of feature rows. Pages begin at its multiples.
const PageRows = 64

// Source supplies rows of features; *drafts.Ring is one.
type Source interface {
	// Span is the range of positions that it holds.
	Span() (first, next int)
	// Copy appends to dst up to n rows from position on; ok is false when it no longer holds them.
	Copy(dst []byte, position, n int) (out []byte, rows int, ok bool)
}

// Features is the source of an entry's rows; the zero value has none.
type Features struct {
	Source Source
	Kind   string // says what the rows are: they are of use only where the same kind is captured
	Width  int    // bytes per row
}

// Rows are rows of features of consecutive positions up to the length of an entry. They never change.
type Rows struct {
	Kind  string // that of Features
	Width int    // bytes per row
	first int    // position of the first row, a multiple of PageRows
	next  int
	pages []*page
}

// page is PageRows rows, or fewer at the end.
type page struct {
	data []byte
	refs int // entries that hold it, guarded by Cache.mu
}

// First is the position of the first row; the last is that before the entry's length.
func (r *Rows) First() int { return r.first }

// Pages calls f with the rows page by page, in order.
func (r *Rows) Pages(f func(data []byte, rows int)) {
	for _, p := range r.pages {
		f(p.data, len(p.data)/r.Width)
	}
}

// collect returns the rows of f up to length, as far as it has them and at whole pages, nil when it does not reach
// so far. Pages that base has, rows of a shorter prefix of the same text, are shared with it.
func collect(f Features, length int, base *Rows) *Rows {
	if f.Source == nil || f.Width <= 0 {
		return nil
	}
	first, next := f.Source.Span()
	first = (first + PageRows - 1) / PageRows * PageRows
	if next != length || first >= length {
		return nil
	}
	r := &Rows{Kind: f.Kind, Width: f.Width, first: first, next: length}
	for at := first; at < length; at += PageRows {
		if p := base.full(f.Kind, f.Width, at); p != nil {
			r.pages = append(r.pages, p)
			continue
		}
		n := min(PageRows, length-at)
		data, got, ok := f.Source.Copy(make([]byte, 0, n*f.Width), at, n)
		if !ok || got != n {
			return nil
		}
		r.pages = append(r.pages, &page{data: data})
	}
	return r
}

// stored is how the rows lie on disk. They never change.
func (r *Rows) stored() *disk.Rows {
	if r == nil {
		return nil
	}
	d := &disk.Rows{Kind: r.Kind, Width: r.Width, First: r.first}
	for _, p := range r.pages {
		d.Pages = append(d.Pages, p.data)
	}
	return d
}

// loaded makes rows up to length of those from disk.
func loaded(d *disk.Rows, length int) *Rows {
	if d == nil {
		return nil
	}
	r := &Rows{Kind: d.Kind, Width: d.Width, first: d.First, next: length}
	for _, data := range d.Pages {
		r.pages = append(r.pages, &page{data: data})
	}
	return r
}

// full returns the page of PageRows rows at a position, nil if there is none of the kind.
func (r *Rows) full(kind string, width, at int) *page {
	if r == nil || r.Kind != kind || r.Width != width || at < r.first || at+PageRows > r.next {
		return nil
	}
	return r.pages[(at-r.first)/PageRows]
}

// hold counts one more holder of the pages and returns the bytes of pages that had none.
func (r *Rows) hold() (bytes uint64) {
	if r == nil {
		return 0
	}
	for _, p := range r.pages {
		if p.refs++; p.refs == 1 {
			bytes += uint64(len(p.data))
		}
	}
	return bytes
}

// release counts one holder less and returns the bytes of pages that have none left.
func (r *Rows) release() (bytes uint64) {
	if r == nil {
		return 0
	}
	for _, p := range r.pages {
		if p.refs--; p.refs == 0 {
			bytes += uint64(len(p.data))
		}
	}
	return bytes
}

// fresh returns the bytes of pages without a holder.
func (r *Rows) fresh() (bytes uint64) {
	if r == nil {
		return 0
	}
	for _, p := range r.pages {
		if p.refs == 0 {
			bytes += uint64(len(p.data))
		}
	}
	return bytes
}
