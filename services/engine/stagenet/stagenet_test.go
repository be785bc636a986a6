package stagenet

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-inference/tandem/services/racetest"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// TestExchange: a peer that sends once in a while stays, one that is silent for the limit is gone, and without a limit
// nobody is.
func TestExchange(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		const limit = time.Second
		var h heard
		start, sent := time.Now(), 0
		err := exchange(t.Context(), limit, func() error {
			if sent++; sent < 40 {
				h.n.Add(1)
			}
			return nil
		}, &h)
		if err == nil || !strings.Contains(err.Error(), "nothing for 1s") {
			t.Error(err)
		}
		if d := time.Since(start) - 39*limit/beats; d < limit || d > limit+limit/4 {
			t.Errorf("silence was noticed after %v", d)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := exchange(ctx, -1, func() error { return nil }, &h); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}

// TestVersions: a stage of another release is refused, with both versions.
func TestVersions(t *testing.T) {
	d := Description{Version: "v2", Stage: 2, Stages: 2, Layers: 4, First: 2, Last: 4, Digest: "d"}
	m := d.toProto()
	if err := d.differs(m); err != nil {
		t.Error(err)
	}
	m.EngineVersion++
	m.Version = "v9"
	if err := d.differs(m); !errors.Is(err, rpcerr.ProtocolMismatch) || !strings.Contains(err.Error(), "v9") ||
		!strings.Contains(err.Error(), "v2") {
		t.Error(err)
	}
	m = d.toProto()
	m.RowType = "bf16"
	if err := d.differs(m); !errors.Is(err, rpcerr.ProtocolMismatch) || !strings.Contains(err.Error(), "bf16") {
		t.Error(err)
	}
}

// TestRowsThatAreLate: a step waits for its rows as long as others come, and a while beyond.
func TestRowsThatAreLate(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		p := newPool(64, false)
		in := newIncoming(p, time.Minute)
		slot := func() []byte {
			b, err := p.take(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return b[:64]
		}
		start := time.Now()
		go func() {
			for n := uint64(1); n <= 3; n++ {
				time.Sleep(50 * time.Second)
				if err := in.put(n, slot()); err != nil {
					t.Error(err)
				}
			}
		}()
		rows, err := in.take(t.Context(), 3)
		if err != nil || time.Since(start) != 150*time.Second {
			t.Fatalf("after %v: %v", time.Since(start), err)
		}
		p.give(rows)
		start = time.Now()
		_, err = in.take(t.Context(), 4)
		if !errors.Is(err, rpcerr.EngineLost) || time.Since(start) != time.Minute {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := in.take(ctx, 5); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if len(p.free) != cap(p.free) {
			t.Errorf("%d of %d slots are free", len(p.free), cap(p.free))
		}
	})
}

// TestSlots: there is no memory for rows but the slots, of which those that are lent out stay until they are back.
func TestSlots(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		p := newPool(1<<16, true)
		var all [][]byte
		for range streamSlots {
			all = append(all, p.takeSpare())
		}
		if p.takeSpare() != nil {
			t.Error("a stream has taken a slot that links need")
		}
		for range linkSlots {
			b, err := p.take(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, b)
		}
		got := make(chan []byte, 1)
		go func() {
			b, err := p.take(t.Context())
			if err != nil {
				t.Error(err)
			}
			got <- b
		}()
		synctest.Wait()
		select {
		case <-got:
			t.Error("there are more slots than there may be")
		default:
		}
		p.give(all[0])
		all = append(all[1:], <-got)
		p.close()
		for i, b := range all {
			b = b[:cap(b)]
			b[0], b[len(b)-1] = byte(i), 1 // still mapped
			p.give(b)
		}
		if p.region != nil {
			t.Error("the region is mapped though all slots are back")
		}
		if _, err := p.take(t.Context()); err == nil {
			t.Error("a slot was lent after the end")
		}
	})
}

// TestSteadyStateAllocatesNothing: what a stage itself does with rows costs no memory.
func TestSteadyStateAllocatesNothing(t *testing.T) {
	if racetest.Enabled {
		t.Skip("the race detector allocates")
	}
	p := newPool(1<<10, false)
	in := newIncoming(p, time.Minute)
	n := uint64(0)
	ctx := t.Context()
	if allocs := testing.AllocsPerRun(1000, func() {
		slot, err := p.take(ctx)
		if err != nil {
			t.Fatal(err)
		}
		n++
		if err := in.put(n, slot); err != nil {
			t.Fatal(err)
		}
		rows, err := in.take(ctx, n)
		if err != nil {
			t.Fatal(err)
		}
		p.give(rows)
	}); allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}
