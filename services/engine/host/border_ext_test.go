package host_test

import (
	"bytes"
	"context"
	"math"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	enginev1 "github.com/tandem-inference/tandem/proto/tandem/engine/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/border"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/engine/enginetest"
	"github.com/tandem-inference/tandem/services/engine/host"
	"github.com/tandem-inference/tandem/services/engine/staged"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/tensorwire"
)

// middle is a fake with hidden rows of the 27B model, 20,480 bytes.
var middle = enginefake.Options{Hidden: 5120}

// loopback opens engines behind a TCP connection, whose streams do not go through shared memory.
type loopback struct {
	engine.Opener
	b *testing.B
}

func (l loopback) OpenTarget(ctx context.Context, o engine.OpenOptions, p engine.Progress) (engine.Target, error) {
	return host.OpenTarget(ctx, serveEngine(l.b, host.NewServer(l.Opener)), o, p, func() error { return nil })
}

// serveEngine connects to a server behind TCP until the test ends.
func serveEngine(t testing.TB, s *host.Server) *grpc.ClientConn {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g, done := grpc.NewServer(host.ServerOptions(nil)...), make(chan struct{})
	s.Register(g)
	go func() { defer close(done); _ = g.Serve(listener) }()
	dial := slices.Concat(tensorwire.DialOptions(), rpcerr.DialOptions(),
		[]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())})
	conn, err := grpc.NewClient(listener.Addr().String(), dial...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		g.Stop()
		<-done
		if err := s.Shutdown(); err != nil {
			t.Error(err)
		}
	})
	return conn
}

// middleStage opens a stage in the middle and a step of 23 rows, with what the stage before makes of them.
func middleStage(t testing.TB, opener engine.Opener) (engine.Target, *engine.Step) {
	t.Helper()
	var step engine.Step
	for i := range int32(23) {
		step.Rows = append(step.Rows, engine.Row{Token: i, Position: i, Parent: i - 1, Mask: -1})
	}
	stage := func(opener engine.Opener, first, last int) engine.Target {
		o := enginetest.TargetOptions()
		o.LayerFirst, o.LayerLast = first, last
		e, err := opener.OpenTarget(t.Context(), o, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = e.Close() })
		q, err := e.NewSequence(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		step.Groups = []engine.Group{{Sequence: q, Rows: len(step.Rows)}}
		return e
	}
	var r engine.StepResult
	if err := stage(enginefake.New(middle), 0, 1).Step(t.Context(), &step, &r); err != nil {
		t.Fatal(err)
	}
	step.HiddenIn = r.HiddenOut
	return stage(opener, 1, 3), &step
}

// regions makes the borders before and behind a stage and tells the engine of them.
func regions(t testing.TB, e engine.Target, bytes int) (in, out *border.Region) {
	t.Helper()
	for _, r := range []**border.Region{&in, &out} {
		var err error
		if *r, err = border.New(2, bytes); err != nil {
			t.Fatal(err)
		}
		t.Cleanup((*r).Close)
	}
	if err := e.(border.Sharer).ShareRows(t.Context(), in, out); err != nil {
		t.Fatal(err)
	}
	return in, out
}

// TestSharedRows: hidden rows in shared memory give the rows that sent ones give, in either direction alone and in
// both, and a step whose rows are sent leaves shared memory alone.
func TestSharedRows(t *testing.T) {
	e, step := middleStage(t, newHost(t, "middle"))
	var sent engine.StepResult
	if err := e.Step(t.Context(), step, &sent); err != nil || len(sent.HiddenOut) != len(step.HiddenIn) {
		t.Fatal(len(sent.HiddenOut), err)
	}
	in, out := regions(t, e, len(step.HiddenIn))
	own := step.HiddenIn
	placed := append(in.Take(), own...)
	slot := out.Take()
	// Requests take turns on eight streams, each of which has memory of its own.
	for i := range 32 {
		ways := [][2]bool{{true, true}, {false, true}, {true, false}, {false, false}}[(i+i/8)%4]
		var r engine.StepResult
		if step.HiddenIn = own; ways[0] {
			step.HiddenIn = placed
			copy(placed, own)
		} else {
			clear(placed)
		}
		clear(slot[:cap(slot)])
		if ways[1] {
			r.HiddenOut = slot
		}
		if err := e.Step(t.Context(), step, &r); err != nil {
			t.Fatal(ways, err)
		}
		if !slices.Equal(r.HiddenOut, sent.HiddenOut) {
			t.Errorf("in and out shared %v: other rows", ways)
		}
		if _, ok := out.Place(r.HiddenOut); ok != ways[1] {
			t.Errorf("in and out shared %v: the rows lie in shared memory: %v", ways, ok)
		}
		used := func(b []byte) bool { return slices.ContainsFunc(b, func(b byte) bool { return b != 0 }) }
		if !ways[1] && used(slot[:cap(slot)]) || !ways[0] && used(placed) {
			t.Errorf("in and out shared %v: sent rows were written to shared memory", ways)
		}
		if ways[0] && !slices.Equal(placed, own) || len(step.HiddenIn) != len(own) {
			t.Errorf("in and out shared %v: the rows of the step have changed", ways)
		}
	}
	// A room that is too small is not used.
	step.HiddenIn = own
	r := engine.StepResult{HiddenOut: slot[:0:64]}
	if err := e.Step(t.Context(), step, &r); err != nil || !slices.Equal(r.HiddenOut, sent.HiddenOut) {
		t.Errorf("a room of 64 bytes: %d bytes, %v", len(r.HiddenOut), err)
	}
	if err := e.(border.Sharer).ShareRows(t.Context(), in, out); err == nil {
		t.Error("rows were shared twice")
	}
}

// TestSharedRowsAreChecked: what a request names must lie in shared memory, and regions must be this host's.
func TestSharedRowsAreChecked(t *testing.T) {
	var names [2]string
	var sizes [2]uint64
	for i := range names {
		r, err := border.New(1, 1000)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Close)
		name, n := r.Name()
		names[i], sizes[i] = name, uint64(n)
	}
	server := host.NewServer(enginefake.New(middle))
	conn := serveEngine(t, server)
	client := enginev1.NewTargetServiceClient(conn)
	share := func(m *enginev1.ShareRowsRequest) codes.Code {
		_, err := client.ShareRows(t.Context(), m)
		return rpcerr.Code(err)
	}
	if got := share(&enginev1.ShareRowsRequest{InName: names[0], InBytes: sizes[0]}); got != codes.FailedPrecondition {
		t.Errorf("without an engine: %v", got)
	}
	o := enginetest.TargetOptions()
	o.LayerFirst, o.LayerLast = 1, 3
	e, err := host.OpenTarget(t.Context(), conn, o, nil, func() error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	for what, m := range map[string]*enginev1.ShareRowsRequest{
		"another size": {InName: names[0], InBytes: sizes[0] + 64}, "no bytes": {OutName: names[1]},
		"another number": {InName: names[0][:len(names[0])-4] + "0000", InBytes: sizes[0]},
		"no name":        {InName: "rows", InBytes: sizes[0]},
		"far too large":  {InName: names[0], InBytes: 1 << 63},
	} {
		if got := share(m); got != codes.FailedPrecondition {
			t.Errorf("%s: %v", what, got)
		}
	}
	both := &enginev1.ShareRowsRequest{InName: names[0], InBytes: sizes[0], OutName: names[1], OutBytes: sizes[1]}
	if got := share(both); got != codes.OK {
		t.Fatal(got)
	}
	q, err := e.NewSequence(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stream, err := client.Step(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i, m := range []*enginev1.StepRequest{
		{SharedIn: 1, SharedInBytes: 64}, {SharedIn: 64, SharedInBytes: 1 << 40},
		{SharedIn: math.MaxUint64, SharedInBytes: 8},
		{SharedOut: 2000, SharedOutBytes: 64}, {SharedOut: 64, SharedOutBytes: math.MaxUint64},
	} {
		m.Id = uint64(i + 1)
		m.Groups = []*enginev1.Group{{Sequence: int32(q), Rows: 1, Kind: enginev1.GroupKind_GROUP_KIND_DECODE}}
		m.Rows, m.Hidden = []*enginev1.Row{{Parent: -1, Mask: -1}}, enginev1.HiddenEncoding_HIDDEN_ENCODING_F32
		if err := stream.Send(m); err != nil {
			t.Fatal(err)
		}
		answer, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		f := answer.GetFailure()
		if f.GetCode() != int32(codes.InvalidArgument) || !strings.HasPrefix(f.GetField(), "shared_") {
			t.Errorf("%v: %v", m, f)
		}
	}
}

// BenchmarkBorder reports what a border between two stages costs a step of 23 rows: a stage in the middle takes 471,040
// bytes of hidden rows and hands on as many, less the time inside the engine. In "shared rows" the engine reads and
// writes them where its neighbours do; in "shared memory" they are messages through it.
func BenchmarkBorder(b *testing.B) {
	for name, opener := range map[string]engine.Opener{
		"shared rows": newHost(b, "middle"), "shared memory": newHost(b, "middle"),
		"gRPC": loopback{enginefake.New(middle), b},
	} {
		b.Run(name, func(b *testing.B) {
			e, step := middleStage(b, opener)
			var r engine.StepResult
			if name == "shared rows" {
				in, out := regions(b, e, len(step.HiddenIn))
				step.HiddenIn, r.HiddenOut = append(in.Take(), step.HiddenIn...), out.Take()
			}
			var overhead []time.Duration
			b.ReportAllocs()
			for b.Loop() {
				start := time.Now()
				if err := e.Step(b.Context(), step, &r); err != nil {
					b.Fatal(err)
				}
				overhead = append(overhead, time.Since(start)-time.Duration(r.EngineNanos))
			}
			slices.Sort(overhead)
			b.ReportMetric(float64(overhead[len(overhead)/2].Nanoseconds())/1000, "border-p50-µs")
			b.ReportMetric(float64(overhead[len(overhead)*99/100].Nanoseconds())/1000, "border-p99-µs")
		})
	}
}

// TestStagesShareRows: processes of neighbouring stages have their border in memory, the tokens are those of one
// engine, and nothing of it stays mapped.
func TestStagesShareRows(t *testing.T) {
	h := newHost(t, "middle")
	count := func() int {
		maps, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Fatal(err)
		}
		return bytes.Count(maps, []byte("memfd:tandem-rows"))
	}
	before := count()
	var stages []staged.Stage
	for _, layers := range []int{1, 2, 1} {
		stages = append(stages, staged.Stage{Open: h.OpenTarget, Layers: layers})
	}
	e, err := staged.Open(stages, engine.HiddenF32)(t.Context(), enginetest.TargetOptions(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := count() - before; got != 2 {
		t.Errorf("%d of 2 borders are in shared memory", got)
	}
	whole, err := enginefake.New(middle).OpenTarget(t.Context(), enginetest.TargetOptions(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var tokens [2][]int32
	for i, e := range []engine.Target{e, whole} {
		q, err := e.NewSequence(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var r engine.StepResult
		for at := range int32(20) { // more than there are streams
			step := &engine.Step{Groups: []engine.Group{{Sequence: q, Rows: 1, Commit: true}},
				Rows: []engine.Row{{Token: at, Position: at, Parent: -1, Mask: -1, Want: engine.WantToken}}}
			if err := e.Step(t.Context(), step, &r); err != nil {
				t.Fatal(err)
			}
			tokens[i] = append(tokens[i], r.Tokens...)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
	if !slices.Equal(tokens[0], tokens[1]) {
		t.Errorf("stages: %v, one engine: %v", tokens[0], tokens[1])
	}
	if got := count() - before; got != 0 {
		t.Errorf("%d borders are mapped after the end", got)
	}
}
