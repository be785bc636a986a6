package workernode

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-inference/tandem/services/engineplugin"
	"github.com/tandem-inference/tandem/services/engineplugin/enginefake"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

func options() engineplugin.OpenOptions {
	return engineplugin.OpenOptions{Role: engineplugin.RoleTarget, ModelPath: "model", MaxSequences: 1, KVTypeK: -1, KVTypeV: -1}
}

func TestKeeperReopens(t *testing.T) {
	for _, test := range []struct {
		name string
		kill func(k *Keeper, e *enginefake.Engine)
	}{
		{"process dies", func(_ *Keeper, e *enginefake.Engine) { e.Crash() }},
		{"device fault", func(k *Keeper, e *enginefake.Engine) { k.Report(e, rpcerr.Internal("fault")) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				opener := enginefake.New(enginefake.Options{})
				prepared := 0
				k := NewKeeper(KeeperConfig{
					Opener: opener, Options: options(),
					OnOpen: func(context.Context, engineplugin.Engine) error { prepared++; return nil },
				})
				ctx, cancel := context.WithCancel(t.Context())
				if _, err := k.Engine(); !errors.Is(err, rpcerr.AnyUnavailable) {
					t.Errorf("before open: %v", err)
				}
				if err := k.Open(ctx); err != nil {
					t.Fatal(err)
				}
				ended := make(chan error, 1)
				go func() { ended <- k.Run(ctx) }()
				first, _ := k.Engine()
				test.kill(k, first.(*enginefake.Engine))
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
				cancel()
				if err := <-ended; !errors.Is(err, context.Canceled) {
					t.Errorf("run: %v", err)
				}
				if second.(*enginefake.Engine).Err() == nil {
					t.Error("the engine was not closed at the end")
				}
			})
		})
	}
}

func TestKeeperGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opener := enginefake.New(enginefake.Options{})
		k := NewKeeper(KeeperConfig{Opener: opener, Options: options()})
		if err := k.Open(t.Context()); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- k.Run(t.Context()) }()
		for {
			select {
			case err := <-ended:
				if len(opener.Opened()) != restartBudget+1 {
					t.Errorf("opened %d times, then %v", len(opener.Opened()), err)
				}
				return
			case <-time.After(time.Second):
				if e, err := k.Engine(); err == nil {
					e.(*enginefake.Engine).Crash()
				}
			}
		}
	})
}
