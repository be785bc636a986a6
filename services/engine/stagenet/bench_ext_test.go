package stagenet_test

import (
	"context"
	"errors"
	"net"
	"runtime"
	"slices"
	"testing"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/engine/enginetest"
	"github.com/tandem-inference/tandem/services/engine/staged"
	"github.com/tandem-inference/tandem/services/engine/stagenet"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/tensorwire"
)

// behindTCP opens a stage of fakes with hidden rows of the 27B model behind TCP; straight says that it reaches others.
func behindTCP(b testing.TB, stage, stages int, straight bool) engine.Open[engine.Target] {
	return func(ctx context.Context, o engine.OpenOptions, p engine.Progress) (engine.Target, error) {
		d := stagenet.Description{Version: "v", Stage: stage, Stages: stages, Layers: 4, First: o.LayerFirst,
			Last: o.LayerLast, Digest: "d"}
		dial := func(address string) (*grpc.ClientConn, error) {
			return grpc.NewClient(address, append(append(tensorwire.DialOptions(), rpcerr.DialOptions()...),
				grpc.WithTransportCredentials(insecure.NewCredentials()))...)
		}
		cfg := stagenet.ServerConfig{Description: d, Open: enginefake.New(wide).OpenTarget, Options: o, Dir: b.TempDir(),
			HangLimit: -1, Log: zap.NewNop(),
			Dial: func(string) (*grpc.ClientConn, error) { return nil, errors.New("no route") }}
		if straight {
			cfg.Dial = dial
		}
		s := stagenet.NewServer(cfg)
		options := append(append(tensorwire.ServerOptions(), rpcerr.ServerOptions(nil)...), grpc.WaitForHandlers(true))
		g := grpc.NewServer(append(options, stagenet.Options(tensorwire.MaxMessageBytes)...)...)
		s.Register(g)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		done := make(chan struct{})
		go func() { defer close(done); _ = g.Serve(l) }()
		b.Cleanup(func() { s.Drain(); g.Stop(); <-done })
		return stagenet.Open(stagenet.OpenConfig{Address: l.Addr().String(), Dial: dial, Want: d, HeadID: "head",
			HangLimit: -1, NoMemory: true, Log: zap.NewNop()})(ctx, o, p)
	}
}

// wide is a fake with hidden rows of the 27B model, 20,480 bytes.
var wide = enginefake.Options{Hidden: 5120}

// BenchmarkBorders reports what the way through stages behind TCP costs a step of 23 rows, 471,040 bytes at each
// border, less the time in the engines. Two stages have one border; of three, the second hands its rows straight to the
// third, or they go through the head. All ends are in this process, whose allocations, gRPC's included, are counted.
func BenchmarkBorders(b *testing.B) {
	for _, c := range []struct {
		name     string
		stages   int
		straight bool
	}{{"two", 2, true}, {"three, direct", 3, true}, {"three, by the head", 3, false}} {
		b.Run(c.name, func(b *testing.B) {
			stages := []staged.Stage{{Open: enginefake.New(wide).OpenTarget, Layers: 5 - c.stages}}
			for k := 2; k <= c.stages; k++ {
				stages = append(stages, staged.Stage{Open: behindTCP(b, k, c.stages, c.straight), Layers: 1})
			}
			e, err := staged.Open(stages, engine.HiddenF32)(b.Context(), enginetest.TargetOptions(), nil)
			if err != nil {
				b.Fatal(err)
			}
			defer e.Close()
			q, err := e.NewSequence(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			step := &engine.Step{Groups: []engine.Group{{Sequence: q, Rows: 23}}}
			for i := range int32(23) {
				step.Rows = append(step.Rows, engine.Row{Token: i, Position: i, Parent: i - 1, Mask: -1})
			}
			var r engine.StepResult
			run := func() time.Duration {
				start := time.Now()
				if err := e.Step(b.Context(), step, &r); err != nil {
					b.Fatal(err)
				}
				return time.Since(start) - time.Duration(r.EngineNanos)
			}
			for range 50 {
				run()
			}
			var over []time.Duration
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for b.Loop() {
				over = append(over, run())
			}
			runtime.ReadMemStats(&after)
			slices.Sort(over)
			b.ReportMetric(float64(over[len(over)/2].Nanoseconds())/1000, "way-p50-µs")
			b.ReportMetric(float64(over[len(over)*99/100].Nanoseconds())/1000, "way-p99-µs")
			b.ReportMetric(float64(after.Mallocs-before.Mallocs)/float64(len(over)), "allocs/step")
			b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/float64(len(over)), "B/step")
		})
	}
}

// BenchmarkLoopback reports the bound of the above: 471,040 bytes from a slice through TCP into another, without gRPC.
func BenchmarkLoopback(b *testing.B) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	const bytes = 23 * 5120 * 4
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		to := make([]byte, bytes)
		for {
			for n := 0; n < bytes; {
				m, err := c.Read(to[n:])
				if err != nil {
					return
				}
				n += m
			}
			if _, err := c.Write(to[:1]); err != nil {
				return
			}
		}
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	from := make([]byte, bytes)
	var took []time.Duration
	for b.Loop() {
		start := time.Now()
		if _, err := c.Write(from); err != nil {
			b.Fatal(err)
		}
		if _, err := c.Read(from[:1]); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1000, "p50-µs")
}
