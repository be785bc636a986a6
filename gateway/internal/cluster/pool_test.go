package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/racetest"
	"github.com/tandem-inference/tandem/services/registry"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func info(id string, slots, ctx int32, state string) registry.Worker {
	return registry.Worker{ID: id, Epoch: 1, State: state, LastHeartbeat: time.Now(), Registration: &tandemv1.Registration{
		WorkerId: id, Role: tandemv1.Role_ROLE_TARGET, Address: "127.0.0.1:1",
		Limits: &tandemv1.Limits{Lanes: slots, MaxContext: ctx}}}
}

// pool gives a pool whose connections never reach anybody.
func pool(t *testing.T, cfg PoolConfig, workers ...registry.Worker) *Pool {
	p := NewPool(cfg)
	set(p, workers...)
	t.Cleanup(p.close)
	return p
}

func set(p *Pool, workers ...registry.Worker) {
	p.update(workers, func(registry.Worker) *grpc.ClientConn {
		conn, err := grpc.NewClient("passthrough:///nobody", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(nobody))
		if err != nil {
			panic(err)
		}
		return conn
	})
}

var errNobody = errors.New("nobody there")

func nobody(context.Context, string) (c net.Conn, err error) { return nil, errNobody }

func code(err error) string {
	if err == nil {
		return ""
	}
	return strings.ToLower(rpcerr.Reason(err))
}

func submit(t *testing.T, p *Pool, d Demand) *Ticket {
	t.Helper()
	tk, err := p.Submit(d)
	if err != nil {
		t.Fatal(err)
	}
	return tk
}

// granted drains the slots that a ticket holds already.
func granted(tk *Ticket) []*Slot {
	var out []*Slot
	for {
		select {
		case l := <-tk.slots:
			out = append(out, l)
		default:
			return out
		}
	}
}

func TestPriorityThenArrival(t *testing.T) {
	p := pool(t, PoolConfig{MaxQueue: 10}, info("w", 1, 0, registry.StateReady))
	first := submit(t, p, Demand{Priority: 5})
	slot := granted(first)[0]
	low, high, late := submit(t, p, Demand{Priority: 1}), submit(t, p, Demand{Priority: 9}),
		submit(t, p, Demand{Priority: 9})
	back := submit(t, p, Demand{Priority: 0, Takeover: true})
	var order []string
	for range 4 {
		slot.Release()
		for name, tk := range map[string]*Ticket{"low": low, "high": high, "late": late, "takeover": back} {
			if g := granted(tk); len(g) > 0 {
				order, slot = append(order, name), g[0]
			}
		}
	}
	slot.Release()
	if want := []string{"takeover", "high", "late", "low"}; !slices.Equal(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
}

func TestLeastBusyWorkerThatFits(t *testing.T) {
	p := pool(t, PoolConfig{MaxQueue: 10}, info("a", 2, 100, registry.StateReady), info("b", 4, 1000, registry.StateReady),
		info("c", 9, 1000, registry.StateDraining))
	var got []string
	for range 5 {
		got = append(got, granted(submit(t, p, Demand{Tokens: 50}))[0].Worker)
	}
	if want := []string{"a", "b", "b", "a", "b"}; !slices.Equal(got, want) {
		t.Errorf("workers %v, want %v", got, want)
	}
	if l := granted(submit(t, p, Demand{Tokens: 500})); len(l) != 1 || l[0].Worker != "b" {
		t.Errorf("long request went to %v", l)
	}
	if p.MaxContext() != 1000 {
		t.Errorf("longest context %d", p.MaxContext())
	}
}

func TestQueueLimits(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		p := NewPool(PoolConfig{MaxQueue: 2, QueueTimeout: time.Minute, Grace: 10 * time.Second})
		defer p.close()
		if _, err := p.Submit(Demand{}); code(err) != "no_worker" {
			t.Errorf("without workers: %v", err)
		}
		set(p, info("w", 1, 0, registry.StateReady))
		running := submit(t, p, Demand{})
		a, b := submit(t, p, Demand{}), submit(t, p, Demand{})
		if _, err := p.Submit(Demand{}); code(err) != "queue_full" {
			t.Errorf("third in the queue: %v", err)
		}
		b.Close()
		c := submit(t, p, Demand{})
		time.Sleep(59 * time.Second)
		granted(running)[0].Release()
		held, err := a.Slot(t.Context())
		if err != nil {
			t.Fatalf("a: %v", err)
		}
		// A worker that left is still used by those who hold its slots.
		defer held.Release()
		start := time.Now()
		if _, err := c.Slot(t.Context()); code(err) != "queue_timeout" || time.Since(start) > time.Minute {
			t.Errorf("c: %v after %v", err, time.Since(start))
		}
		// The last worker goes away: new requests wait for its restart, for a while.
		set(p)
		d := submit(t, p, Demand{})
		d.Close()
		time.Sleep(11 * time.Second)
		if _, err := p.Submit(Demand{}); code(err) != "no_worker" {
			t.Errorf("long after the last worker left: %v", err)
		}
	})
}

func TestNoQueueStillServes(t *testing.T) {
	p := pool(t, PoolConfig{MaxQueue: 0}, info("w", 1, 0, registry.StateReady))
	submit(t, p, Demand{})
	if _, err := p.Submit(Demand{}); code(err) != "queue_full" {
		t.Errorf("second request with no queue: %v", err)
	}
}

func TestSuspectsRest(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		p := NewPool(PoolConfig{MaxQueue: 10})
		defer p.close()
		a, b := info("a", 2, 0, registry.StateReady), info("b", 2, 0, registry.StateReady)
		set(p, a, b)
		l := granted(submit(t, p, Demand{}))[0]
		l.Failed()
		for range 2 {
			if got := granted(submit(t, p, Demand{}))[0].Worker; got != "b" {
				t.Errorf("went to %s, want b", got)
			}
		}
		wait := submit(t, p, Demand{Takeover: true})
		time.Sleep(5 * time.Second)
		if len(granted(wait)) != 0 {
			t.Error("a suspect got work without a sign of life")
		}
		a.LastHeartbeat = time.Now()
		set(p, a, b)
		if got, err := wait.Slot(t.Context()); err != nil || got.Worker != "a" {
			t.Errorf("after a heartbeat: %v %v", got, err)
		}
	})
}

// TestAnswerTime: a worker whose heartbeats all take long has longer to answer; a single one that did makes nobody
// wait.
func TestAnswerTime(t *testing.T) {
	now := time.Now()
	w := info("w", 1, 0, registry.StateReady)
	p := pool(t, PoolConfig{MaxQueue: 10}, w)
	l := granted(submit(t, p, Demand{}))[0]
	for i, c := range []struct {
		rtt  float64 // ms, of the newest heartbeat
		want time.Duration
	}{
		{0, answerTime}, {200, 4 * time.Second}, {1, answerTime}, {200, answerTime}, {200, answerTime},
		{300, 4 * time.Second}, {9000, 4 * time.Second}, {9000, 6 * time.Second}, {9000, longestAnswer}, {2, answerTime},
	} {
		w.Heartbeat, w.LastHeartbeat = &tandemv1.Heartbeat{RttMs: c.rtt}, now.Add(time.Duration(i+1)*time.Second)
		set(p, w)
		set(p, w) // tells nothing new
		if got := l.answerTime(); got != c.want {
			t.Errorf("heartbeat %d of %v ms: %v, want %v", i, c.rtt, got, c.want)
		}
	}
}

func TestFullWorkerIsAskedAgain(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		p := NewPool(PoolConfig{MaxQueue: 10})
		defer p.close()
		set(p, info("a", 1, 0, registry.StateReady))
		granted(submit(t, p, Demand{}))[0].Full()
		tk, start := submit(t, p, Demand{Takeover: true}), time.Now()
		if _, err := tk.Slot(t.Context()); err != nil || time.Since(start) != fullPause {
			t.Errorf("%v after %v, want %v", err, time.Since(start), fullPause)
		}
	})
}

func TestDrainFailsWaiters(t *testing.T) {
	p := pool(t, PoolConfig{MaxQueue: 10}, info("w", 1, 0, registry.StateReady))
	submit(t, p, Demand{})
	waiting := submit(t, p, Demand{})
	p.Drain()
	if _, err := waiting.Slot(t.Context()); code(err) != "draining" {
		t.Errorf("waiter: %v", err)
	}
	if _, err := p.Submit(Demand{}); code(err) != "draining" {
		t.Errorf("new: %v", err)
	}
}

func TestClosedTicketGivesSlotsBack(t *testing.T) {
	p := pool(t, PoolConfig{MaxQueue: 10}, info("w", 2, 0, registry.StateReady))
	tk := submit(t, p, Demand{Slots: 3})
	tk.Close()
	if busy, slots, _ := p.Busy("w"); busy != 0 || slots != 2 || p.Queued() != 0 {
		t.Errorf("%d of %d busy, %d queued", busy, slots, p.Queued())
	}
}

func TestServedModel(t *testing.T) {
	c := New(Config{}, Deps{})
	w := func(id, digest string, joined int) registry.Worker {
		i := info(id, 1, 0, registry.StateReady)
		i.Registration.Model = &tandemv1.ModelInfo{Name: "m", Digest: digest}
		i.Joined = time.Unix(int64(joined), 0)
		i.Registration.Address = fmt.Sprintf("127.0.0.1:%d", joined)
		return i
	}
	defer c.Targets.close()
	defer c.Scorers.close()
	c.dial = []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(nobody)}
	check := func(list []registry.Worker, digest string, served ...string) {
		t.Helper()
		c.update(list)
		m, _, _ := c.Active()
		if m.GetDigest() != digest {
			t.Errorf("serves %q, want %q", m.GetDigest(), digest)
		}
		for _, w := range list {
			if _, _, ok := c.Targets.Busy(w.ID); ok != slices.Contains(served, w.ID) {
				t.Errorf("%s in the pool: %v", w.ID, ok)
			}
		}
	}
	check([]registry.Worker{w("b", "x", 1), w("a", "y", 2)}, "x", "b")
	check([]registry.Worker{w("a", "y", 2), w("c", "x", 3)}, "x", "c")
	check([]registry.Worker{w("a", "y", 2)}, "y", "a")
}

// TestContextOutlivesWorkers: while no worker is ready, requests are measured by the last ones; one that was let
// through without a limit would wait for a worker that can take it, and none would come.
func TestContextOutlivesWorkers(t *testing.T) {
	p := pool(t, PoolConfig{Grace: time.Minute})
	if n := p.MaxContext(); n != 0 {
		t.Errorf("context %d before the first worker", n)
	}
	set(p, info("a", 1, 1000, registry.StateReady), info("b", 1, 500, registry.StateStarting))
	for _, workers := range [][]registry.Worker{{info("a", 1, 1000, registry.StateStarting)}, nil} {
		set(p, workers...)
		if n := p.MaxContext(); n != 1000 {
			t.Errorf("context %d while no worker is ready, was 1000", n)
		}
	}
	set(p, info("b", 1, 500, registry.StateReady))
	if n := p.MaxContext(); n != 500 {
		t.Errorf("context %d of a worker with 500", n)
	}
}

// TestNobodyWaitsForWorkersThatAreNotThere: without any worker a request gets its 503 soon; one that starts is
// waited for.
func TestNobodyWaitsForWorkersThatAreNotThere(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		cfg := PoolConfig{MaxQueue: 10, QueueTimeout: 600 * time.Second, Grace: time.Minute, Absence: 30 * time.Second}
		p := pool(t, cfg, info("w", 1, 0, registry.StateReady))
		running := submit(t, p, Demand{})
		slot := granted(running)[0]
		began := time.Now()
		waits := submit(t, p, Demand{})
		back := submit(t, p, Demand{Takeover: true})
		set(p)
		_, err := waits.Slot(t.Context())
		if code(err) != "no_worker" || time.Since(began) != 30*time.Second || rpcerr.RetryAfter(err) == 0 {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		if _, err := p.Submit(Demand{}); code(err) != "no_worker" {
			t.Errorf("a new request after that: %v", err)
		}
		set(p, info("w2", 1, 0, registry.StateStarting))
		late := submit(t, p, Demand{})
		time.Sleep(45 * time.Second)
		set(p, info("w2", 1, 0, registry.StateReady))
		if len(granted(back)) != 1 {
			t.Error("a request that lost its worker was given up, too")
		}
		back.Close()
		set(p, info("w2", 2, 0, registry.StateReady))
		if len(granted(late)) != 1 {
			t.Error("a request did not wait for a worker that started")
		}
		late.Close()
		slot.Release()
		waits.Close()
		running.Close()
	})
}

// TestTakeoverPrefersLikeWorkers: a takeover gets a worker with the lost one's contract id, another one only when it is
// allowed and no like one is free, and new requests get any.
func TestTakeoverPrefersLikeWorkers(t *testing.T) {
	like, other := info("z", 1, 100, registry.StateReady), info("a", 1, 100, registry.StateReady)
	like.Registration.Contract, other.Registration.Contract = "cpu", "gpu"
	contract := "cpu"
	takeover := Demand{Tokens: 10, Takeover: true, Contract: &contract}
	p := pool(t, PoolConfig{MaxQueue: 9}, like, other)
	first := granted(submit(t, p, takeover))
	if len(first) != 1 || first[0].Worker != "z" || first[0].Contract != "cpu" {
		t.Fatalf("takeover got %v", first)
	}
	waits := submit(t, p, takeover)
	if got := granted(waits); got != nil {
		t.Fatalf("takeover got worker %s of other arithmetic", got[0].Worker)
	}
	// A waiting takeover does not hold up what other workers can do.
	plain := granted(submit(t, p, Demand{Tokens: 10}))
	if len(plain) != 1 || plain[0].Worker != "a" {
		t.Fatalf("new request got %v", plain)
	}
	plain[0].Release()
	if got := granted(waits); got != nil {
		t.Fatalf("takeover got worker %s of other arithmetic", got[0].Worker)
	}
	takeover.AnyContract = true
	moved := granted(submit(t, p, takeover))
	if len(moved) != 1 || moved[0].Worker != "a" {
		t.Fatalf("takeover by any worker got %v", moved)
	}
	first[0].Release()
	if got := granted(waits); len(got) != 1 || got[0].Worker != "z" {
		t.Fatalf("takeover got %v after the like worker was free", got)
	}
}

// TestConnect: a worker at a socket that is not on this host is called where other hosts reach it.
func TestConnect(t *testing.T) {
	c := New(Config{}, Deps{DialOptions: []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}})
	w := info("t", 1, 100, registry.StateReady)
	for remote, want := range map[string]string{"": "unix:/of/another/host", "192.0.2.1:7": "192.0.2.1:7"} {
		w.Registration.Address, w.Registration.RemoteAddress = "unix:///of/another/host", remote
		conn, err := c.Connect(w)
		if err != nil {
			t.Fatal(err)
		}
		if conn.Target() != want {
			t.Errorf("remote address %q: %s is called", remote, conn.Target())
		}
		conn.Close()
	}
}
