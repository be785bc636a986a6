package prefix

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/engine/enginetest"
	"github.com/tandem-inference/tandem/services/prefixhash"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/testwait"
	"github.com/tandem-inference/tandem/worker-target/internal/disk"
)

// process is a worker's cache with files, and its engine.
type process struct {
	*testing.T
	c *Cache
	e engine.Target
}

// held is an engine whose reads of snapshots may be held up.
type held struct {
	engine.Target
	reading func() // nil = nothing
	shared  int    // pages of the last snapshot that was written
}

func (h *held) BeginSnapshot(
	ctx context.Context, l engine.SnapshotLayout, base engine.Snapshot, shared int,
) (engine.Snapshot, error) {
	h.shared = shared
	return h.Target.BeginSnapshot(ctx, l, base, shared)
}

func (h *held) ReadSnapshot(ctx context.Context, p engine.Snapshot, at engine.Part, data []byte) (uint32, error) {
	if h.reading != nil {
		h.reading()
	}
	return h.Target.ReadSnapshot(ctx, p, at, data)
}

func begin(t *testing.T, dir string, cfg Disk, slots int) *process {
	t.Helper()
	store, err := disk.Open(disk.Config{Dir: dir, Budget: 64 << 20, Owner: "model"})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Store = store
	o := enginetest.TargetOptions()
	o.MaxSequences, o.MaxContext, o.MaxBatchRows = 12, 2048, 512
	e, err := enginefake.New(enginefake.Options{Context: 2048}).OpenTarget(t.Context(), o, nil)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t, New(Config{Bytes: 1 << 30, Slots: slots, Disk: &cfg}), &held{Target: e}}
	p.c.Use(p.e)
	return p
}

// end ends the process.
func (p *process) end() {
	p.Helper()
	p.c.Close()
	p.c.Close() // as the worker does when it never came to serve
	h, err := p.e.Handles(context.Background())
	if err != nil || len(h.Snapshots) > 0 {
		p.Errorf("snapshots %v are left, %v", h.Snapshots, err)
	}
	p.ok(p.e.Close())
}

func (p *process) ok(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}

func (p *process) sequence() engine.Sequence {
	p.Helper()
	q, err := p.e.NewSequence(p.Context())
	p.ok(err)
	return q
}

// read commits a text.
func (p *process) read(q engine.Sequence, text []int32) {
	p.Helper()
	at, err := p.e.SequenceLength(p.Context(), q)
	p.ok(err)
	for part := range slices.Chunk(text, 512) {
		rows := make([]engine.Row, len(part))
		for i, t := range part {
			rows[i] = engine.Row{Token: t, Position: int32(at + i), Parent: int32(i - 1), Mask: -1}
		}
		at += len(part)
		step := &engine.Step{Groups: []engine.Group{{Sequence: q, Rows: len(rows), Commit: true}}, Rows: rows}
		p.ok(p.e.Step(p.Context(), step, &engine.StepResult{}))
	}
}

// save reads a text and keeps its state, also on disk.
func (p *process) save(text []int32, f Features, fresh int) *Entry {
	p.Helper()
	q := p.sequence()
	p.read(q, text)
	e, _ := p.c.Save("", text, q, f)
	p.c.Persist(e, fresh)
	p.ok(p.e.FreeSequence(p.Context(), q))
	return e
}

// hit looks a text up, compares what is restored with a cold run bit for bit, and returns its length and rows.
func (p *process) hit(text []int32) (int, *Rows) {
	p.Helper()
	e := p.c.Find(p.Context(), "", text, func(int) bool { return true })
	if e == nil {
		return 0, nil
	}
	length, rows := e.Length(), e.Rows()
	q, cold := p.sequence(), p.sequence()
	p.ok(p.c.Restore(p.Context(), e, q))
	p.read(cold, text[:length])
	if !slices.Equal(p.logits(q), p.logits(cold)) {
		p.Fatalf("a hit of %d tokens is another state", length)
	}
	p.ok(p.e.FreeSequence(p.Context(), q))
	p.ok(p.e.FreeSequence(p.Context(), cold))
	return length, rows
}

func (p *process) logits(q engine.Sequence) []float32 {
	p.Helper()
	n, err := p.e.SequenceLength(p.Context(), q)
	p.ok(err)
	out := &engine.StepResult{}
	p.ok(p.e.Step(p.Context(), &engine.Step{
		Groups: []engine.Group{{Sequence: q, Rows: 1}},
		Rows:   []engine.Row{{Token: 3, Position: int32(n), Parent: -1, Mask: -1, Want: engine.WantLogits}},
	}, out))
	return slices.Clone(out.Logits)
}

// written waits until so many states are on disk.
func (p *process) written(n uint64) {
	p.Helper()
	testwait.Until(p.T, "states are on disk", func() bool {
		s, _ := p.c.DiskStats()
		return s.Writes == n
	})
}

func letters(seed uint64, n int) []int32 {
	r := rand.New(rand.NewPCG(seed, 2))
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(r.IntN(60))
	}
	return out
}

var anything = Disk{MinTokens: 1, ColdMax: 1 << 20}

// TestDiskOutlivesTheProcess: the first request after a restart hits, with the bits of a cold run and the rows that a
// draft needs.
func TestDiskOutlivesTheProcess(t *testing.T) {
	dir, text := t.TempDir(), letters(1, 1000)
	p := begin(t, dir, anything, 100)
	for _, n := range []int{200, 333, 700} {
		p.save(text[:n], Features{ring{max(0, n-300), n}, "kind", 2}, n)
	}
	p.end() // without waiting: what is queued is written
	p = begin(t, dir, anything, 100)
	for _, want := range []int{700, 333} {
		n, rows := p.hit(text[:want+9])
		if n != want || rows == nil || rows.Kind != "kind" || rows.Width != 2 {
			t.Fatalf("%d tokens, %+v", n, rows)
		}
		first, data := read(rows)
		cold, _, _ := ring{0, 1 << 20}.Copy(nil, first, want-first)
		if first > max(0, want-300)/PageRows*PageRows+PageRows || !slices.Equal(data, cold) {
			t.Errorf("%d tokens: rows from %d on, %d bytes", want, first, len(data))
		}
	}
	if n, _ := p.hit(letters(2, 1000)); n != 0 {
		t.Errorf("%d tokens of another text", n)
	}
	s, ok := p.c.DiskStats()
	if !ok || s.Hits != 2 || s.Tokens != 1033 || p.c.Stats().Entries != 2 || p.c.Stats().Hits != 2 {
		t.Errorf("%+v, %+v", s, p.c.Stats())
	}
	p.end()
}

// TestReportNamesWhatIsOnDisk: after a restart heartbeats name the states on disk, by the numbers that they had in
// memory, as such until they are read; Longest counts them; and the time of reading a token is measured.
func TestReportNamesWhatIsOnDisk(t *testing.T) {
	dir, text := t.TempDir(), letters(1, 1000)
	p := begin(t, dir, anything, 100)
	p.save(text[:333], Features{}, 333)
	p.save(text[:700], Features{}, 700)
	p.written(2)
	if states := p.c.Report().States; len(states) != 2 || states[0].OnDisk || states[1].OnDisk {
		t.Errorf("in memory and on disk: %v", states)
	}
	p.end()
	p = begin(t, dir, anything, 100)
	defer p.end()
	fits := func(int) bool { return true }
	testwait.Until(t, "the index is there", func() bool { return len(p.c.Report().States) == 2 })
	before := p.c.Report()
	for _, s := range before.States {
		if !s.OnDisk || s.Digest != prefixhash.Of("", text[:s.Tokens]) || s.Tokens != 333 && s.Tokens != 700 {
			t.Errorf("%v", s)
		}
	}
	if n := p.c.Longest("", text, fits); n != 700 {
		t.Errorf("the longest state has %d tokens", n)
	}
	if n, _ := p.hit(text); n != 700 {
		t.Fatalf("%d tokens", n)
	}
	after := p.c.Report()
	if after.Version <= before.Version || len(after.States) != 2 || after.States[0].OnDisk ||
		after.States[0].Tokens != 700 || !after.States[1].OnDisk {
		t.Errorf("%v, then %v", before, after)
	}
	if before.DiskTokenMs <= 0 || after.DiskTokenMs <= 0 || after.DiskTokenMs == before.DiskTokenMs {
		t.Errorf("a token takes %v ms, then %v", before.DiskTokenMs, after.DiskTokenMs)
	}
}

// TestWhatIsPersisted holds MinTokens and ColdMax, and that a hit makes up for ColdMax.
func TestWhatIsPersisted(t *testing.T) {
	p := begin(t, t.TempDir(), Disk{MinTokens: 100, ColdMax: 300}, 100)
	defer p.end()
	on := func(text []int32) bool { return p.c.tier.disk.Store.Has(t.Context(), "", text) }
	short, cold, known := letters(1, 99), letters(2, 400), letters(3, 400)
	p.save(short, Features{}, 99)
	p.save(cold, Features{}, 400)
	p.save(known, Features{}, 300)
	p.written(1)
	if on(short) || on(cold) || !on(known) {
		t.Errorf("on disk: %v, %v, %v", on(short), on(cold), on(known))
	}
	if n, _ := p.hit(slices.Concat(cold, cold)); n != 400 {
		t.Errorf("%d tokens", n)
	}
	p.written(2)
	if !on(cold) {
		t.Error("a state that was asked for is not on disk")
	}
	p.save(known, Features{}, 300) // it is there
	p.hit(known)
	p.save(letters(4, 200), Features{}, 200)
	p.written(3)
}

// TestMemoryComesFirst: a state on disk is read when it is longer than that in memory by MinTokens, and shares its
// pages.
func TestMemoryComesFirst(t *testing.T) {
	dir, text := t.TempDir(), letters(1, 1000)
	cfg := Disk{MinTokens: 100, ColdMax: 1 << 20}
	p := begin(t, dir, cfg, 100)
	p.save(text[:600], Features{}, 600)
	p.end()
	for memory, want := range map[int]int{400: 600, 500: 600, 501: 501, 600: 600} {
		p = begin(t, dir, Disk{MinTokens: 100}, 100)
		p.save(text[:memory], Features{}, memory)
		if n, _ := p.hit(text); n != want {
			t.Errorf("%d tokens beside %d in memory, want %d", n, memory, want)
		}
		if shared := p.e.(*held).shared; want > memory && shared != memory/64 {
			t.Errorf("%d pages are shared with %d tokens in memory", shared, memory)
		}
		p.end()
	}
}

// TestReadOnce: requests that ask for one state at once read it once.
func TestReadOnce(t *testing.T) {
	dir, text := t.TempDir(), letters(1, 1000)
	p := begin(t, dir, anything, 100)
	p.save(text[:900], Features{}, 900)
	p.end()
	p = begin(t, dir, anything, 100)
	defer p.end()
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			if n, _ := p.hit(text); n != 900 {
				p.Errorf("%d tokens", n)
			}
		})
	}
	group.Wait()
	if s, _ := p.c.DiskStats(); s.Hits != 1 || p.c.Stats().Hits != 4 {
		t.Errorf("%d reads, %d hits", s.Hits, p.c.Stats().Hits)
	}
}

// TestDamagedFiles: what cannot be read back is a miss; a shorter state is found instead.
func TestDamagedFiles(t *testing.T) {
	dir, text := t.TempDir(), letters(1, 1000)
	p := begin(t, dir, anything, 100)
	p.save(text[:300], Features{}, 300)
	p.save(text[:900], Features{}, 900)
	p.end()
	files, err := filepath.Glob(filepath.Join(dir, "1", "900-*.kv"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	if err := os.Truncate(files[0], 5000); err != nil {
		t.Fatal(err)
	}
	p = begin(t, dir, anything, 100)
	defer p.end()
	if n, _ := p.hit(text); n != 300 {
		t.Errorf("%d tokens", n)
	}
	if s, _ := p.c.DiskStats(); s.Damaged != 1 || s.States != 1 {
		t.Errorf("%+v", s)
	}
}

// TestEvictedWhileWritten: an entry that goes while it is written leaves no file, and its handle, which the next entry
// may get, is not read.
func TestEvictedWhileWritten(t *testing.T) {
	p := begin(t, t.TempDir(), anything, 1)
	defer p.end()
	first, second := letters(1, 500), letters(2, 500)
	reached, let := make(chan struct{}), make(chan struct{})
	var once sync.Once
	p.e.(*held).reading = func() {
		once.Do(func() { close(reached) })
		<-let
	}
	e := p.save(first, Features{}, 500)
	<-reached
	// While it is read nothing takes its snapshot away, and who needs memory waits.
	relieved := make(chan bool)
	go func() { relieved <- p.c.Relieve(p.e) }()
	p.c.Drop(e)
	select {
	case <-relieved:
		t.Error("an entry in use was moved")
	case <-time.After(20 * time.Millisecond):
	}
	close(let)
	<-relieved
	p.save(second, Features{}, 500)
	p.written(1)
	if n, _ := p.hit(first); n != 0 {
		t.Errorf("%d tokens of a dropped state", n)
	}
	if n, _ := p.hit(second); n != 500 {
		t.Errorf("%d tokens of the next state", n)
	}
}

// TestNoRoomForAStateOnDisk: an engine without pages for it has others demoted; without memory there is no hit.
func TestNoRoomForAStateOnDisk(t *testing.T) {
	dir, text := t.TempDir(), letters(1, 1000)
	p := begin(t, dir, anything, 100)
	p.save(text[:900], Features{}, 900)
	p.end()
	p = begin(t, dir, anything, 100)
	p.e.(*held).Target = &refusing{Target: p.e.(*held).Target, left: 1}
	p.save(letters(2, 100), Features{}, 100)
	if n, _ := p.hit(text); n != 900 {
		t.Errorf("%d tokens after one refusal", n)
	}
	p.end()
	p = begin(t, dir, anything, 100)
	defer p.end()
	p.e.(*held).Target = &refusing{Target: p.e.(*held).Target, left: 1 << 20}
	if n, _ := p.hit(text); n != 0 {
		t.Errorf("%d tokens without room", n)
	}
	if s, _ := p.c.DiskStats(); s.States != 2 || s.Damaged != 0 {
		t.Errorf("%+v", s)
	}
}

// refusing has no room for so many snapshots that are to be written.
type refusing struct {
	engine.Target
	left int
}

func (r *refusing) BeginSnapshot(
	ctx context.Context, l engine.SnapshotLayout, base engine.Snapshot, shared int,
) (engine.Snapshot, error) {
	if r.left--; r.left >= 0 {
		return 0, rpcerr.ResourceExhausted("no pages are left")
	}
	return r.Target.BeginSnapshot(ctx, l, base, shared)
}
