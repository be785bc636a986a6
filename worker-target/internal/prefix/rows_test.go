package prefix

import (
	"bytes"
	"testing"
)

// ring is a source of rows of two bytes, of positions first to next-1.
type ring struct{ first, next int }

func (r ring) Span() (first, next int) { return r.first, r.next }

func (r ring) Copy(dst []byte, position, n int) ([]byte, int, bool) {
	if position < r.first {
		return dst, 0, false
	}
	n = min(n, r.next-position)
	for i := range n {
		dst = append(dst, byte(position+i), byte((position+i)>>8))
	}
	return dst, n, true
}

// read returns the rows and where they begin.
func read(r *Rows) (first int, all []byte) {
	r.Pages(func(data []byte, rows int) {
		if len(data) != 2*rows {
			panic("a page is not full rows")
		}
		all = append(all, data...)
	})
	return r.First(), all
}

func TestRowsAreKept(t *testing.T) {
	for _, v := range []struct{ first, next, length, want int }{
		{0, 200, 200, 0}, {64, 200, 200, 64}, {65, 200, 200, 128}, {0, 10, 10, 0},
		{0, 199, 200, -1}, {0, 201, 200, -1}, {150, 190, 190, -1},
	} {
		r := collect(Features{ring{v.first, v.next}, "kind", 2}, v.length, nil)
		if v.want < 0 {
			if r != nil {
				t.Errorf("%+v gives rows from %d on", v, r.First())
			}
			continue
		}
		first, got := read(r)
		want, _, _ := ring{0, 1 << 20}.Copy(nil, v.want, v.length-v.want)
		if first != v.want || !bytes.Equal(got, want) {
			t.Errorf("%+v gives %d bytes from %d on, want %d", v, len(got), first, len(want))
		}
	}
	if r := collect(Features{}, 10, nil); r != nil {
		t.Error("no source gives rows")
	}
}

// TestRowsAreShared: entries of one conversation hold their common pages once.
func TestRowsAreShared(t *testing.T) {
	c, m := newCache(t, roomy)
	text := numbers(0, 1000)
	put := func(length int, from int, kind string) *Entry {
		t.Helper()
		m.sequences[1] = text[:length]
		e, made := c.Save("", text[:length], 1, Features{ring{from, length}, kind, 2})
		if !made {
			t.Fatalf("%d tokens are not stored", length)
		}
		return e
	}
	of := func(rows int) uint64 { return uint64(2 * rows) }
	base := func(entries, tokens int) uint64 { return uint64(entries*stateBytes + tokens*100) }
	expect := func(what string, want uint64) {
		t.Helper()
		if got := c.Stats().Bytes; got != want {
			t.Errorf("%s: %d bytes, want %d", what, got, want)
		}
	}
	a := put(100, 0, "kind")
	expect("one entry", base(1, 100)+of(100))
	b := put(300, 0, "kind")
	// Of the first entry's pages only the full one is shared.
	expect("a longer one", base(2, 300)+of(100)+of(300-64))
	other := put(400, 0, "other kind")
	expect("one for another draft", base(3, 400)+of(100)+of(300-64)+of(400))
	d := put(500, 100, "kind")
	// The newest rows are those of another kind: nothing is shared.
	expect("one with later rows", base(4, 500)+of(100)+of(300-64)+of(400)+of(500-128))
	c.Drop(a)
	expect("without the first", base(3, 500)+of(300)+of(400)+of(500-128))
	for _, e := range []*Entry{b, other, d} {
		c.Drop(e)
	}
	expect("nothing", 0)
	if first, got := read(b.Rows()); first != 0 || len(got) != 600 {
		t.Errorf("rows from %d on, %d bytes", first, len(got))
	}
}
