package workernode

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tandem-inference/tandem/services/engineplugin"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/telemetry"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
)

// Restart policy of engines.
const (
	restartMin = 100 * time.Millisecond
	restartMax = 5 * time.Second
	// A worker whose engine dies more than restartBudget times within restartWindow gives up: the fault is not a passing
	// one, and its supervisor shall see it.
	restartBudget = 10
	restartWindow = 2 * time.Minute
)

// KeeperConfig sets up a Keeper.
type KeeperConfig struct {
	Opener  engineplugin.Opener
	Options engineplugin.OpenOptions
	// OnOpen prepares an engine before anybody gets it. May be nil.
	OnOpen func(context.Context, engineplugin.Engine) error
	// OnChange is told that the engine came or went. May be nil; must not block.
	OnChange func()
	Log      *zap.Logger
}

// Keeper holds the one engine of a worker and opens it again when it dies.
type Keeper struct {
	cfg KeeperConfig

	mu        sync.Mutex
	engine    engineplugin.Engine
	condemned bool          // the engine answers no more, by Report
	failed    chan struct{} // closed when it is condemned
	restarts  int
}

// NewKeeper returns a keeper without an engine.
func NewKeeper(cfg KeeperConfig) *Keeper {
	if cfg.Log == nil {
		cfg.Log = zap.NewNop()
	}
	return &Keeper{cfg: cfg}
}

// Engine returns the open engine, or UNAVAILABLE while there is none. A caller keeps what it got for as long as its
// sequences live: they do not exist in the next one.
func (k *Keeper) Engine() (engineplugin.Engine, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.engine == nil || k.condemned {
		return nil, rpcerr.EngineLost.With("the engine is restarting").WithRetryAfter(time.Second)
	}
	return k.engine, nil
}

// Restarts counts how often the engine was opened again.
func (k *Keeper) Restarts() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.restarts
}

// Report tells the keeper the error of a call on engine: after a device fault the engine answers nothing else any more and
// is replaced.
func (k *Keeper) Report(engine engineplugin.Engine, err error) {
	if rpcerr.Code(err) != codes.Internal {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.engine == engine && !k.condemned {
		k.cfg.Log.Error("engine failed, opening it again", zap.NamedError(telemetry.KeyErr, err))
		k.condemned = true
		close(k.failed)
	}
}

// Open opens the engine for the first time.
func (k *Keeper) Open(ctx context.Context) error {
	engine, err := k.open(ctx)
	if err != nil {
		return err
	}
	k.publish(engine)
	return nil
}

func (k *Keeper) open(ctx context.Context) (engineplugin.Engine, error) {
	engine, err := k.cfg.Opener.Open(ctx, k.cfg.Options, nil)
	if err != nil {
		return nil, err
	}
	if k.cfg.OnOpen != nil {
		if err := k.cfg.OnOpen(ctx, engine); err != nil {
			_ = engine.Close()
			return nil, err
		}
	}
	return engine, nil
}

func (k *Keeper) publish(engine engineplugin.Engine) {
	k.mu.Lock()
	k.engine, k.condemned, k.failed = engine, false, make(chan struct{})
	k.mu.Unlock()
	if k.cfg.OnChange != nil {
		k.cfg.OnChange()
	}
}

// Run watches the engine until ctx ends and then closes it. It fails when the engine dies too often.
func (k *Keeper) Run(ctx context.Context) error {
	var deaths []time.Time
	for {
		k.mu.Lock()
		engine, failed := k.engine, k.failed
		k.mu.Unlock()
		if engine == nil {
			return errors.New("the engine was never opened")
		}
		var done <-chan struct{}
		if m, ok := engine.(engineplugin.Mortal); ok {
			done = m.Done()
		}
		select {
		case <-done:
			if ctx.Err() == nil {
				k.cfg.Log.Error("engine died, opening it again", zap.NamedError(telemetry.KeyErr, engine.(engineplugin.Mortal).Err()))
			}
		case <-failed:
		case <-ctx.Done():
		}
		k.mu.Lock()
		k.engine = nil
		k.mu.Unlock()
		if k.cfg.OnChange != nil {
			k.cfg.OnChange()
		}
		_ = engine.Close()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		now := time.Now()
		deaths = append(deaths, now)
		for len(deaths) > 0 && now.Sub(deaths[0]) > restartWindow {
			deaths = deaths[1:]
		}
		if len(deaths) > restartBudget {
			return fmt.Errorf("engine died %d times within %s", len(deaths), restartWindow)
		}
		if err := k.reopen(ctx, len(deaths)); err != nil {
			return err
		}
	}
}

// reopen tries until it succeeds, with back-off that starts higher after several deaths.
func (k *Keeper) reopen(ctx context.Context, deaths int) error {
	wait := min(restartMin<<min(deaths-1, 6), restartMax)
	for {
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
		engine, err := k.open(ctx)
		if err == nil {
			k.mu.Lock()
			k.restarts++
			k.mu.Unlock()
			k.publish(engine)
			k.cfg.Log.Info("engine is back")
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		k.cfg.Log.Error("engine could not be opened, will try again", zap.NamedError(telemetry.KeyErr, err))
		wait = min(2*wait, restartMax)
	}
}
