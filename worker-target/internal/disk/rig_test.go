package disk

import (
	"bytes"
	"context"
	"encoding/binary"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/engine/enginetest"
)

// rig is an engine whose states are written, and what they are compared with.
type rig struct {
	t   testing.TB
	ctx context.Context
	e   engine.Target
}

func newRig(t testing.TB) *rig {
	t.Helper()
	return newWindowRig(t, 0)
}

// newWindowRig is newRig with an engine of an attention window.
func newWindowRig(t testing.TB, window int) *rig {
	t.Helper()
	r := &rig{t: t, ctx: context.Background(), e: openFake(t, window)}
	t.Cleanup(func() { _ = r.e.Close() })
	return r
}

// openFake opens an engine; all of a window are of one model.
func openFake(t testing.TB, window int) engine.Target {
	t.Helper()
	o := enginetest.TargetOptions()
	o.MaxSequences, o.MaxContext, o.MaxBatchRows, o.AttentionWindow = 8, 2048, 512, window
	e, err := enginefake.New(enginefake.Options{Context: 2048}).OpenTarget(context.Background(), o, nil)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func (r *rig) ok(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// read makes a sequence of a text.
func (r *rig) read(text []int32) engine.Sequence {
	r.t.Helper()
	q, err := r.e.NewSequence(r.ctx)
	r.ok(err)
	at := 0
	for part := range slices.Chunk(text, 512) {
		rows := make([]engine.Row, len(part))
		for i, t := range part {
			rows[i] = engine.Row{Token: t, Position: int32(at + i), Parent: int32(i - 1), Mask: -1}
		}
		at += len(part)
		step := &engine.Step{Groups: []engine.Group{{Sequence: q, Rows: len(rows), Commit: true}}, Rows: rows}
		r.ok(r.e.Step(r.ctx, step, &engine.StepResult{}))
	}
	return q
}

// logits are those of the first new row of a sequence.
func (r *rig) logits(q engine.Sequence) []float32 {
	r.t.Helper()
	n, err := r.e.SequenceLength(r.ctx, q)
	r.ok(err)
	out := &engine.StepResult{}
	r.ok(r.e.Step(r.ctx, &engine.Step{
		Groups: []engine.Group{{Sequence: q, Rows: 1}},
		Rows:   []engine.Row{{Token: 3, Position: int32(n), Parent: -1, Mask: -1, Want: engine.WantLogits}},
	}, out))
	return slices.Clone(out.Logits)
}

// snapshot makes one of a text.
func (r *rig) snapshot(text []int32) engine.Snapshot {
	r.t.Helper()
	q := r.read(text)
	p, err := r.e.NewSnapshot(r.ctx, q)
	r.ok(err)
	r.ok(r.e.FreeSequence(r.ctx, q))
	return p
}

// draft is that of a snapshot of a text.
func (r *rig) draft(p engine.Snapshot, space string, text []int32, rows *Rows) *Draft {
	r.t.Helper()
	l, err := r.e.DescribeSnapshot(r.ctx, p)
	r.ok(err)
	return &Draft{Space: space, Tokens: text, Layout: l, Rows: rows,
		Read: func(at engine.Part, data []byte) (uint32, error) { return r.e.ReadSnapshot(r.ctx, p, at, data) }}
}

// write writes the state of a text.
func (r *rig) write(s *Store, space string, text []int32, rows *Rows) error {
	r.t.Helper()
	p := r.snapshot(text)
	defer func() { r.ok(r.e.FreeSnapshot(r.ctx, p)) }()
	return s.Write(r.ctx, r.draft(p, space, text, rows))
}

// same compares a snapshot with its text read cold: the logits of the first new row, bit for bit.
func (r *rig) same(p engine.Snapshot, text []int32) {
	r.t.Helper()
	q, err := r.e.NewSequence(r.ctx)
	r.ok(err)
	r.ok(r.e.RestoreSnapshot(r.ctx, p, q))
	cold := r.read(text)
	if got, want := floatBytes(r.logits(q)), floatBytes(r.logits(cold)); !bytes.Equal(got, want) {
		r.t.Fatalf("a state of %d tokens is another one", len(text))
	}
	r.ok(r.e.FreeSequence(r.ctx, q))
	r.ok(r.e.FreeSequence(r.ctx, cold))
	r.ok(r.e.FreeSnapshot(r.ctx, p))
}

func floatBytes(f []float32) []byte {
	b, _ := binary.Append(nil, binary.LittleEndian, f)
	return b
}

func all(int) bool { return true }

// load finds the longest state of a text, compares it with the text read cold and returns its length and rows. A miss
// has length 0.
func (r *rig) load(s *Store, space string, text []int32, base engine.Snapshot, baseLength int) (int, *Rows, error) {
	r.t.Helper()
	st := s.Find(r.ctx, space, text, baseLength, all)
	if st == nil {
		return 0, nil, nil
	}
	defer st.Close()
	p, rows, err := st.Load(r.ctx, r.e, base, baseLength)
	if err != nil {
		return 0, nil, err
	}
	r.same(p, text[:st.Length()])
	return st.Length(), rows, nil
}

func openStore(t testing.TB, dir string, budget uint64) *Store {
	t.Helper()
	s, err := Open(Config{Dir: dir, Budget: budget, Owner: "model"})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// text of n random tokens.
func text(r *rand.Rand, n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(r.IntN(60))
	}
	return out
}

// rowsUpTo are rows of 6 bytes of positions from first on, each different.
func rowsUpTo(kind string, first, length int) *Rows {
	r := &Rows{Kind: kind, Width: 6, First: first}
	for at := first; at < length; at += page {
		var data []byte
		for p := at; p < min(at+page, length); p++ {
			data = append(data, kind[0], kind[1], byte(p), byte(p>>8), 0, 1)
		}
		r.Pages = append(r.Pages, data)
	}
	return r
}

// files lists those of states and their sizes.
func files(t testing.TB, dir string) map[string]int64 {
	t.Helper()
	out := map[string]int64{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == "lock" || d.Name() == "model" {
			return err
		}
		info, err := d.Info()
		if err == nil {
			out[path] = info.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// kept compares what a store counts with what is there, and with its budget.
func kept(t testing.TB, s *Store, dir string) {
	t.Helper()
	var bytes uint64
	for _, n := range files(t, dir) {
		bytes += uint64(n)
	}
	if got := s.Stats().Bytes; got != bytes || bytes > s.cfg.Budget {
		t.Fatalf("%d bytes are counted, %d are there, the budget is %d", got, bytes, s.cfg.Budget)
	}
}

// flip changes one bit of a file.
func flip(t testing.TB, path string, at int64, bit int) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := []byte{0}
	if _, err := f.ReadAt(b, at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1 << bit
	if _, err := f.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
}
