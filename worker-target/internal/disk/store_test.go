package disk

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tandem-inference/tandem/services/engine"
)

const roomy = 1 << 30

// TestStatesOutliveTheProcess: what a store wrote, another one finds, with the logits of a cold run bit for bit: every
// edge of a page, alone, as a continuation, and beside a base in memory.
func TestStatesOutliveTheProcess(t *testing.T) {
	r, random, dir := newRig(t), rand.New(rand.NewPCG(1, 1)), t.TempDir()
	s := openStore(t, dir, roomy)
	var prompts [][]int32
	for _, n := range []int{1, 63, 64, 65, 127, 128, 129, 190, 512, 575} {
		one := text(random, n)
		r.ok(r.write(s, "a", one, nil))
		r.ok(r.write(s, "a", one, nil)) // it is there
		prompt := slices.Concat(one, text(random, 1+random.IntN(200)))
		r.ok(r.write(s, "a", prompt, nil))
		prompts = append(prompts, slices.Concat(prompt, text(random, 1)))
	}
	if n := s.Stats().Writes; n != 20 {
		t.Errorf("%d states were written, want 20", n)
	}
	kept(t, s, dir)
	s.Close()
	s = openStore(t, dir, roomy)
	defer s.Close()
	for _, p := range prompts {
		whole, _, err := r.load(s, "a", p, 0, 0)
		if err != nil || whole != len(p)-1 {
			t.Errorf("%d of %d tokens: %v", whole, len(p)-1, err)
		}
		base := len(p) / 2
		snapshot := r.snapshot(p[:base])
		n, _, err := r.load(s, "a", p, snapshot, base)
		if err != nil || n != len(p)-1 {
			t.Errorf("%d of %d tokens with a base of %d: %v", n, len(p)-1, base, err)
		}
		r.ok(r.e.FreeSnapshot(r.ctx, snapshot))
		// Another prompt, another namespace, a part of the prompt.
		other := slices.Clone(p)
		other[0]++
		for what, miss := range map[string]*State{
			"a changed token": s.Find(r.ctx, "a", other, 0, all), "another namespace": s.Find(r.ctx, "b", p, 0, all),
			"none that fits": s.Find(r.ctx, "a", p, 0, func(int) bool { return false }),
			"none so long":   s.Find(r.ctx, "a", p, len(p)-1, all),
		} {
			if miss != nil {
				t.Errorf("%s: a state of %d tokens", what, miss.Length())
				miss.Close()
			}
		}
	}
	if got := s.Stats(); got.Hits != 20 || got.Damaged != 0 || got.Lookups != 60 {
		t.Errorf("%+v", got)
	}
}

// TestPagesAreShared: a state adds its own pages only, and its ancestors may lose their recurrent state.
func TestPagesAreShared(t *testing.T) {
	r, random, dir := newRig(t), rand.New(rand.NewPCG(2, 1)), t.TempDir()
	s := openStore(t, dir, roomy)
	defer s.Close()
	prompt := text(random, 1001)
	for _, n := range []int{500, 700, 1000} {
		r.ok(r.write(s, "", prompt[:n], nil))
	}
	var got []uint32
	for path := range files(t, dir) {
		if !strings.HasSuffix(path, kvSuffix) {
			continue
		}
		f, err := os.Open(path)
		r.ok(err)
		x, _, err := readIndex(f, magicKV)
		r.ok(errors.Join(err, f.Close()))
		got = append(got, x.Pages)
	}
	slices.Sort(got)
	// 8 pages, then those from the unfinished one on: [448, 700) and [640, 1000).
	if d := cmp.Diff([]uint32{4, 6, 8}, got); d != "" {
		t.Error(d)
	}
	s.mu.Lock()
	s.cfg.Budget = s.bytes - 1 // one state must go; the first is worth least
	for _, n := range s.nodes {
		if n.length == 500 {
			n.used = n.used.Add(-time.Hour)
		}
	}
	s.shrink(0)
	s.mu.Unlock()
	kept(t, s, dir)
	if n, _, err := r.load(s, "", prompt[:600], 0, 0); n != 0 || err != nil {
		t.Errorf("%d tokens of a state that went: %v", n, err)
	}
	if n, _, err := r.load(s, "", prompt, 0, 0); n != 1000 || err != nil {
		t.Errorf("%d tokens: %v", n, err)
	}
	// It can be written again beside its pages.
	s.mu.Lock()
	s.cfg.Budget = roomy
	s.mu.Unlock()
	r.ok(r.write(s, "", prompt[:500], nil))
	if n, _, err := r.load(s, "", prompt[:600], 0, 0); n != 500 || err != nil {
		t.Errorf("%d tokens of a state that came back: %v", n, err)
	}
	kept(t, s, dir)
}

// TestRowsAreKept: rows of features come back whole, in pages that files of one conversation share.
func TestRowsAreKept(t *testing.T) {
	r, random, dir := newRig(t), rand.New(rand.NewPCG(3, 1)), t.TempDir()
	s := openStore(t, dir, roomy)
	defer s.Close()
	prompt := text(random, 900)
	for _, c := range []struct {
		length int
		rows   *Rows
		want   *Rows
	}{
		{300, rowsUpTo("one", 0, 300), rowsUpTo("one", 0, 300)},
		{400, rowsUpTo("one", 64, 400), rowsUpTo("one", 0, 400)},
		{500, rowsUpTo("two", 128, 500), rowsUpTo("two", 128, 500)}, // of another draft: all its own
		{600, nil, nil},
		{700, rowsUpTo("two", 256, 700), rowsUpTo("two", 256, 700)},
		{800, rowsUpTo("two", 768, 800), rowsUpTo("two", 768, 800)}, // those before are not of its time
		{900, rowsUpTo("a kind of more than thirty-two bytes", 0, 900), nil},
	} {
		r.ok(r.write(s, "", prompt[:c.length], c.rows))
		n, got, err := r.load(s, "", prompt[:c.length], 0, 0)
		if n != c.length || err != nil {
			t.Fatalf("%d of %d tokens: %v", n, c.length, err)
		}
		if d := cmp.Diff(c.want, got); d != "" && c.length != 800 {
			t.Errorf("%d tokens: %s", c.length, d)
		}
		if c.length == 800 && (got == nil || got.First > 768 || !slices.Equal(got.Pages[len(got.Pages)-1], c.want.Pages[0])) {
			t.Errorf("the newest rows of 800 tokens are %+v", got)
		}
	}
}

// TestDamage flips or cuts off every kind of byte: the state is a miss and its files go, with those that depend on
// them.
func TestDamage(t *testing.T) {
	r, random := newRig(t), rand.New(rand.NewPCG(4, 1))
	prompt := text(random, 400)
	master := t.TempDir()
	s := openStore(t, master, roomy)
	r.ok(r.write(s, "", prompt[:200], rowsUpTo("one", 0, 200)))
	r.ok(r.write(s, "", prompt[:390], rowsUpTo("one", 0, 390)))
	s.Close()
	names := []string{}
	for path := range files(t, master) {
		names = append(names, path)
	}
	slices.Sort(names)
	tries := 300
	if testing.Short() {
		tries = 60
	}
	for i := range tries {
		dir := t.TempDir()
		r.ok(os.CopyFS(dir, os.DirFS(master)))
		path := names[i%len(names)]
		rel, err := filepath.Rel(master, path)
		r.ok(err)
		path = filepath.Join(dir, rel)
		info, err := os.Stat(path)
		r.ok(err)
		at := random.Int64N(info.Size())
		if i/len(names)%3 == 0 { // heads, ids and checksums are a small part of a file
			at = random.Int64N(min(info.Size(), 2000))
		}
		what := "flipped"
		switch random.IntN(5) {
		case 0:
			what = "cut"
			r.ok(os.Truncate(path, at))
		case 1:
			what = "longer"
			f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
			r.ok(err)
			_, err = f.Write(make([]byte, 1+random.IntN(100)))
			r.ok(err)
			r.ok(f.Close())
		default:
			flip(t, path, at, random.IntN(8))
		}
		s := openStore(t, dir, roomy)
		// load compares what it finds with the text read cold.
		longer, _, err1 := r.load(s, "", prompt, 0, 0)
		n, _, err2 := r.load(s, "", prompt[:300], 0, 0)
		then, _, err3 := r.load(s, "", prompt, 0, 0)
		is := func(err error) bool { return err == nil || errors.Is(err, ErrDamaged) }
		good := is(err1) && is(err2) && err3 == nil && s.Stats().Damaged == 1
		switch {
		case strings.HasPrefix(rel, "1/390-"):
			good = good && longer == 0 && err1 != nil && n == 200 && then == 200
		case strings.HasSuffix(rel, stateSuffix): // the longer one does not need it
			good = good && longer == 390 && n == 0 && err2 != nil && then == 390
		case longer > 0: // nor all of its pages
			good = good && longer == 390 && n == 0 && err2 != nil && then == 0
		default:
			good = good && err1 != nil && n == 0 && err2 == nil && then == 0
		}
		if !good {
			t.Errorf("%s %s at %d: %d (%v), %d (%v), %d (%v)", what, rel, at, longer, err1, n, err2, then, err3)
		}
		kept(t, s, dir)
		s.Close()
		if t.Failed() {
			return
		}
	}
}

// TestBudget: whatever is written and asked for, the files stay within the budget, and what is counted is there.
func TestBudget(t *testing.T) {
	r, random, dir := newRig(t), rand.New(rand.NewPCG(5, 1)), t.TempDir()
	const budget = 300 << 10
	s := openStore(t, dir, budget)
	trunk := text(random, 1500)
	refused, evicted := 0, uint64(0)
	for i := range 120 {
		n := 1 + random.IntN(len(trunk))
		prompt := slices.Clone(trunk[:n])
		if random.IntN(3) == 0 {
			prompt[random.IntN(n)]++
		}
		switch err := r.write(s, "", prompt, nil); {
		case errors.Is(err, ErrNoRoom):
			refused++
		default:
			r.ok(err)
		}
		kept(t, s, dir)
		got, _, err := r.load(s, "", prompt, 0, 0)
		if err != nil || got == 0 && refused == 0 {
			t.Fatalf("round %d: %d of %d tokens, %v", i, got, n, err)
		}
		if i%40 == 39 { // also after a restart
			evicted += s.Stats().Evictions
			s.Close()
			s = openStore(t, dir, budget)
			r.ok(s.ready(r.ctx))
			kept(t, s, dir)
		}
	}
	if evicted == 0 {
		t.Error("nothing was evicted")
	}
	s.Close()
	// A smaller budget is kept from the start on.
	s = openStore(t, dir, budget/3)
	defer s.Close()
	r.ok(s.ready(r.ctx))
	kept(t, s, dir)
	if err := r.write(s, "", text(random, 1900), nil); !errors.Is(err, ErrNoRoom) {
		t.Errorf("a state larger than the budget: %v", err)
	}
	kept(t, s, dir)
}

// TestPinnedStatesStay: a state that is being read is evicted for no other.
func TestPinnedStatesStay(t *testing.T) {
	r, random, dir := newRig(t), rand.New(rand.NewPCG(6, 1)), t.TempDir()
	s := openStore(t, dir, roomy)
	defer s.Close()
	one := text(random, 600)
	r.ok(r.write(s, "", one[:300], nil))
	r.ok(r.write(s, "", one, nil))
	st := s.Find(r.ctx, "", one, 0, all)
	s.mu.Lock()
	s.cfg.Budget = s.bytes
	s.mu.Unlock()
	if err := r.write(s, "", text(random, 600), nil); !errors.Is(err, ErrNoRoom) {
		t.Errorf("written beside states in use: %v", err)
	}
	p, _, err := st.Load(r.ctx, r.e, 0, 0)
	r.ok(err)
	r.same(p, one)
	st.Close()
	r.ok(r.write(s, "", text(random, 600), nil))
	kept(t, s, dir)
}

// TestLeftovers: what a process that was killed left unfinished, and what nothing can use, goes at the start.
func TestLeftovers(t *testing.T) {
	r, random, dir := newRig(t), rand.New(rand.NewPCG(7, 1)), t.TempDir()
	s := openStore(t, dir, roomy)
	prompt := text(random, 500)
	for _, n := range []int{100, 200, 400} {
		r.ok(r.write(s, "", prompt[:n], nil))
	}
	r.ok(r.write(s, "", text(random, 77), nil))
	s.Close()
	folder := filepath.Join(dir, "1")
	var of = func(n, suffix string) string {
		found, err := filepath.Glob(filepath.Join(folder, n+"-*"+suffix))
		r.ok(err)
		if len(found) != 1 {
			t.Fatalf("%s%s: %v", n, suffix, found)
		}
		return found[0]
	}
	r.ok(os.WriteFile(filepath.Join(folder, temporaryPrefix+"x"), []byte("half"), 0o600))
	r.ok(os.WriteFile(filepath.Join(folder, "notes.txt"), []byte("not ours"), 0o600))
	r.ok(os.Remove(of("77", kvSuffix)))     // a state without pages
	r.ok(os.Remove(of("400", stateSuffix))) // pages that no state needs
	s = openStore(t, dir, roomy)
	r.ok(s.ready(r.ctx))
	if n := len(files(t, dir)); n != 2*2+1 {
		t.Errorf("%d files are left: %v", n, files(t, dir))
	}
	if n, _, err := r.load(s, "", prompt, 0, 0); n != 200 || err != nil {
		t.Errorf("%d tokens: %v", n, err)
	}
	s.Close()
	r.ok(os.Remove(of("100", kvSuffix))) // the longer one depends on it
	s = openStore(t, dir, roomy)
	r.ok(s.ready(r.ctx))
	if n := len(files(t, dir)); n != 1 || s.Stats().Bytes != 0 || s.Stats().States != 0 {
		t.Errorf("%d files are left: %+v", n, s.Stats())
	}
	s.Close()
	if raw, err := os.ReadFile(filepath.Join(folder, "notes.txt")); err != nil || string(raw) != "not ours" {
		t.Errorf("a file of somebody else: %q, %v", raw, err)
	}
}

// TestFolders: processes of one setting have a folder each, and come back to their own.
func TestFolders(t *testing.T) {
	dir := t.TempDir()
	open := func(owner string) *Store {
		t.Helper()
		s, err := Open(Config{Dir: dir, Budget: roomy, Owner: owner})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	name := func(s *Store) string { return filepath.Base(s.folder.path) }
	a, b := open("a"), open("b")
	if name(a) != "1" || name(b) != "2" {
		t.Fatalf("folders %s and %s", name(a), name(b))
	}
	a.Close()
	b.Close()
	b = open("b")
	if name(b) != "2" {
		t.Errorf("b has folder %s, want that it left", name(b))
	}
	c, d := open("c"), open("d")
	if name(c) != "1" || name(d) != "3" {
		t.Errorf("folders %s and %s, want one that was left and a new one", name(c), name(d))
	}
	for _, s := range []*Store{b, c, d} {
		s.Close()
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Config{Dir: file, Budget: roomy}); err == nil {
		t.Error("a file is taken for a folder")
	}
}

// TestFailedWrites: a write that fails leaves nothing and is not tried again at once; one whose state went is no
// failure.
func TestFailedWrites(t *testing.T) {
	r, random, dir := newRig(t), rand.New(rand.NewPCG(8, 1)), t.TempDir()
	s := openStore(t, dir, roomy)
	defer s.Close()
	prompt := text(random, 500)
	p := r.snapshot(prompt)
	gone := errors.New("evicted")
	for _, after := range []int{0, 1, 3} {
		d, left := r.draft(p, "", prompt, nil), after
		read := d.Read
		d.Read = func(at engine.Part, data []byte) (uint32, error) {
			if left--; left < 0 {
				return 0, gone
			}
			return read(at, data)
		}
		if err := s.Write(r.ctx, d); !errors.Is(err, gone) {
			t.Errorf("after %d reads: %v", after, err)
		}
		kept(t, s, dir)
	}
	if n := s.Stats(); n.Refusals != 0 || n.Writes != 0 || n.Bytes != 0 {
		t.Errorf("%+v", n)
	}
	folder := s.folder.path
	s.folder.path = filepath.Join(dir, "nowhere")
	if err := s.Write(r.ctx, r.draft(p, "", prompt, nil)); err == nil {
		t.Error("written to a folder that does not exist")
	}
	s.folder.path = folder
	if err := s.Write(r.ctx, r.draft(p, "", prompt, nil)); !errors.Is(err, errLater) {
		t.Errorf("written at once after a failure: %v", err)
	}
	if n := s.Stats(); n.Refusals != 2 || n.Bytes != 0 {
		t.Errorf("%+v", n)
	}
	s.mu.Lock()
	s.retry = time.Time{}
	s.mu.Unlock()
	r.ok(s.Write(r.ctx, r.draft(p, "", prompt, nil)))
	if !s.Has(r.ctx, "", prompt) || s.Has(r.ctx, "b", prompt) {
		t.Error("what is there")
	}
}

// TestCancelledLoad: a request that leaves says nothing about the state.
func TestCancelledLoad(t *testing.T) {
	r, random, dir := newRig(t), rand.New(rand.NewPCG(9, 1)), t.TempDir()
	s := openStore(t, dir, roomy)
	defer s.Close()
	prompt := text(random, 500)
	r.ok(r.write(s, "", prompt, nil))
	ctx, cancel := context.WithCancel(r.ctx)
	st := s.Find(ctx, "", prompt, 0, all)
	cancel()
	if _, _, err := st.Load(ctx, r.e, 0, 0); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	st.Close()
	if n, _, err := r.load(s, "", prompt, 0, 0); n != 500 || err != nil {
		t.Errorf("%d tokens: %v", n, err)
	}
	h, err := r.e.Handles(r.ctx)
	r.ok(err)
	if len(h.Snapshots) != 0 {
		t.Errorf("snapshots %v are left", h.Snapshots)
	}
}

func TestNames(t *testing.T) {
	id := idOf("space", []int32{1, 2, 3})
	for name, want := range map[string]parsed{
		kvName(7, id, ID{1}):              {length: 7, id: id, parent: ID{1}},
		kvName(7, id, ID{}):               {length: 7, id: id},
		stateName(1<<20, id, 0):           {length: 1 << 20, id: id, state: true},
		stateName(7, id, 1<<60+5):         {length: 7, id: id, state: true, number: 1<<60 + 5},
		stateName(7, id, 0)[:3] + "-x":    {},
		"lock":                            {},
		"7-" + id.String() + ".kv":        {},
		"7-" + id.String() + "-00.kv":     {},
		"-7-" + id.String() + ".state":    {},
		"0-" + id.String() + ".state":     {},
		stateName(7, ID{}, 0):             {},
		"7-" + id.String()[1:] + ".state": {},
		kvName(7, id, ID{1}) + ".state":   {},
	} {
		got, ok := parseName(name)
		if !ok {
			got = parsed{}
		}
		if got != want || ok != (want.length > 0) {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
	d := newDigest(digestOf("space"))
	for _, token := range []int32{1, 2, 3} {
		d.add([]int32{token})
	}
	if d.id() != id || id == idOf("space", []int32{1, 2}) || id == idOf("spac", []int32{1, 2, 3}) {
		t.Error("ids are not those of the tokens")
	}
}

// TestForeignIDs: a file with right checksums that holds another prompt than its name says is a miss.
func TestForeignIDs(t *testing.T) {
	r, random, dir := newRig(t), rand.New(rand.NewPCG(12, 1)), t.TempDir()
	s := openStore(t, dir, roomy)
	defer s.Close()
	prompt := text(random, 300)
	r.ok(r.write(s, "", prompt, nil))
	paths, err := filepath.Glob(filepath.Join(dir, "1", "*"+kvSuffix))
	if err != nil || len(paths) != 1 {
		t.Fatal(paths, err)
	}
	f, err := os.OpenFile(paths[0], os.O_RDWR, 0)
	r.ok(err)
	x, _, err := readIndex(f, magicKV)
	r.ok(err)
	x.tokens[17]++
	_, err = f.WriteAt(x.encode(), 0)
	r.ok(errors.Join(err, f.Close()))
	if n, _, err := r.load(s, "", prompt, 0, 0); n != 0 || !errors.Is(err, ErrDamaged) {
		t.Errorf("%d tokens, %v", n, err)
	}
}
