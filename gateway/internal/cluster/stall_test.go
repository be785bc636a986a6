package cluster

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/racetest"
	"github.com/tandem-inference/tandem/services/registry"
)

// TestStalledSlots: the slot of a client that does not read, and its memory, are granted to others once the worker has
// given it up, and count again when the client reads on.
func TestStalledSlots(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		beat := func(busy int32) registry.Worker {
			w := info("a", 1, 1000, registry.StateReady)
			w.Registration.Limits.KvTokens = 1000
			w.Heartbeat = &tandemv1.Heartbeat{LanesBusy: busy}
			return w
		}
		p := pool(t, PoolConfig{MaxQueue: 9}, beat(0))
		first := granted(submit(t, p, Demand{Tokens: 700}))[0]
		set(p, beat(1))
		waiting := submit(t, p, Demand{Tokens: 700})
		reads, handed := make(chan struct{}), make(chan error, 1)
		hand := func() {
			go func() {
				handed <- first.Hand(func() error {
					<-reads
					return errNobody
				})
			}()
			synctest.Wait()
		}
		for range 3 { // a client that reads in time keeps its slot
			hand()
			time.Sleep(StallAfter - time.Millisecond)
			reads <- struct{}{}
			if err := <-handed; !errors.Is(err, errNobody) {
				t.Fatalf("%v", err)
			}
		}
		time.Sleep(2 * StallAfter)
		set(p, beat(0)) // not stalled: the heartbeat is older than the request
		if len(granted(waiting)) > 0 {
			t.Fatal("the slot of a client that reads was granted")
		}
		set(p, beat(1))
		hand()
		time.Sleep(2 * StallAfter)
		if len(granted(waiting)) > 0 {
			t.Fatal("the worker has not given the slot up")
		}
		set(p, beat(0))
		second := granted(waiting)
		if len(second) != 1 {
			t.Fatal("the slot was not granted")
		}
		third := submit(t, p, Demand{Tokens: 100})
		if len(granted(third)) > 0 {
			t.Error("one slot was granted twice")
		}
		reads <- struct{}{}
		<-handed
		second[0].Release()
		if len(granted(third)) > 0 {
			t.Error("the first one's slot counts again")
		}
		first.Release()
		if n := granted(third); len(n) != 1 {
			t.Error("nothing was granted when all was free")
		} else {
			n[0].Release()
		}
		if w := p.workers["a"]; w.busy != 0 || w.held != 0 || w.stalled != 0 || w.stalledTokens != 0 {
			t.Errorf("%d busy, %d held, %d stalled with %d", w.busy, w.held, w.stalled, w.stalledTokens)
		}
		for _, tk := range []*Ticket{waiting, third} {
			tk.Close()
		}
	})
}
