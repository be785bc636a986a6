package stagenet_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	enginev1 "github.com/tandem-inference/tandem/proto/tandem/engine/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/engine/enginetest"
	"github.com/tandem-inference/tandem/services/engine/host"
	"github.com/tandem-inference/tandem/services/engine/staged"
	"github.com/tandem-inference/tandem/services/engine/stagenet"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/tensorwire"
	"github.com/tandem-inference/tandem/services/testwait"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// second describes the last of two stages of the fake's four layers.
var second = stagenet.Description{Version: "v", Stage: 2, Stages: 2, Layers: 4, First: 2, Last: 4, Digest: "d"}

// stage is a server and what it opened.
type stage struct {
	*stagenet.Server
	lis *bufconn.Listener

	mu      sync.Mutex // guards engines
	engines []*enginefake.Engine
	wrap    func(engine.Target) engine.Target // nil = engines as they are
	mute    atomic.Bool                       // connections bring nothing more to heads
}

// serve starts a stage of fakes.
func serve(t testing.TB, d stagenet.Description, opener engine.Opener, limit time.Duration,
	with ...func(*stagenet.ServerConfig)) *stage {
	s := &stage{lis: bufconn.Listen(1 << 16)}
	cfg := stagenet.ServerConfig{
		Description: d, Dir: t.TempDir(), HangLimit: limit, Log: zap.NewNop(),
		Options: engine.OpenOptions{ModelPath: "target", Threads: 7},
		Open: func(ctx context.Context, o engine.OpenOptions, p engine.Progress) (engine.Target, error) {
			if o.ModelPath != "target" || o.Threads != 7 {
				t.Errorf("opened with %+v", o)
			}
			e, err := opener.OpenTarget(ctx, o, p)
			if err != nil {
				return nil, err
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			if fake, ok := e.(*enginefake.Target); ok {
				s.engines = append(s.engines, fake.Engine)
			}
			if s.wrap != nil {
				return s.wrap(e), nil
			}
			return e, nil
		},
	}
	for _, change := range with {
		change(&cfg)
	}
	s.Server = stagenet.NewServer(cfg)
	options := append(tensorwire.ServerOptions(), rpcerr.ServerOptions(nil)...)
	g := grpc.NewServer(append(append(options, grpc.WaitForHandlers(true)), stagenet.Options(64<<20)...)...)
	s.Register(g)
	done := make(chan struct{})
	go func() { defer close(done); _ = g.Serve(s.lis) }()
	t.Cleanup(func() {
		s.Drain()
		g.Stop()
		<-done
	})
	return s
}

func (s *stage) dial(string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///stage", append(host.DialOptions(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			c, err := s.lis.DialContext(ctx)
			return &muted{Conn: c, mute: &s.mute, closed: make(chan struct{})}, err
		}))...)
}

// muted is a connection that may lose all that comes.
type muted struct {
	net.Conn
	mute   *atomic.Bool
	once   sync.Once
	closed chan struct{}
}

func (c *muted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.mute.Load() {
		<-c.closed
		return 0, net.ErrClosed
	}
	return n, err
}

func (c *muted) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// open returns what a head opens the stage with.
func (s *stage) open(head string, want stagenet.Description, limit time.Duration) engine.Open[engine.Target] {
	return stagenet.Open(stagenet.OpenConfig{Address: "there", Dial: s.dial, Want: want, HeadID: head, HangLimit: limit,
		Log: zap.NewNop()})
}

// options of the second stage.
func options() engine.OpenOptions {
	o := enginetest.TargetOptions()
	o.LayerFirst, o.LayerLast = 2, 4
	return o
}

func (s *stage) engine(i int) *enginefake.Engine {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.engines[i]
}

// split opens targets whose second stage is served elsewhere.
type split struct {
	engine.Opener
	t    *testing.T
	rows engine.HiddenEncoding
}

func (o split) OpenTarget(ctx context.Context, options engine.OpenOptions, p engine.Progress) (engine.Target, error) {
	there := func(ctx context.Context, options engine.OpenOptions, p engine.Progress) (engine.Target, error) {
		d := second
		d.First, d.Last = options.LayerFirst, options.LayerLast
		s := serve(o.t, d, caps{o.Opener, options}, 0)
		return s.open("head", d, 0)(ctx, options, p)
	}
	return staged.Open([]staged.Stage{{Open: o.Opener.OpenTarget, Layers: 2}, {Open: there, Layers: 2}},
		o.rows)(ctx, options, p)
}

// caps opens targets with the memory that the head has, in place of the stage's own.
type caps struct {
	engine.Opener
	head engine.OpenOptions
}

func (c caps) OpenTarget(ctx context.Context, o engine.OpenOptions, p engine.Progress) (engine.Target, error) {
	o.MemoryCapBytes, o.HostCapBytes = c.head.MemoryCapBytes, c.head.HostCapBytes
	return c.Opener.OpenTarget(ctx, o, p)
}

// TestConformance: a target whose second stage is served elsewhere keeps every promise of an engine.
func TestConformance(t *testing.T) {
	draft := filepath.Join(t.TempDir(), "draft")
	if err := os.WriteFile(draft, make([]byte, 3<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, rows := range map[string]engine.HiddenEncoding{"f32": engine.HiddenF32, "bf16": engine.HiddenBF16} {
		t.Run(name, func(t *testing.T) {
			enginetest.Run(t, func(t *testing.T) (engine.Opener, enginetest.Models) {
				return split{enginefake.New(enginefake.Options{}), t, rows}, enginetest.Models{
					Target: "target", Draft: draft, Tables: "target", Score: "score", Missing: "missing", OtherKV: 1,
				}
			})
		})
	}
}

// TestUnfit: a stage that is not the one that the head wants is refused, with what is wrong, and is free again.
func TestUnfit(t *testing.T) {
	s := serve(t, second, enginefake.New(enginefake.Options{}), 0)
	for text, change := range map[string]func(*stagenet.Description){
		"it is stage 2/2, here it is to be 3/3":             func(d *stagenet.Description) { d.Stage, d.Stages = 3, 3 },
		"its model has 4 layers, this one 5":                func(d *stagenet.Description) { d.Layers = 5 },
		"it serves layers 2 to 3, here they are to be 3 to": func(d *stagenet.Description) { d.First = 3 },
		"have digest d, those here e":                       func(d *stagenet.Description) { d.Digest = "e" },
	} {
		want := second
		change(&want)
		_, err := s.open("head", want, 0)(t.Context(), options(), nil)
		if !errors.Is(err, rpcerr.ModelMismatch) || !strings.Contains(err.Error(), text) ||
			!strings.Contains(err.Error(), "the stage at there") {
			t.Errorf("%s: %v", text, err)
		}
	}
	e, err := s.open("other", second, 0)(t.Context(), options(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

// TestNotHeld: calls of a connection that does not hold the stage reach no engine, and say that it is gone: requests
// that lose it are replayed.
func TestNotHeld(t *testing.T) {
	s := serve(t, second, enginefake.New(enginefake.Options{}), 0)
	e, err := s.open("head", second, 0)(t.Context(), options(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	conn, err := s.dial("")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = enginev1.NewEngineServiceClient(conn).GetInfo(t.Context(), &enginev1.GetInfoRequest{})
	if !errors.Is(rpcerr.From(err), rpcerr.EngineLost) || !strings.Contains(err.Error(), "does not hold") {
		t.Errorf("a call: %v", err)
	}
	stream, err := enginev1.NewTargetServiceClient(conn).Step(t.Context())
	if err == nil {
		_, err = stream.Recv()
	}
	if !errors.Is(rpcerr.From(err), rpcerr.EngineLost) {
		t.Errorf("a stream: %v", err)
	}
}

// TestOneHead: a second head is refused while the first holds the stage; a second connection of the first takes it
// over, and the engine of the one before is closed.
func TestOneHead(t *testing.T) {
	const limit = 100 * time.Millisecond
	s := serve(t, second, enginefake.New(enginefake.Options{}), limit)
	first, err := s.open("head", second, limit)(t.Context(), options(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	_, err = s.open("other", second, limit)(t.Context(), options(), nil)
	if !errors.Is(err, rpcerr.AnyResourceExhausted) || !strings.Contains(err.Error(), "another head") {
		t.Errorf("another head: %v", err)
	}
	next, err := s.open("head", second, limit)(t.Context(), options(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	testwait.For(t, first.(engine.Mortal).Done(), "the first connection is lost")
	testwait.For(t, s.engine(0).Done(), "its engine is closed")
	if _, err := next.NewSequence(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestEngineDies: a head learns of the end of the stage's engine, and can open another.
func TestEngineDies(t *testing.T) {
	s := serve(t, second, enginefake.New(enginefake.Options{}), 0)
	for i := range 3 {
		e, err := s.open("head", second, 0)(t.Context(), options(), nil)
		if err != nil {
			t.Fatal(err)
		}
		s.engine(i).Crash()
		testwait.For(t, e.(engine.Mortal).Done(), "the engine is lost")
		if _, err := e.NewSequence(t.Context()); !errors.Is(err, rpcerr.EngineLost) {
			t.Error(err)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestSilence: when nothing comes through a connection that stands, both sides notice, and the stage is free.
func TestSilence(t *testing.T) {
	const limit = 200 * time.Millisecond
	s := serve(t, second, enginefake.New(enginefake.Options{}), limit)
	e, err := s.open("head", second, limit)(t.Context(), options(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	s.mute.Store(true)
	testwait.For(t, e.(engine.Mortal).Done(), "the head notices")
	if err := e.(engine.Mortal).Err(); !errors.Is(err, rpcerr.EngineLost) {
		t.Error(err)
	}
	testwait.For(t, s.engine(0).Done(), "the stage notices")
	s.mute.Store(false)
	again, err := s.open("head", second, limit)(t.Context(), options(), nil)
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
}

// short gives too few bytes.
type short struct{ engine.Target }

func (s short) Step(ctx context.Context, step *engine.Step, r *engine.StepResult) error {
	err := s.Target.Step(ctx, step, r)
	if len(r.HiddenOut) > 0 {
		r.HiddenOut = r.HiddenOut[:len(r.HiddenOut)-4]
	}
	if len(r.Features) > 0 {
		r.Features = r.Features[:len(r.Features)-4]
	}
	return err
}

// TestWrongSizes: a stage whose answers have other sizes than asked for is given up, before others read them.
func TestWrongSizes(t *testing.T) {
	for name, want := range map[string]uint32{"hidden": 0, "features": engine.WantFeatures} {
		d := second
		last := 4
		if name == "hidden" {
			d.First, d.Last, last = 0, 2, 2
		} else {
			d.First = 0
		}
		s := serve(t, d, enginefake.New(enginefake.Options{}), 0)
		s.wrap = func(e engine.Target) engine.Target { return short{e} }
		o := options()
		o.LayerFirst, o.LayerLast = 0, last
		e, err := s.open("head", d, 0)(t.Context(), o, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		if err := e.SetCapture(t.Context(), []int32{1}); err != nil {
			t.Fatal(err)
		}
		q, err := e.NewSequence(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		err = e.Step(t.Context(), &engine.Step{Groups: []engine.Group{{Sequence: q, Rows: 1}},
			Rows: []engine.Row{{Parent: -1, Mask: -1, Want: want}}, Features: engine.FeatureRawF32}, &engine.StepResult{})
		if !errors.Is(err, rpcerr.EngineLost) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestOtherLayers: the head cannot have other layers opened than the stage's.
func TestOtherLayers(t *testing.T) {
	s := serve(t, second, enginefake.New(enginefake.Options{}), 0)
	o := options()
	o.LayerFirst = 1
	if _, err := s.open("head", second, 0)(t.Context(), o, nil); !errors.Is(err, rpcerr.AnyInvalidArgument) {
		t.Error(err)
	}
}

// TestWaits: a head waits for a stage that is not there yet, and gives up with its context.
func TestWaits(t *testing.T) {
	lis := bufconn.Listen(1)
	lis.Close()
	s := &stage{lis: lis}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := s.open("head", second, 0)(ctx, options(), nil)
		ended <- err
	}()
	cancel()
	if err := testwait.For(t, ended, "the head gives up"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
