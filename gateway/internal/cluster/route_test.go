package cluster

import (
	"testing"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/prefixhash"
	"github.com/tandem-inference/tandem/services/racetest"
	"github.com/tandem-inference/tandem/services/registry"
)

// text is a prompt of n tokens that begins like all of its seed.
func text(seed int32, n int) []int32 {
	list := make([]int32, n)
	for i := range list {
		list[i] = seed*1000 + int32(i)%97
	}
	return list
}

// holding is a worker that says that it holds states of so many tokens of a prompt.
func holding(id, isolation string, prompt []int32, lengths ...int) registry.Worker {
	w := info(id, 4, 100_000, registry.StateReady)
	w.Heartbeat = &tandemv1.Heartbeat{Prefixes: &tandemv1.Prefixes{Version: 1}}
	for _, n := range lengths {
		w.Heartbeat.Prefixes.States = append(w.Heartbeat.Prefixes.States,
			&tandemv1.PrefixState{Digest: prefixhash.Of(isolation, prompt[:n]), Tokens: int32(n)})
	}
	return w
}

// went submits a demand and returns the slot that it got.
func went(t *testing.T, p *Pool, d Demand) *Slot {
	t.Helper()
	d.Tokens = len(d.Prompt) + 10
	slots := granted(submit(t, p, d))
	if len(slots) != 1 {
		t.Fatalf("%d slots", len(slots))
	}
	return slots[0]
}

// TestRouteByPrefix: a request goes to the worker that holds most of its prompt, unless what it would wait for there
// takes longer than reading it elsewhere.
func TestRouteByPrefix(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		prompt := text(1, 5000)
		start := func(by bool) *Pool {
			return pool(t, PoolConfig{MaxQueue: 9, ByPrefix: by}, info("a", 4, 100_000, registry.StateReady),
				holding("b", "key", prompt, 512, 2048), holding("c", "key", prompt, 512, 4608))
		}
		p := start(true)
		d := Demand{Prompt: prompt, Isolation: "key"}
		for _, v := range []struct {
			what string
			d    Demand
			want string
		}{
			{"the longest begin", d, "c"},
			{"a shorter prompt", Demand{Prompt: prompt[:4608], Isolation: "key"}, "b"}, // one token is left to be read
			{"another end", Demand{Prompt: append(prompt[:3000:3000], 7), Isolation: "key"}, "b"},
			{"another begin", Demand{Prompt: append([]int32{7}, prompt...), Isolation: "key"}, "a"},
			{"another isolation", Demand{Prompt: prompt, Isolation: "other"}, "a"},
			{"not the one to avoid", Demand{Prompt: prompt, Isolation: "key", Avoid: map[string]bool{"c": true}}, "b"},
		} {
			p := start(true)
			l := went(t, p, v.d)
			if l.Worker != v.want {
				t.Errorf("%s: went to %s, want %s", v.what, l.Worker, v.want)
			}
			l.Release()
			if p = start(false); went(t, p, v.d).Worker != "a" {
				t.Errorf("%s: the load does not decide", v.what)
			}
		}
		// 4608 tokens at 1 ms are worth more than three of four slots of answers of 1 s.
		for i := range 3 {
			if l := went(t, p, d); l.Worker != "c" {
				t.Fatalf("request %d went to %s", i, l.Worker)
			} else {
				l.Read(4000)
			}
		}
		if s := p.Routed(); s != (Routed{Prefix: 3, Expected: 4608 + 2*4928, Hit: 3 * 4000}) {
			t.Errorf("%+v", s)
		}
		// 512 tokens more are not worth them.
		short := Demand{Prompt: prompt[:600], Isolation: "key"}
		if l := went(t, p, short); l.Worker != "b" {
			t.Errorf("a short prompt went to %s", l.Worker)
		}
	})
}

// TestRouteByBacklog: what others still have read there counts, until it is read or given up.
func TestRouteByBacklog(t *testing.T) {
	prompt := text(1, 5000)
	p := pool(t, PoolConfig{MaxQueue: 9, ByPrefix: true}, info("a", 4, 100_000, registry.StateReady),
		holding("b", "", prompt, 1024))
	other := went(t, p, Demand{Prompt: text(2, 9000), Avoid: map[string]bool{"a": true}})
	if l := went(t, p, Demand{Prompt: prompt}); l.Worker != "a" {
		t.Errorf("it waits behind 9000 tokens at %s", l.Worker)
	} else {
		l.Release()
	}
	other.Read(0)
	l := went(t, p, Demand{Prompt: text(3, 5000), Session: "s"})
	if l.Worker != "a" {
		t.Errorf("a prompt that nobody holds went to %s, where a slot is busy", l.Worker)
	}
	l.Release()
	other.Release()
	for id, w := range p.workers {
		if w.backlog != 0 {
			t.Errorf("%s has a backlog of %d tokens", id, w.backlog)
		}
	}
}

// TestRouteWhatWasSent: before heartbeats say so the pool believes that a worker holds what it got, for a while; and a
// session stays where it was when nothing else decides.
func TestRouteWhatWasSent(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		p := pool(t, PoolConfig{MaxQueue: 9, ByPrefix: true}, info("a", 4, 100_000, registry.StateReady),
			info("b", 4, 100_000, registry.StateReady))
		prompt := text(1, 2000)
		first := went(t, p, Demand{Prompt: prompt, Avoid: map[string]bool{"a": true}, Session: "s"})
		first.Read(0)
		first.Release()
		next := append(prompt[:1990:1990], text(5, 300)...) // the template's end is another one
		l := went(t, p, Demand{Prompt: next})
		if l.Worker != "b" || l.hoped != 1984 {
			t.Errorf("went to %s, which is believed to hold %d", l.Worker, l.hoped)
		}
		l.Release()
		time.Sleep(believed)
		if l := went(t, p, Demand{Prompt: next}); l.Worker != "a" {
			t.Errorf("after %v it went to %s", believed, l.Worker)
		} else {
			l.Release()
		}
		if l := went(t, p, Demand{Prompt: text(9, 2000), Session: "s"}); l.Worker != "b" {
			t.Errorf("the session went to %s", l.Worker)
		}
		if s := p.Routed(); s.Prefix != 1 || s.Session != 1 || s.Load != 2 {
			t.Errorf("%+v", s)
		}
		for i := range mostSessions + 10 {
			p.routes.remember(string(rune(i)), "a")
		}
		if n := len(p.routes.sessions); n > mostSessions {
			t.Errorf("%d sessions are remembered", n)
		}
	})
}

// TestPace: the time of a token is that of the tokens that were read since.
func TestPace(t *testing.T) {
	var s pace
	s.observe(map[string]float64{"prompt_tokens": 1000, "prefill_seconds": 2, "requests": 4, "decode_seconds": 8})
	if s.token != 2*time.Millisecond || s.request != 2*time.Second {
		t.Errorf("%+v", s)
	}
	s.observe(map[string]float64{"prompt_tokens": 1010, "prefill_seconds": 9}) // too few
	s.observe(nil)
	if s.token != 2*time.Millisecond {
		t.Errorf("%+v", s)
	}
	s.observe(map[string]float64{"peer_fetched_tokens": 1000, "peer_fetch_seconds": 0.5})
	s.observe(map[string]float64{"peer_fetched_tokens": 1000, "peer_fetch_seconds": 0.5, "prompt_tokens": 2000,
		"prefill_seconds": 12})
	if s.fetch != 500*time.Microsecond {
		t.Errorf("%+v", s)
	}
	if s.token != (7*2*time.Millisecond+3*10*time.Millisecond)/10 {
		t.Errorf("%+v", s)
	}
}

// TestRoutePeer: a worker that gets a request is told who holds clearly more of the prompt and computes the same bits,
// with routing by prefix or without.
func TestRoutePeer(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		prompt := text(1, 5000)
		other := holding("d", "key", prompt, 4992)
		other.Registration.Contract = "other"
		draining := holding("e", "key", prompt, 4992)
		draining.State = registry.StateDraining
		workers := []registry.Worker{info("a", 4, 100_000, registry.StateReady), holding("b", "key", prompt, 2048),
			holding("c", "key", prompt, 512, 4608), other, draining}
		for i := range workers {
			workers[i].Registration.Address = workers[i].ID + ":1"
			workers[i].Registration.RemoteAddress = workers[i].ID + ":2"
		}
		for _, by := range []bool{true, false} {
			p := pool(t, PoolConfig{MaxQueue: 9, ByPrefix: by}, workers...)
			for _, v := range []struct {
				what   string
				avoid  []string
				d      Demand
				peer   string
				tokens int32
			}{
				{"nothing", []string{"b", "c", "d"}, Demand{Prompt: prompt, Isolation: "key"}, "c", 4608},
				{"less", []string{"a", "c", "d"}, Demand{Prompt: prompt, Isolation: "key"}, "c", 4608},
				{"the most of its bits", []string{"a", "b", "d"}, Demand{Prompt: prompt, Isolation: "key"}, "", 0},
				{"other bits", []string{"a", "b", "c"}, Demand{Prompt: prompt, Isolation: "key"}, "", 0},
				{"little less", []string{"a", "c", "d"}, Demand{Prompt: prompt[:2048+peerTokens], Isolation: "key"}, "", 0},
				{"of another isolation", []string{"b", "c", "d"}, Demand{Prompt: prompt}, "", 0},
				{"of another prompt", []string{"b", "c", "d"}, Demand{Prompt: text(2, 5000), Isolation: "key"}, "", 0},
			} {
				v.d.Avoid = map[string]bool{}
				for _, id := range v.avoid {
					v.d.Avoid[id] = true
				}
				l := went(t, p, v.d)
				if l.Peer.GetWorkerId() != v.peer || l.Peer.GetTokens() != v.tokens ||
					v.peer != "" && (l.Peer.GetAddress() != v.peer+":1" || l.Peer.GetRemoteAddress() != v.peer+":2") {
					t.Errorf("by prefix %v, %s: %s is told of %v", by, v.what, l.Worker, l.Peer)
				}
				l.Release()
				p.routes.sent = nil
			}
		}
	})
}

// TestRouteToFetch: a worker counts as having what another one holds at the measured time of fetching it, for as many
// requests at a time as that one sends states.
func TestRouteToFetch(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		prompt := text(1, 5000)
		start := func(by bool, perToken time.Duration, onDisk bool) *Pool {
			w := holding("b", "", prompt, 4608)
			w.Heartbeat.Prefixes.States[0].OnDisk = onDisk
			p := pool(t, PoolConfig{MaxQueue: 9, ByPrefix: by}, info("a", 4, 100_000, registry.StateReady), w)
			p.workers["a"].pace.fetch = perToken
			p.workers["b"].backlog = 2000
			return p
		}
		for _, v := range []struct {
			what     string
			by       bool
			perToken time.Duration
			onDisk   bool
			want     string
			counts   Routed
		}{
			{"fetching is fast", true, 100 * time.Microsecond, false, "a", Routed{Peer: 1, Named: 1}},
			{"from disk", true, 100 * time.Microsecond, true, "a", Routed{Peer: 1, Named: 1}},
			{"fetching was not measured", true, 0, false, "b", Routed{Prefix: 1}},
			{"fetching takes longer than waiting", true, 600 * time.Microsecond, false, "b", Routed{Prefix: 1}},
			{"fetching takes longer than reading", true, 2 * time.Millisecond, false, "b", Routed{Prefix: 1}},
			{"routing is by load", false, 100 * time.Microsecond, false, "a", Routed{Named: 1}},
		} {
			p := start(v.by, v.perToken, v.onDisk)
			l := went(t, p, Demand{Prompt: prompt})
			if l.Worker != v.want || p.Routed() != v.counts {
				t.Errorf("%s: went to %s, %+v", v.what, l.Worker, p.Routed())
			}
			if v.counts.Peer > 0 && (l.Peer.GetTokens() != 4608 || p.workers["a"].backlog != 5000-4608) {
				t.Errorf("%s: %v, %d tokens are to be read", v.what, l.Peer, p.workers["a"].backlog)
			}
			l.Release()
			if n := p.workers["b"].sending; n != 0 {
				t.Errorf("%s: %d fetches are left", v.what, n)
			}
		}
		p := start(true, 100*time.Microsecond, false)
		// Each prompt is another one after what b holds: the pool does not believe that a has it.
		another := func(i int32) Demand { return Demand{Prompt: append(prompt[:4608:4608], text(10+i, 392)...)} }
		var slots []*Slot
		for i := range mostSending {
			slots = append(slots, went(t, p, another(int32(i))))
			p.routes.sent = nil
		}
		if s := p.Routed(); s.Peer != mostSending {
			t.Fatalf("%+v", s)
		}
		if l := went(t, p, another(7)); l.Worker != "b" {
			t.Errorf("beside %d fetches a request went to %s", mostSending, l.Worker)
		} else {
			l.Release()
		}
		p.routes.sent = nil
		slots[0].Read(4608)
		if l := went(t, p, another(8)); l.Worker != "a" || p.Routed().Peer != mostSending+1 {
			t.Errorf("after a fetch a request went to %s", l.Worker)
		}
	})
}

// TestRouteFetchesNoRumour: what a worker was sent is not fetched from there before a heartbeat names it.
func TestRouteFetchesNoRumour(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		prompt := text(1, 5000)
		p := pool(t, PoolConfig{MaxQueue: 9, ByPrefix: true}, info("a", 4, 100_000, registry.StateReady),
			info("b", 4, 100_000, registry.StateReady))
		p.workers["a"].pace.fetch = 100 * time.Microsecond
		went(t, p, Demand{Prompt: prompt, Avoid: map[string]bool{"a": true}})
		if l := went(t, p, Demand{Prompt: append(prompt[:4992:4992], 7)}); p.Routed().Peer != 0 {
			t.Errorf("went to %s, %+v", l.Worker, p.Routed())
		}
	})
}

// TestRouteToDisk: a worker that holds a begin on disk is expected to have it, at the time that reading it takes there.
func TestRouteToDisk(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		prompt := text(1, 5000)
		onDisk := func(ms float64) registry.Worker {
			w := holding("b", "", prompt, 1024, 4608)
			w.Heartbeat.Prefixes.States[1].OnDisk = true
			w.Heartbeat.Prefixes.DiskTokenMs = ms
			return w
		}
		for _, v := range []struct {
			ms   float64
			want string
		}{
			{0.1, "b"}, // against 1 ms for a token that is read
			{0.9, "c"},
		} {
			p := pool(t, PoolConfig{MaxQueue: 9, ByPrefix: true}, info("a", 4, 100_000, registry.StateReady), onDisk(v.ms),
				holding("c", "", prompt, 2048))
			l := went(t, p, Demand{Prompt: prompt})
			if l.Worker != v.want || v.want == "b" && l.hoped != 4608 {
				t.Errorf("%v ms a token: went to %s, which is believed to hold %d", v.ms, l.Worker, l.hoped)
			}
			l.Release()
		}
	})
}
