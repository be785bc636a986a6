package workernode

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/racetest"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// parked runs f with a keeper that parks after a minute, whose engine takes 3 s to open.
func parked(t *testing.T, lazy bool, f func(t *testing.T, k *Keeper[engine.Draft], o *enginefake.Opener)) {
	t.Helper()
	racetest.Bubble(t, func(t *testing.T) {
		opener := enginefake.New(enginefake.Options{OpenDelay: 3 * time.Second})
		k := NewDraftKeeper(KeeperConfig[engine.Draft]{
			Open: opener.OpenDraft, Lazy: lazy, ParkAfter: time.Minute,
			Options: engine.OpenOptions{ModelPath: "draft", TablesPath: "tables", MaxSequences: 1, KVTypeK: -1, KVTypeV: -1},
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- k.Run(ctx) }()
		f(t, k, opener)
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("run: %v", err)
		}
	})
}

// TestParks holds that an engine is closed after a minute without users, not while it has one, that its next user waits
// for another one, and that none of this counts as a restart.
func TestParks(t *testing.T) {
	parked(t, false, func(t *testing.T, k *Keeper[engine.Draft], o *enginefake.Opener) {
		if _, done, err := k.Use(t.Context()); err == nil {
			t.Error("an engine that is being opened for the first time was waited for: the worker is not ready then")
			done()
		}
		first, err := k.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, done, err := k.Use(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute)
		if e, err := k.Engine(); err != nil || e != first {
			t.Errorf("with a user: %v", err)
		}
		done()
		done() // twice counts once
		time.Sleep(50 * time.Second)
		if _, err := k.Engine(); err != nil {
			t.Errorf("after 50 s: %v", err)
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if _, err := k.Engine(); !errors.Is(err, rpcerr.AnyUnavailable) {
			t.Errorf("after 70 s: %v", err)
		}
		if !k.Ready() {
			t.Error("a parked worker is not ready")
		}
		var parked tandemv1.Heartbeat
		if k.Heartbeat(&parked); parked.Counters["engine_parked"] != 1 {
			t.Errorf("heartbeat of a parked worker: %v", parked.Counters)
		}
		if info, ok := k.Parked(); !ok || info.BlockSize != first.Info().BlockSize {
			t.Errorf("parked: %v, %+v", ok, info)
		}
		select {
		case <-o.Opened()[0].Done():
		default:
			t.Error("the engine is not closed")
		}
		var group sync.WaitGroup
		for range 3 { // all get the same one
			group.Go(func() {
				began := time.Now()
				e, done, err := k.Use(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				defer done()
				if took := time.Since(began); e == first || took != 3*time.Second {
					t.Errorf("after parking: the old engine %v, after %v", e == first, took)
				}
			})
		}
		group.Wait()
		if len(o.Opened()) != 2 {
			t.Errorf("%d engines were opened, want 2", len(o.Opened()))
		}
		var h tandemv1.Heartbeat
		k.Heartbeat(&h)
		if h.EngineRestarts != 0 || h.Counters["engine_parks"] != 1 || h.Counters["engine_parked"] != 0 ||
			h.Counters["device_memory_bytes"] == 0 {
			t.Errorf("heartbeat: %d restarts, counters %v", h.EngineRestarts, h.Counters)
		}
		o.Opened()[1].Crash()
		time.Sleep(10 * time.Second)
		k.Heartbeat(&h)
		if h.EngineRestarts != 1 {
			t.Errorf("after a death: %d restarts, want 1", h.EngineRestarts)
		}
	})
}

// TestLazy holds that an engine that nobody needs is not opened, and that a user who does not wait has it opened.
func TestLazy(t *testing.T) {
	parked(t, true, func(t *testing.T, k *Keeper[engine.Draft], o *enginefake.Opener) {
		time.Sleep(time.Hour)
		if len(o.Opened()) != 0 || !k.Ready() {
			t.Errorf("%d engines were opened, ready %v", len(o.Opened()), k.Ready())
		}
		if _, ok := k.Parked(); ok {
			t.Error("something is known of an engine that was never open")
		}
		if _, _, err := k.TryUse(); !errors.Is(err, rpcerr.AnyUnavailable) {
			t.Errorf("at first: %v", err)
		}
		if !k.Ready() {
			t.Error("not ready while the engine is opened for a user")
		}
		time.Sleep(4 * time.Second)
		_, done, err := k.TryUse()
		if err != nil {
			t.Fatal(err)
		}
		done()
	})
}

// TestParksWhileDying holds that a death at the moment of parking neither hangs nor opens an engine that nobody needs.
func TestParksWhileDying(t *testing.T) {
	parked(t, false, func(t *testing.T, k *Keeper[engine.Draft], o *enginefake.Opener) {
		if _, err := k.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		k.parking.mu.Lock()
		o.Opened()[0].Crash()
		if k.supervisor.Park() { // the supervisor may have seen the death first
			k.parking.asleep = true
		}
		k.parking.mu.Unlock()
		time.Sleep(10 * time.Second)
		e, done, err := k.Use(t.Context())
		if err != nil || e == nil {
			t.Fatal(err)
		}
		done()
	})
}
