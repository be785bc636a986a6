package stagenet

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/bounds"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/border"
	"github.com/tandem-inference/tandem/services/engine/host"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/telemetry"
	"github.com/tandem-inference/tandem/services/tensorwire"
	"github.com/tandem-inference/tandem/services/transfer"
)

// OpenConfig says which stage a head holds.
type OpenConfig struct {
	Address string
	// Dial makes a connection; its options include host.LoopDialOption.
	Dial func(address string) (*grpc.ClientConn, error)
	// Want is what the stage must be.
	Want Description
	// HeadID names the head's process.
	HeadID string
	// HangLimit is how long the stage may be silent; as in host.HostConfig.
	HangLimit time.Duration
	// NoMemory has hidden rows sent even where the stage is on this host.
	NoMemory bool
	Log      *zap.Logger
}

// Open returns what opens the stage's engine. It waits for a stage that cannot be reached, until its context ends;
// MODEL_MISMATCH and PROTOCOL_MISMATCH say that the stage is not the one that is wanted.
func Open(cfg OpenConfig) engine.Open[engine.Target] {
	return func(ctx context.Context, o engine.OpenOptions, p engine.Progress) (engine.Target, error) {
		t, err := open(ctx, &cfg, o, p)
		if err != nil {
			return nil, fmt.Errorf("the stage at %s: %w", cfg.Address, err)
		}
		return t, nil
	}
}

// target is a stage's engine.
type target struct {
	*host.RemoteTarget
	cfg    *OpenConfig
	client tandemv1.StageServiceClient

	name   string // in the stage's certificate, as who
	hidden int    // values of a row
	last   bool   // it has the head

	hangUp func() // closes the connection
	stop   context.CancelFunc
	wait   sync.WaitGroup
}

// patience is how long a stage may be unreachable before a line of the log says so.
const patience = 2 * time.Second

func open(ctx context.Context, cfg *OpenConfig, o engine.OpenOptions, p engine.Progress) (_ *target, err error) {
	conn, err := cfg.Dial(cfg.Address)
	if err != nil {
		return nil, err
	}
	held, stop := context.WithCancel(context.WithoutCancel(ctx))
	t := &target{cfg: cfg, client: tandemv1.NewStageServiceClient(conn), stop: stop}
	t.hangUp = sync.OnceFunc(func() { _ = conn.Close() }) // it fails when it was closed before only
	defer func() {
		if err != nil {
			_ = t.letGo() // err says why there is no engine
		}
	}()
	opened := context.AfterFunc(ctx, stop)
	defer opened()
	warn := time.AfterFunc(patience, func() {
		cfg.Log.Warn("waiting for a stage", zap.String(telemetry.KeyAddress, cfg.Address))
	})
	stream, err := t.hold(held)
	warn.Stop()
	if err != nil {
		if cause := ctx.Err(); cause != nil {
			return nil, rpcerr.From(cause)
		}
		return nil, err
	}
	// The engine may be lost while it opens: then nobody answers any more but the stream says so.
	opening, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var lostMu sync.Mutex
	var lost error
	lose := func(cause error) {
		lostMu.Lock()
		defer lostMu.Unlock()
		lost = rpcerr.EngineLost.With("the stage at %s is gone", cfg.Address).WithCause(cause)
		cancel(lost)
		if t.RemoteTarget != nil {
			t.Kill(lost)
		}
	}
	t.wait.Go(func() { t.attend(held, stream, lose) })
	o.ModelPath, o.TablesPath, o.Device = "", "", ""
	remote, err := host.OpenTarget(opening, conn, o, p, t.letGo)
	lostMu.Lock()
	defer lostMu.Unlock()
	if lost != nil {
		err = lost
	}
	if err == nil {
		i := remote.Info()
		t.hidden, t.last = i.Hidden, i.LayerLast == i.Layers
		if i.LayerFirst != cfg.Want.First || i.LayerLast != cfg.Want.Last || i.Hidden < 1 {
			err = rpcerr.ModelMismatch.With("its engine has layers %d to %d", i.LayerFirst, i.LayerLast-1)
		}
	}
	if err != nil {
		return nil, err
	}
	if !opened() {
		return nil, rpcerr.From(ctx.Err())
	}
	t.RemoteTarget = remote
	return t, nil
}

// hold takes the stage and checks what it is.
func (t *target) hold(ctx context.Context) (tandemv1.StageService_HoldClient, error) {
	stream, err := t.client.Hold(ctx, grpc.WaitForReady(true))
	if err != nil {
		return nil, err
	}
	if err := stream.Send(&tandemv1.HoldRequest{HeadId: t.cfg.HeadID, EngineVersion: engineVersion}); err != nil &&
		!errors.Is(err, io.EOF) { // EOF: Recv has the reason
		return nil, err
	}
	m, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	if err := bounds.Check(m); err != nil {
		return nil, rpcerr.ProtocolMismatch.With("describes itself with %v", err)
	}
	t.name, _ = who(stream.Context())
	return stream, t.cfg.Want.differs(m)
}

// attend exchanges messages with the stage and loses the engine when it is gone.
func (t *target) attend(ctx context.Context, stream tandemv1.StageService_HoldClient, lose func(error)) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var h heard
	t.wait.Go(func() {
		for {
			if _, err := stream.Recv(); err != nil {
				cancel(err)
				return
			}
			h.n.Add(1)
		}
	})
	lose(exchange(ctx, t.cfg.HangLimit, func() error {
		if err := stream.Send(&tandemv1.HoldRequest{}); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		return nil
	}, &h))
}

// letGo ends the hold and the connection.
func (t *target) letGo() error {
	t.stop()
	t.hangUp()
	t.wait.Wait()
	return nil
}

// Kill loses the stage's engine: its calls end at once.
func (t *target) Kill(cause error) {
	t.RemoteTarget.Kill(cause)
	t.hangUp() // calls that wait for an answer end
}

// ShareRows implements border.Sharer, for a stage on this host.
func (t *target) ShareRows(ctx context.Context, in, out *border.Region) error {
	if t.cfg.NoMemory {
		return errors.ErrUnsupported
	}
	return t.RemoteTarget.ShareRows(ctx, in, out)
}

// Step implements engine.Target. An answer of the wrong size loses the engine: others build on it.
func (t *target) Step(ctx context.Context, step *engine.Step, result *engine.StepResult) error {
	if err := t.RemoteTarget.Step(ctx, step, result); err != nil {
		return err
	}
	if err := t.checkStep(step, result); err != nil {
		t.Kill(rpcerr.EngineLost.With("the stage at %s answers wrong", t.cfg.Address).WithCause(err))
		return t.Err()
	}
	return nil
}

// checkStep compares the sizes of what other stages read.
func (t *target) checkStep(step *engine.Step, result *engine.StepResult) error {
	want := len(step.Rows) * t.hidden * step.Hidden.Bytes()
	if step.RowsTo != 0 { // the next stage compares
		want = 0
	}
	if !t.last && len(result.HiddenOut) != want {
		return fmt.Errorf("%d bytes of hidden rows instead of %d", len(result.HiddenOut), want)
	}
	rows := 0
	for i := range step.Groups {
		rows += int(step.Groups[i].Kept.Rows)
	}
	for i := range step.Rows {
		if step.Rows[i].Want&engine.WantFeatures != 0 {
			rows++
		}
	}
	if rows == 0 {
		return nil
	}
	info := t.Info()
	want = 0
	switch step.Features {
	case engine.FeatureRawF32:
		want = 4 * rows * info.FeatureRaw
	case engine.FeatureRawBF16:
		want = 2 * rows * info.FeatureRaw
	case engine.FeatureFusedF32:
		want = 4 * rows * info.FeatureFused
	case engine.FeatureFusedBF16:
		want = 2 * rows * info.FeatureFused
	case engine.FeatureNone:
	}
	if len(result.Features) != want {
		return fmt.Errorf("%d bytes of features instead of %d", len(result.Features), want)
	}
	return nil
}

// LoadFuse implements engine.Target: the stage gets the file once and finds it by its digest.
func (t *target) LoadFuse(ctx context.Context, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return rpcerr.NotFound("path: %v", err)
	}
	defer file.Close()
	hash := sha256.New()
	size, err := io.Copy(hash, file)
	if err != nil {
		return rpcerr.Internal("path: %v", err)
	}
	digest := hex.EncodeToString(hash.Sum(nil))
	err = t.RemoteTarget.LoadFuse(ctx, digest)
	if !errors.Is(err, rpcerr.AnyNotFound) {
		return err
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return rpcerr.Internal("path: %v", err)
	}
	if err := t.putFuse(ctx, file, digest, size); err != nil {
		return fmt.Errorf("hand the fuse to the stage at %s: %w", t.cfg.Address, err)
	}
	return t.RemoteTarget.LoadFuse(ctx, digest)
}

func (t *target) putFuse(ctx context.Context, file io.Reader, digest string, size int64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := t.client.PutFuse(ctx)
	if err != nil {
		return err
	}
	m := &tandemv1.PutFuseRequest{Digest: digest, TotalBytes: size}
	err = transfer.Send(file, tensorwire.ChunkBytes, func(piece []byte) error {
		m.Chunk = piece
		err := stream.Send(m)
		m = &tandemv1.PutFuseRequest{}
		return err
	})
	if err != nil && !errors.Is(err, io.EOF) { // EOF: CloseAndRecv has the reason
		return err
	}
	_, err = stream.CloseAndRecv()
	return err
}
