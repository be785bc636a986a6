package cluster

import (
	"slices"
	"testing"

	"github.com/tandem-inference/tandem/services/registry"
)

// serveAll ends the running slot and the ones that follow, and lists whose turn it was.
func serveAll(slot *Slot, waiting map[string]*Ticket) []string {
	var order []string
	for range waiting {
		slot.Release()
		for name, tk := range waiting {
			if g := granted(tk); len(g) > 0 {
				order, slot = append(order, name), g[0]
			}
		}
	}
	slot.Release()
	return order
}

// TestSharesTakeTurns: one who sends many requests does not keep the others waiting for all of them.
func TestSharesTakeTurns(t *testing.T) {
	p := pool(t, PoolConfig{MaxQueue: 10}, info("w", 1, 0, registry.StateReady))
	slot := granted(submit(t, p, Demand{Priority: 5, Share: "greedy"}))[0]
	waiting := map[string]*Ticket{}
	for _, name := range []string{"greedy1", "greedy2", "greedy3", "modest1", "late1", "modest2"} {
		waiting[name] = submit(t, p, Demand{Priority: 5, Share: name[:len(name)-1]})
	}
	waiting["urgent"] = submit(t, p, Demand{Priority: 6, Share: "greedy"})
	want := []string{"urgent", "modest1", "late1", "greedy1", "modest2", "greedy2", "greedy3"}
	if got := serveAll(slot, waiting); !slices.Equal(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
	if len(p.shares) != 0 {
		t.Errorf("shares of those who left: %v", p.shares)
	}
}

// TestFewestRunningFirst: of two who wait, the one with fewer running requests is next.
func TestFewestSlotsFirst(t *testing.T) {
	p := pool(t, PoolConfig{MaxQueue: 10}, info("w", 3, 0, registry.StateReady))
	a1 := granted(submit(t, p, Demand{Share: "a"}))[0]
	a2 := granted(submit(t, p, Demand{Share: "a"}))[0]
	b1 := granted(submit(t, p, Demand{Share: "b"}))[0]
	a3, b2 := submit(t, p, Demand{Share: "a"}), submit(t, p, Demand{Share: "b"})
	b1.Release()
	if len(granted(a3)) != 0 || len(granted(b2)) != 1 {
		t.Error("b has no slot and a has two, but a got the free one")
	}
	a1.Release()
	if len(granted(a3)) != 1 {
		t.Error("nobody else waits, but a did not get the slot")
	}
	a2.Release()
}

// TestTokensAreReserved: a request gets a slot only with the memory for all of its tokens, and smaller ones that come
// later do not take it away from one that waits.
func TestTokensAreReserved(t *testing.T) {
	w := info("w", 8, 1000, registry.StateReady)
	w.Registration.Limits.KvTokens = 1200
	p := pool(t, PoolConfig{MaxQueue: 10}, w)
	first := granted(submit(t, p, Demand{Tokens: 700}))
	if len(first) != 1 {
		t.Fatal("the first request fits")
	}
	big, small := submit(t, p, Demand{Tokens: 600}), submit(t, p, Demand{Tokens: 100})
	if len(granted(big)) != 0 {
		t.Error("700 and 600 tokens do not fit into 1200")
	}
	if len(granted(small)) != 0 {
		t.Error("a small request overtakes one that waits for memory")
	}
	first[0].Release()
	if len(granted(big)) != 1 || len(granted(small)) != 1 {
		t.Error("both fit once the first has ended")
	}
	if got := p.workers["w"].held; got != 700 {
		t.Errorf("%d tokens are reserved, want 700", got)
	}
}

// TestKeptWorkersAreFewest: only workers that the waiting request could use are kept free for it.
func TestKeptWorkersAreFewest(t *testing.T) {
	wide, narrow := info("wide", 4, 1000, registry.StateReady), info("narrow", 4, 200, registry.StateReady)
	wide.Registration.Limits.KvTokens = 1000
	p := pool(t, PoolConfig{MaxQueue: 10}, wide, narrow)
	if l := granted(submit(t, p, Demand{Tokens: 800})); len(l) != 1 || l[0].Worker != "wide" {
		t.Fatalf("%v", l)
	}
	submit(t, p, Demand{Tokens: 700})
	if l := granted(submit(t, p, Demand{Tokens: 100})); len(l) != 1 || l[0].Worker != "narrow" {
		t.Errorf("a small request waits although a worker is free that the big one cannot use: %v", l)
	}
}

// TestContextIsWithinMemory: a context that the memory cannot hold is not promised.
func TestContextIsWithinMemory(t *testing.T) {
	w := info("w", 2, 1000, registry.StateReady)
	w.Registration.Limits.KvTokens = 600
	if got := pool(t, PoolConfig{}, w).MaxContext(); got != 600 {
		t.Errorf("longest context %d, want 600", got)
	}
}
