package workernode

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/racetest"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestKeeperReopens(t *testing.T) {
	for _, test := range []struct {
		name string
		kill func(k *Keeper[engine.Target], o *enginefake.Opener)
	}{
		{"process dies", func(_ *Keeper[engine.Target], o *enginefake.Opener) { o.Opened()[0].Crash() }},
		{"device fault", func(k *Keeper[engine.Target], _ *enginefake.Opener) {
			e, _ := k.Engine()
			k.Report(e, rpcerr.Internal("fault"))
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			racetest.Bubble(t, func(t *testing.T) {
				prepared, opener := 0, enginefake.New(enginefake.Options{})
				k := NewTargetKeeper(KeeperConfig[engine.Target]{
					Open:    opener.OpenTarget,
					Options: engine.OpenOptions{ModelPath: "model", MaxSequences: 1, KVTypeK: -1, KVTypeV: -1},
					OnOpen:  func(context.Context, engine.Target) error { prepared++; return nil },
				})
				if _, err := k.Engine(); !errors.Is(err, rpcerr.AnyUnavailable) {
					t.Errorf("before open: %v", err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- k.Run(ctx) }()
				first, err := k.Wait(ctx)
				if err != nil {
					t.Fatal(err)
				}
				test.kill(k, opener)
				synctest.Wait()
				if _, err := k.Engine(); !errors.Is(err, rpcerr.AnyUnavailable) {
					t.Errorf("after death: %v", err)
				}
				time.Sleep(time.Second)
				synctest.Wait()
				second, err := k.Engine()
				if err != nil || second == first || k.Restarts() != 1 || prepared != 2 {
					t.Errorf("engine %p after %p, %v, %d restarts, prepared %d times", second, first, err, k.Restarts(), prepared)
				}
				if e, generation, err := k.Next(ctx, 1); e != second || generation != 2 || err != nil {
					t.Errorf("after the first: engine %p of generation %d, %v", e, generation, err)
				}
				cancel()
				if _, _, err := k.Next(ctx, 2); !errors.Is(err, context.Canceled) {
					t.Errorf("after the last: %v", err)
				}
				if err := <-ended; err != nil {
					t.Errorf("run: %v", err)
				}
			})
		})
	}
}
