package prefix

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"pgregory.net/rapid"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/racetest"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// memory is an engine of snapshots alone: each is the tokens of its sequence.
type memory struct {
	engine.Target
	mu        sync.Mutex
	sequences map[engine.Sequence][]int32
	snapshots map[engine.Snapshot][]int32
	demoted   map[engine.Snapshot]bool
	last      engine.Snapshot
	most      int    // snapshots, 0 = any number
	pages     int    // snapshots that are not demoted when one is restored, 0 = any number
	fail      error  // of Restore
	stays     error  // of Demote
	making    func() // called by NewSnapshot; nil = nothing
}

const (
	kvBytes    = 96 // and 4 of the tree
	stateBytes = 1000
)

func newMemory() *memory {
	return &memory{
		sequences: map[engine.Sequence][]int32{}, snapshots: map[engine.Snapshot][]int32{},
		demoted: map[engine.Snapshot]bool{},
	}
}

func (m *memory) Info() engine.Info {
	return engine.Info{KVBytesPerToken: kvBytes, StateBytesPerSequence: stateBytes}
}

func (m *memory) NewSnapshot(_ context.Context, s engine.Sequence) (engine.Snapshot, error) {
	if m.making != nil {
		m.making()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.most > 0 && len(m.snapshots) >= m.most {
		return 0, rpcerr.ResourceExhausted("no pages are left")
	}
	m.last++
	m.snapshots[m.last] = m.sequences[s]
	return m.last, nil
}

func (m *memory) RestoreSnapshot(_ context.Context, p engine.Snapshot, s engine.Sequence) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		return m.fail
	}
	if m.demoted[p] && m.pages > 0 && len(m.snapshots)-len(m.demoted) >= m.pages {
		return rpcerr.ResourceExhausted("no pages are left")
	}
	delete(m.demoted, p)
	tokens, ok := m.snapshots[p]
	if !ok {
		return rpcerr.NotFound("snapshot: %d does not exist", p)
	}
	m.sequences[s] = tokens
	return nil
}

func (m *memory) FreeSnapshot(_ context.Context, p engine.Snapshot) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.snapshots[p]; !ok {
		return rpcerr.NotFound("snapshot: %d does not exist", p)
	}
	delete(m.snapshots, p)
	delete(m.demoted, p)
	return nil
}

func (m *memory) DemoteSnapshot(_ context.Context, p engine.Snapshot) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.snapshots[p]; !ok {
		return rpcerr.NotFound("snapshot: %d does not exist", p)
	}
	if m.stays == nil {
		m.demoted[p] = true
	}
	return m.stays
}

func (m *memory) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.snapshots)
}

func newCache(t testing.TB, cfg Config) (*Cache, *memory) {
	t.Helper()
	c, m := New(cfg), newMemory()
	c.Use(m)
	t.Cleanup(func() {
		c.Close()
		if n := m.count(); n != 0 {
			t.Errorf("%d snapshots are left", n)
		}
		if s := c.Stats(); s.Entries != 0 || s.Bytes != 0 || len(c.roots) != 0 {
			t.Errorf("after the end: %+v, %d trees", s, len(c.roots))
		}
	})
	return c, m
}

// save stores tokens.
func save(c *Cache, m *memory, space string, tokens []int32) (*Entry, bool) {
	m.mu.Lock()
	m.sequences[1] = slices.Clone(tokens)
	m.mu.Unlock()
	return c.Save(space, tokens, 1, Features{})
}

// hit looks tokens up and restores what is found; 0 = nothing.
func hit(t testing.TB, c *Cache, m *memory, space string, tokens []int32) int {
	t.Helper()
	e := c.Find(t.Context(), space, tokens, func(int) bool { return true })
	if e == nil {
		return 0
	}
	if err := c.Restore(t.Context(), e, 2); err != nil {
		t.Fatal(err)
	}
	if got := m.sequences[2]; !slices.Equal(got, tokens[:e.Length()]) {
		t.Fatalf("%v restores %v", tokens, got)
	}
	return e.Length()
}

func numbers(from, n int) []int32 {
	list := make([]int32, n)
	for i := range list {
		list[i] = int32(from + i)
	}
	return list
}

var roomy = Config{Bytes: 1 << 30, Slots: 100}

func TestLongestEntryIsFound(t *testing.T) {
	c, m := newCache(t, roomy)
	text := numbers(0, 100)
	other := slices.Concat(text[:50], numbers(500, 50))
	for _, list := range [][]int32{text[:40], text[:60], other[:70]} {
		if _, made := save(c, m, "a", list); !made {
			t.Errorf("%d tokens are not stored", len(list))
		}
	}
	if _, made := save(c, m, "a", text[:60]); made {
		t.Error("an entry is stored twice")
	}
	for _, v := range []struct {
		space  string
		tokens []int32
		want   int
	}{
		{"a", text, 60}, {"a", text[:60], 60}, {"a", text[:59], 40}, {"a", text[:39], 0},
		{"a", other, 70}, {"a", other[:69], 40}, {"a", numbers(1, 50), 0}, {"b", text, 0},
	} {
		if got := hit(t, c, m, v.space, v.tokens); got != v.want {
			t.Errorf("%d tokens from %d on in %s find %d, want %d", len(v.tokens), v.tokens[0], v.space, got, v.want)
		}
	}
	if e := c.Find(t.Context(), "a", text, func(n int) bool { return n < 60 }); e == nil || e.Length() != 40 {
		t.Errorf("what fits is %+v", e)
	} else if err := c.Restore(t.Context(), e, 2); err != nil {
		t.Error(err)
	}
	s := c.Stats()
	// Edges: 40, 10 up to the fork, 10 and 20 beyond it.
	if want := uint64(3*stateBytes + 80*100); s.Bytes != want || s.Entries != 3 {
		t.Errorf("%d entries of %d bytes, want %d", s.Entries, s.Bytes, want)
	}
	if s.Lookups != 9 || s.Hits != 6 || s.Tokens != 60+60+40+70+40+40 {
		t.Errorf("%+v", s)
	}
}

// TestModel: any order of saves, look-ups and drops gives what a list of prefixes gives, and bytes are those of its
// tree.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c, m := New(roomy), newMemory()
		c.Use(m)
		model := map[string]*Entry{}
		text := rapid.SliceOfN(rapid.Int32Range(0, 2), 1, 12)
		rt.Repeat(map[string]func(*rapid.T){
			"save": func(rt *rapid.T) {
				tokens := text.Draw(rt, "tokens")
				e, made := save(c, m, "", tokens)
				if _, there := model[fmt.Sprint(tokens)]; made == there || e == nil {
					rt.Fatalf("%v: stored %v, there %v", tokens, made, there)
				}
				model[fmt.Sprint(tokens)] = e
			},
			"find": func(rt *rapid.T) {
				tokens := text.Draw(rt, "tokens")
				want := 0
				for n := range len(tokens) + 1 {
					if model[fmt.Sprint(tokens[:n])] != nil {
						want = n
					}
				}
				if got := hit(t, c, m, "", tokens); got != want {
					rt.Fatalf("%v finds %d, want %d", tokens, got, want)
				}
			},
			"drop": func(rt *rapid.T) {
				tokens := text.Draw(rt, "tokens")
				e := model[fmt.Sprint(tokens)]
				if e == nil {
					return
				}
				if c.Drop(e); e.hits == 0 {
					delete(model, fmt.Sprint(tokens))
				}
			},
			"": func(rt *rapid.T) {
				c.group.Wait()
				edges := map[string]bool{} // every prefix of an entry is a token of an edge
				for _, e := range model {
					for n := range e.length {
						edges[fmt.Sprint(m.snapshots[e.snapshot][:n+1])] = true
					}
				}
				for _, root := range c.roots {
					if n := root.idle(); n > 0 {
						rt.Fatalf("%d nodes are of no use", n)
					}
				}
				s := c.Stats()
				n, want := len(model), uint64(len(model)*stateBytes+len(edges)*100)
				if s.Bytes != want || s.Entries != n || m.count() != n {
					rt.Fatalf("%d entries, %d snapshots, %d bytes; want %d of %d bytes", s.Entries, m.count(), s.Bytes, n, want)
				}
			},
		})
		c.Close()
		if m.count() != 0 || len(c.roots) != 0 {
			rt.Fatalf("%d snapshots and %d trees are left", m.count(), len(c.roots))
		}
	})
}

// idle counts nodes below n that have neither an entry nor a fork.
func (n *node) idle() (count int) {
	for _, child := range n.children {
		if child.entry == nil && len(child.children) < 2 {
			count++
		}
		count += child.idle()
	}
	return count
}

func TestEvictionIsByValue(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		c, m := newCache(t, Config{Bytes: 1 << 30, Slots: 3})
		long, short, used := numbers(0, 400), numbers(1000, 20), numbers(2000, 30)
		for _, list := range [][]int32{long, short, used} {
			save(c, m, "", list)
		}
		time.Sleep(2 * time.Minute)
		hit(t, c, m, "", used)
		// A state of 20 tokens saves least for its bytes.
		save(c, m, "", numbers(3000, 50))
		expect := func(want []int, lists ...[]int32) {
			t.Helper()
			for i, list := range lists {
				if got := hit(t, c, m, "", list); got != want[i] {
					t.Fatalf("of list %d %d tokens are found, want %d", i, got, want[i])
				}
			}
		}
		expect([]int{400, 0, 30}, long, short, used)
		// What is in use stays.
		e := c.Find(t.Context(), "", long, func(int) bool { return true })
		time.Sleep(2 * time.Minute)
		for i := range 5 {
			save(c, m, "", numbers(5000+100*i, 60))
		}
		if err := c.Restore(t.Context(), e, 2); err != nil {
			t.Error(err)
		}
		if s := c.Stats(); s.Entries != 3 || s.Evictions != 6 {
			t.Errorf("%+v", s)
		}
		// Of a conversation the state goes first that another nearly replaces.
		nearly := numbers(7000, 300)
		save(c, m, "", nearly[:280])
		save(c, m, "", nearly)
		time.Sleep(time.Hour)
		save(c, m, "", numbers(8000, 60))
		expect([]int{280, 60}, nearly, numbers(8000, 60))
		synctest.Wait()
	})
}

// TestNewConversationsStay: states with many hits go once they are not used any more, and conversations that begin
// beside each other keep nearly all of their own from turn to turn.
func TestNewConversationsStay(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		c, m := newCache(t, Config{Bytes: 1 << 30, Slots: 8})
		old := numbers(0, 400)
		for n := 50; n <= 400; n += 50 {
			save(c, m, "", old[:n])
			for range 50 {
				hit(t, c, m, "", old[:n])
			}
		}
		time.Sleep(2 * time.Hour)
		for n := 40; n <= 400; n += 40 {
			for i := range 2 {
				fresh := numbers(1000*(i+1), n)
				if got := hit(t, c, m, "", fresh); got < n-80 {
					t.Errorf("conversation %d: of %d tokens %d are found, more than a turn is read again", i, n, got)
				}
				time.Sleep(time.Second)
				save(c, m, "", fresh)
				time.Sleep(time.Minute)
			}
		}
	})
}

func TestBudgetOfBytes(t *testing.T) {
	c, m := newCache(t, Config{Bytes: 3 * 2000, Slots: 100})
	m.making = func() {
		if s := c.Stats(); s.Bytes > 2*2000 {
			t.Errorf("a state is made beside %d bytes of others", s.Bytes)
		}
	}
	for i := range 5 {
		save(c, m, "", numbers(1000*i, 10)) // 2000 bytes
	}
	m.making = nil
	c.group.Wait()
	if s := c.Stats(); s.Entries != 3 || s.Bytes != 6000 || s.Evictions != 2 || m.count() != 3 {
		t.Errorf("%+v, %d snapshots", s, m.count())
	}
	// What cannot fit evicts nothing.
	if e, made := save(c, m, "", numbers(9000, 51)); e != nil || made {
		t.Error("an entry larger than the budget is stored")
	}
	if s := c.Stats(); s.Entries != 3 || s.Refusals != 1 {
		t.Errorf("%+v", s)
	}
	// A long prefix that is there already is not counted again.
	save(c, m, "long", numbers(0, 30))
	if _, made := save(c, m, "long", numbers(0, 35)); !made {
		t.Error("an entry beside its prefix is not stored")
	}
	if s := c.Stats(); s.Bytes > 6000 {
		t.Errorf("%+v", s)
	}
}

func TestEngineRefuses(t *testing.T) {
	c, m := newCache(t, roomy)
	m.most = 2
	for i := range 4 {
		if _, made := save(c, m, "", numbers(1000*i, 100+i)); !made {
			t.Errorf("entry %d is not stored", i)
		}
	}
	if s := c.Stats(); s.Entries != 2 || s.Evictions != 2 || m.count() != 2 {
		t.Errorf("%+v, %d snapshots", s, m.count())
	}
	// Nothing can be evicted: it goes on without.
	a := c.Find(t.Context(), "", numbers(3000, 103), func(int) bool { return true })
	b := c.Find(t.Context(), "", numbers(2000, 102), func(int) bool { return true })
	if e, made := save(c, m, "", numbers(8000, 9)); e != nil || made || a == nil || b == nil {
		t.Error("an entry without room is stored")
	}
	if c.Relieve(m) {
		t.Error("an entry in use is evicted")
	}
	for _, e := range []*Entry{a, b} {
		if err := c.Restore(t.Context(), e, 2); err != nil {
			t.Error(err)
		}
	}
	m.stays = rpcerr.ResourceExhausted("no host memory is left")
	if !c.Relieve(m) || m.count() != 1 {
		t.Errorf("%d snapshots after one was to go", m.count())
	}
	if c.Relieve(newMemory()) {
		t.Error("an entry is evicted for another engine")
	}
}

// TestRelieveDemotes: pages that an engine lacks come from the least valuable entries, which stay and can be restored.
func TestRelieveDemotes(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		c, m := newCache(t, roomy)
		long, short := numbers(0, 400), numbers(1000, 20)
		save(c, m, "", long)
		save(c, m, "", short)
		time.Sleep(2 * time.Minute)
		if !c.Relieve(m) || len(m.demoted) != 1 || m.demoted[1] {
			t.Errorf("demoted %v, want the short one", m.demoted)
		}
		if !c.Relieve(m) || len(m.demoted) != 2 || c.Relieve(m) {
			t.Errorf("demoted %v, want both and no more", m.demoted)
		}
		// Pages that a sequence shared are theirs alone when it is freed.
		m.demoted = map[engine.Snapshot]bool{}
		c.Freed()
		if !c.Relieve(m) || len(m.demoted) != 2 || c.Relieve(m) {
			t.Errorf("demoted %v after a sequence was freed, want both and no more", m.demoted)
		}
		if got := hit(t, c, m, "", long); got != len(long) || m.demoted[1] {
			t.Errorf("%d tokens of a demoted entry", got)
		}
		// Restoring one demotes another where pages are short.
		m.pages = 1
		if got := hit(t, c, m, "", short); got != len(short) || !m.demoted[1] || m.demoted[2] {
			t.Errorf("%d tokens, demoted %v", got, m.demoted)
		}
		if s := c.Stats(); s.Entries != 2 || s.Evictions != 0 || s.Failures != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// TestRelieveEndsWhatItBegan: once a sequence was freed, the pages that it held of demoted entries go before those of
// entries that are still there; of entries that cannot be moved one is evicted, not all.
func TestRelieveEndsWhatItBegan(t *testing.T) {
	c, m := newCache(t, roomy)
	save(c, m, "", numbers(0, 400))
	save(c, m, "", numbers(1000, 400))
	for c.Relieve(m) {
	}
	save(c, m, "", numbers(2000, 20))
	m.demoted = map[engine.Snapshot]bool{}
	c.Freed()
	if !c.Relieve(m) || len(m.demoted) != 2 || m.demoted[3] {
		t.Errorf("demoted %v, want the first two", m.demoted)
	}
	if !c.Relieve(m) || len(m.demoted) != 3 || c.Relieve(m) {
		t.Errorf("demoted %v, want all", m.demoted)
	}
	m.stays = rpcerr.ResourceExhausted("no host memory is left")
	c.Freed()
	for left := 2; left >= 0; left-- {
		if !c.Relieve(m) || m.count() != left {
			t.Errorf("%d snapshots are left, want %d", m.count(), left)
		}
	}
	if c.Relieve(m) || c.Stats().Evictions != 3 {
		t.Errorf("%+v", c.Stats())
	}
}

// TestRefusedRestoreIsKept: an entry that there is no room for now is whole, and is there when there is room.
func TestRefusedRestoreIsKept(t *testing.T) {
	c, m := newCache(t, roomy)
	save(c, m, "", numbers(0, 10))
	m.fail = rpcerr.ResourceExhausted("no pages are left")
	e := c.Find(t.Context(), "", numbers(0, 20), func(int) bool { return true })
	if err := c.Restore(t.Context(), e, 2); rpcerr.Code(err) != codes.ResourceExhausted {
		t.Errorf("%v", err)
	}
	m.fail = nil
	if got := hit(t, c, m, "", numbers(0, 20)); got != 10 {
		t.Errorf("%d tokens are restored once there is room", got)
	}
}

func TestFailedRestoreIsForgotten(t *testing.T) {
	c, m := newCache(t, roomy)
	save(c, m, "", numbers(0, 10))
	m.fail = rpcerr.Internal("a device fault")
	e := c.Find(t.Context(), "", numbers(0, 20), func(int) bool { return true })
	if err := c.Restore(t.Context(), e, 2); err == nil {
		t.Error("it was restored")
	}
	m.fail = nil
	if got := hit(t, c, m, "", numbers(0, 20)); got != 0 {
		t.Errorf("%d tokens are found", got)
	}
	c.group.Wait()
	if s := c.Stats(); s.Failures != 1 || s.Hits != 0 || s.Entries != 0 || m.count() != 0 {
		t.Errorf("%+v, %d snapshots", s, m.count())
	}
	// A request that was cancelled says nothing about the entry.
	save(c, m, "", numbers(0, 10))
	m.fail = context.Canceled
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Restore(ctx, c.Find(t.Context(), "", numbers(0, 20), func(int) bool { return true }), 2); err == nil {
		t.Error("it was restored")
	}
	m.fail = nil
	if got := hit(t, c, m, "", numbers(0, 20)); got != 10 {
		t.Errorf("%d tokens are found", got)
	}
}

// TestAnotherEngine: states of an engine are gone with it, and what a request of the old one still does is without
// effect.
func TestAnotherEngine(t *testing.T) {
	c, m := newCache(t, roomy)
	save(c, m, "", numbers(0, 10))
	e := c.Find(t.Context(), "", numbers(0, 20), func(int) bool { return true })
	next := newMemory()
	c.Use(next)
	m.fail = rpcerr.EngineLost
	if err := c.Restore(t.Context(), e, 2); err == nil {
		t.Error("a state of a lost engine was restored")
	}
	c.Drop(e)
	if s := c.Stats(); s.Entries != 0 || s.Bytes != 0 {
		t.Errorf("%+v", s)
	}
	save(c, next, "", numbers(0, 10))
	if got := hit(t, c, next, "", numbers(0, 20)); got != 10 {
		t.Errorf("%d tokens are found", got)
	}
	m.snapshots = nil // they died with their engine
}

func TestOff(t *testing.T) {
	for _, cfg := range []Config{{}, {Bytes: 1}, {Slots: 1}} {
		c := New(cfg)
		c.Use(newMemory())
		e, made := save(c, newMemory(), "", numbers(0, 10))
		found := c.Find(t.Context(), "", numbers(0, 10), nil)
		if c != nil || e != nil || made || found != nil || c.Relieve(nil) || c.Stats() != (Stats{}) {
			t.Errorf("%+v keeps something", cfg)
		}
		c.Close()
	}
}

// TestConcurrent: many requests at once lose no snapshot and corrupt no count.
func TestConcurrent(t *testing.T) {
	c, m := newCache(t, Config{Bytes: 1 << 30, Slots: 5})
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			s := engine.Sequence(10 + i)
			for k := range 200 {
				tokens := numbers(1000*(k%3), 1+(i+k)%7)
				m.mu.Lock()
				m.sequences[s] = tokens
				m.mu.Unlock()
				c.Save("", tokens, s, Features{})
				if e := c.Find(t.Context(), "", numbers(1000*(k%3), 10), func(int) bool { return true }); e != nil {
					if err := c.Restore(t.Context(), e, s); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	group.Wait()
	c.group.Wait()
	if s := c.Stats(); s.Entries > 5 || s.Entries != m.count() || s.Failures != 0 {
		t.Errorf("%+v, %d snapshots", s, m.count())
	}
}
