package drafts

import (
	"bytes"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestRing compares the ring with a plain list of rows.
func TestRing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const width = 3
		capacity := rapid.IntRange(1, 200).Draw(t, "capacity")
		first := rapid.IntRange(0, 500).Draw(t, "first")
		r := NewRing(capacity)
		r.Reset(width, first)
		var all []byte // rows from position first on
		next := byte(0)
		for range rapid.IntRange(1, 20).Draw(t, "batches") {
			n := rapid.IntRange(0, 60).Draw(t, "rows")
			var data []byte
			var path []int32
			for i := range n {
				next++
				data = append(data, next, next^0x55, byte(i))
				path = append(path, int32(i))
			}
			if rapid.Bool().Draw(t, "path") {
				r.AppendPath(data, path)
			} else {
				r.AppendRows(data, n)
			}
			all = append(all, data...)
			oldest, end := r.Span()
			if want := first + len(all)/width; end != want || oldest != max(first, want-capacity) {
				t.Fatalf("span [%d, %d), %d rows after %d with capacity %d", oldest, end, len(all)/width, first, capacity)
			}
			at := rapid.IntRange(first, end).Draw(t, "at")
			ask := rapid.IntRange(0, 80).Draw(t, "ask")
			got, rows, ok := r.Copy(nil, at, ask)
			if ok != (at >= oldest) {
				t.Fatalf("copy from %d of [%d, %d): %v", at, oldest, end, ok)
			}
			if want := all[(at-first)*width:]; ok && (rows != min(ask, end-at) || !bytes.Equal(got, want[:rows*width])) {
				t.Fatalf("copy from %d: %d rows differ", at, rows)
			}
		}
	})
}
