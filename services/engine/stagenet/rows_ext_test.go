package stagenet_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/engine/enginetest"
	"github.com/tandem-inference/tandem/services/engine/host"
	"github.com/tandem-inference/tandem/services/engine/staged"
	"github.com/tandem-inference/tandem/services/engine/stagenet"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/testwait"
)

// network is where stages reach each other, by address.
type network struct {
	mu     sync.Mutex // guards the fields below
	stages map[string]*stage
	cut    bool // no stage reaches another
	conns  []*grpc.ClientConn
}

// dial is the way from a stage to another.
func (n *network) dial(address string) (*grpc.ClientConn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cut {
		return grpc.NewClient("passthrough:///nowhere", append(host.DialOptions(),
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
				return nil, errors.New("no route")
			}))...)
	}
	conn, err := n.stages[address].dial(address)
	n.conns = append(n.conns, conn)
	return conn, err
}

// breakLinks ends the connections between stages.
func (n *network) breakLinks() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.conns {
		_ = c.Close()
	}
	return len(n.conns)
}

// spread opens targets of which each stage but the first is served elsewhere.
type spread struct {
	engine.Opener
	t      testing.TB
	layers []int
	rows   engine.HiddenEncoding
	log    *zap.Logger
	*network
}

func (o *spread) OpenTarget(ctx context.Context, options engine.OpenOptions, p engine.Progress) (engine.Target, error) {
	stages := []staged.Stage{{Open: o.Opener.OpenTarget, Layers: o.layers[0]}}
	o.stages = map[string]*stage{}
	for i, layers := range o.layers[1:] {
		address := fmt.Sprint("stage ", i+2)
		stages = append(stages, staged.Stage{Layers: layers, Open: func(ctx context.Context, options engine.OpenOptions,
			p engine.Progress) (engine.Target, error) {
			d := stagenet.Description{Version: "v", Stage: i + 2, Stages: len(o.layers), Layers: 4, Digest: fmt.Sprint("d", i),
				First: options.LayerFirst, Last: options.LayerLast}
			s := serve(o.t, d, caps{o.Opener, options}, 0, func(c *stagenet.ServerConfig) { c.Dial = o.dial })
			o.mu.Lock()
			o.stages[address] = s
			o.mu.Unlock()
			return stagenet.Open(stagenet.OpenConfig{Address: address, Dial: s.dial, Want: d, HeadID: "head", Log: o.log,
				NoMemory: true})(
				ctx, options, p)
		}})
	}
	return staged.Open(stages, o.rows)(ctx, options, p)
}

// TestDirectConformance: a target whose stages hand each other rows without the head keeps every promise of an engine.
func TestDirectConformance(t *testing.T) {
	draft := filepath.Join(t.TempDir(), "draft")
	if err := os.WriteFile(draft, make([]byte, 3<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		layers []int
		rows   engine.HiddenEncoding
	}{
		"three, f32": {[]int{2, 1, 1}, engine.HiddenF32}, "four, bf16": {[]int{1, 1, 1, 1}, engine.HiddenBF16},
	} {
		t.Run(name, func(t *testing.T) {
			enginetest.Run(t, func(t *testing.T) (engine.Opener, enginetest.Models) {
				return &spread{enginefake.New(enginefake.Options{}), t, c.layers, c.rows, zap.NewNop(), &network{}},
					enginetest.Models{
						Target: "target", Draft: draft, Tables: "target", Score: "score", Missing: "missing", OtherKV: 1,
					}
			})
		})
	}
}

// tokensOf runs a sequence of single rows and returns the likeliest token after each.
func tokensOf(t *testing.T, e engine.Target, rows int) []int32 {
	t.Helper()
	q, err := e.NewSequence(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var out []int32
	var r engine.StepResult
	for at := range int32(rows) {
		step := &engine.Step{Groups: []engine.Group{{Sequence: q, Rows: 1, Commit: true}},
			Rows: []engine.Row{{Token: at, Position: at, Parent: -1, Mask: -1, Want: engine.WantToken}}}
		if err := e.Step(t.Context(), step, &r); err != nil {
			t.Fatal(err)
		}
		out = append(out, r.Tokens...)
	}
	return out
}

// TestWays: what a target says of its stages is how rows go, and where a stage does not reach the next one they pass
// the head, which one line of its log says; tokens are those of one engine either way.
func TestWays(t *testing.T) {
	whole, err := enginefake.New(enginefake.Options{}).OpenTarget(t.Context(), enginetest.TargetOptions(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer whole.Close()
	want := tokensOf(t, whole, 40)
	for cut, ways := range map[bool][]engine.RowsWay{
		false: {"", engine.RowsDirect, engine.RowsDirect}, true: {"", engine.RowsDirect, engine.RowsByHead},
	} {
		core, lines := observer.New(zap.WarnLevel)
		o := &spread{enginefake.New(enginefake.Options{}), t, []int{1, 1, 2}, engine.HiddenF32, zap.New(core),
			&network{cut: cut}}
		e, err := o.OpenTarget(t.Context(), enginetest.TargetOptions(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		var got []engine.RowsWay
		for _, s := range e.Info().Stages {
			got = append(got, s.Rows)
		}
		if !slices.Equal(got, ways) {
			t.Errorf("cut %v: rows go %q, want %q", cut, got, ways)
		}
		if got := tokensOf(t, e, 40); !slices.Equal(got, want) {
			t.Errorf("cut %v: tokens %v, one engine %v", cut, got, want)
		}
		said := lines.FilterMessageSnippet("hidden rows pass this worker").FilterField(zap.String("next", "stage 3")).Len()
		if said != map[bool]int{true: 1}[cut] {
			t.Errorf("cut %v: %d lines of the log say it", cut, said)
		}
	}
}

// TestLinkBreaks: when the connection between two stages ends, the target is lost as with a stage.
func TestLinkBreaks(t *testing.T) {
	o := &spread{enginefake.New(enginefake.Options{}), t, []int{1, 1, 2}, engine.HiddenF32, zap.NewNop(), &network{}}
	e, err := o.OpenTarget(t.Context(), enginetest.TargetOptions(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	tokensOf(t, e, 3)
	if n := o.breakLinks(); n != 1 {
		t.Fatalf("%d links", n)
	}
	testwait.For(t, e.(engine.Mortal).Done(), "the target is lost")
	if err := e.(engine.Mortal).Err(); !errors.Is(err, rpcerr.EngineLost) {
		t.Error(err)
	}
}

// byHand is a stage that a test holds without package stagenet's head.
type byHand struct {
	t testing.TB
	*stage
	engine *host.RemoteTarget
	client tandemv1.StageServiceClient
	q      engine.Sequence
	whole  engine.Target // the stage's layers with rows that come with the step
	wholeQ engine.Sequence
	at     int32
}

const secret = "the-secret"

// holdByHand holds the second of two stages and has it accept rows.
func holdByHand(t testing.TB) *byHand {
	t.Helper()
	b := &byHand{t: t, stage: serve(t, second, enginefake.New(enginefake.Options{}), -1)}
	conn := b.connect()
	b.client = tandemv1.NewStageServiceClient(conn)
	hold, err := b.client.Hold(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := hold.Send(&tandemv1.HoldRequest{HeadId: "hand", EngineVersion: int32(host.EngineVersion)}); err != nil {
		t.Fatal(err)
	}
	if _, err := hold.Recv(); err != nil {
		t.Fatal(err)
	}
	if b.engine, err = host.OpenTarget(t.Context(), conn, options(), nil, func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	if b.whole, err = enginefake.New(enginefake.Options{}).OpenTarget(t.Context(), options(), nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.engine.Close(); _ = b.whole.Close() })
	if b.q, err = b.engine.NewSequence(t.Context()); err != nil {
		t.Fatal(err)
	}
	if b.wholeQ, err = b.whole.NewSequence(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := b.client.AcceptRows(t.Context(), &tandemv1.AcceptRowsRequest{Secret: secret}); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *byHand) connect() *grpc.ClientConn {
	b.t.Helper()
	conn, err := b.dial("")
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

type link = grpc.BidiStreamingClient[tandemv1.RowsRequest, tandemv1.RowsResponse]

// greeting is what the stage before says first.
func greeting() *tandemv1.RowsRequest {
	return &tandemv1.RowsRequest{Secret: secret, EngineVersion: int32(host.EngineVersion), Stage: 1, Stages: 2,
		NLayers: 4, LayerLast: 2}
}

// greet opens a link, on a connection of its own, and returns what the stage says to it.
func (b *byHand) greet(ctx context.Context, m *tandemv1.RowsRequest) (link, error) {
	b.t.Helper()
	stream, err := tandemv1.NewStageServiceClient(b.connect()).Rows(ctx)
	if err != nil {
		b.t.Fatal(err)
	}
	_ = stream.Send(m) // Recv knows what is wrong
	_, err = stream.Recv()
	return stream, err
}

func (b *byHand) linked() link {
	b.t.Helper()
	stream, err := b.greet(b.t.Context(), greeting())
	if err != nil {
		b.t.Fatal(err)
	}
	return stream
}

// rows are those of the fake's first two layers for one position, which others follow.
func (b *byHand) rows() []byte {
	b.t.Helper()
	o := options()
	o.LayerFirst, o.LayerLast = 0, 2
	e, err := enginefake.New(enginefake.Options{}).OpenTarget(b.t.Context(), o, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	defer e.Close()
	q, err := e.NewSequence(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	var r engine.StepResult
	for at := range b.at + 1 {
		s := b.step(q, at)
		s.Rows[0].Want = 0
		if err := e.Step(b.t.Context(), s, &r); err != nil {
			b.t.Fatal(err)
		}
	}
	return r.HiddenOut
}

func (b *byHand) step(q engine.Sequence, at int32) *engine.Step {
	return &engine.Step{Groups: []engine.Group{{Sequence: q, Rows: 1, Commit: true}},
		Rows: []engine.Row{{Token: at, Position: at, Parent: -1, Mask: -1, Want: engine.WantToken}}}
}

// run runs the next position with rows of a number, and compares its token with that of rows which come with the step.
func (b *byHand) run(number uint64, rows []byte) error {
	b.t.Helper()
	var got, want engine.StepResult
	s := b.step(b.q, b.at)
	s.RowsFrom = number
	if err := b.engine.Step(b.t.Context(), s, &got); err != nil {
		return err
	}
	s = b.step(b.wholeQ, b.at)
	s.HiddenIn = rows
	if err := b.whole.Step(b.t.Context(), s, &want); err != nil {
		b.t.Fatal(err)
	}
	if !slices.Equal(got.Tokens, want.Tokens) {
		b.t.Errorf("rows %d: tokens %v, want %v", number, got.Tokens, want.Tokens)
	}
	b.at++
	return nil
}

func (b *byHand) send(l link, number uint64, rows []byte) {
	b.t.Helper()
	if err := l.Send(&tandemv1.RowsRequest{Number: number, Payload: rows}); err != nil {
		b.t.Fatal(err)
	}
}

// lost waits until the stage has let go of its engine.
func (b *byHand) lost() {
	b.t.Helper()
	testwait.For(b.t, b.stage.engine(0).Done(), "the stage has closed its engine")
}

// TestRowsAreMatched: a step gets the rows of its number, whichever comes first; those of steps that were given up are
// dropped.
func TestRowsAreMatched(t *testing.T) {
	b := holdByHand(t)
	l := b.linked()
	rows := b.rows()
	b.send(l, 1, rows)
	if err := b.run(1, rows); err != nil {
		t.Fatal(err)
	}
	rows = b.rows()
	ran := make(chan error, 1)
	go func() { ran <- b.run(5, rows) }()
	b.send(l, 3, make([]byte, len(rows))) // of a step that never comes
	b.send(l, 5, rows)
	if err := testwait.For(t, ran, "the step that waits has its rows"); err != nil {
		t.Fatal(err)
	}
	for n := uint64(6); n < 40; n++ { // more than there are slots
		b.send(l, n, make([]byte, len(rows)))
	}
	rows = b.rows()
	b.send(l, 40, rows)
	if err := b.run(40, rows); err != nil {
		t.Fatal(err)
	}
	if err := l.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if err := b.run(41, nil); !errors.Is(err, rpcerr.EngineLost) {
		t.Errorf("after the end of the link: %v", err)
	}
	b.lost()
}

// TestWrongRows: numbers that do not ascend and rows that are too large, or not those of the step, lose the stage
// before its engine sees them.
func TestWrongRows(t *testing.T) {
	for name, c := range map[string]struct {
		numbers []uint64
		bytes   int // of the last rows, 0 = as they are to be
		step    uint64
		text    string
	}{
		"twice":        {[]uint64{4, 4}, 0, 0, "must ascend"},
		"out of order": {[]uint64{4, 3}, 0, 0, "must ascend"},
		"no number":    {[]uint64{0}, 0, 0, "must ascend"},
		"oversized":    {[]uint64{4}, 4 << 20, 0, "payload"},
		"too short":    {[]uint64{4}, 60, 4, "60 bytes instead of 64"},
		"skipped":      {[]uint64{4}, 0, 2, "those of step 4 have"},
	} {
		t.Run(name, func(t *testing.T) {
			b := holdByHand(t)
			l := b.linked()
			for i, n := range c.numbers {
				rows := b.rows()
				if c.bytes > 0 && i == len(c.numbers)-1 {
					rows = make([]byte, c.bytes)
				}
				b.send(l, n, rows)
			}
			var err error
			if c.step == 0 {
				_, err = l.Recv()
				if rpcerr.Code(err) != codes.InvalidArgument {
					t.Error(err)
				}
			} else if err = b.run(c.step, nil); !errors.Is(err, rpcerr.EngineLost) {
				t.Error(err)
			}
			if err == nil || !strings.Contains(err.Error(), c.text) {
				t.Errorf("%v does not say %q", err, c.text)
			}
			b.lost()
		})
	}
}

// TestStrangers: who lacks the secret, or is another stage or release, hands over no rows, and disturbs nobody; nor
// does a second sender.
func TestStrangers(t *testing.T) {
	b := holdByHand(t)
	for name, c := range map[string]struct {
		change func(*tandemv1.RowsRequest)
		code   codes.Code
	}{
		"another secret":  {func(m *tandemv1.RowsRequest) { m.Secret = "the-secret " }, codes.PermissionDenied},
		"no secret":       {func(m *tandemv1.RowsRequest) { m.Secret = "" }, codes.PermissionDenied},
		"another place":   {func(m *tandemv1.RowsRequest) { m.Stage = 2 }, codes.FailedPrecondition},
		"other layers":    {func(m *tandemv1.RowsRequest) { m.LayerLast = 1 }, codes.FailedPrecondition},
		"another release": {func(m *tandemv1.RowsRequest) { m.EngineVersion++ }, codes.FailedPrecondition},
	} {
		m := greeting()
		c.change(m)
		if _, err := b.greet(t.Context(), m); rpcerr.Code(err) != c.code {
			t.Errorf("%s: %v", name, err)
		}
	}
	l := b.linked()
	if _, err := b.greet(t.Context(), greeting()); rpcerr.Code(err) != codes.FailedPrecondition {
		t.Errorf("a second sender: %v", err)
	}
	if _, err := b.client.AcceptRows(t.Context(),
		&tandemv1.AcceptRowsRequest{Secret: "another"}); rpcerr.Code(err) != codes.FailedPrecondition {
		t.Errorf("a second secret: %v", err)
	}
	rows := b.rows()
	b.send(l, 1, rows)
	if err := b.run(1, rows); err != nil {
		t.Error(err)
	}
}

// TestNoLink: a step that names rows of a link is refused where there is none, by a stage and by an engine.
func TestNoLink(t *testing.T) {
	b := holdByHand(t)
	s := b.step(b.q, 0)
	s.RowsTo, s.HiddenIn = 3, b.rows()
	if err := b.engine.Step(t.Context(), s, &engine.StepResult{}); !errors.Is(err, rpcerr.AnyInvalidArgument) {
		t.Errorf("rows_to: %v", err)
	}
	s.RowsTo, s.RowsFrom = 0, 3
	if err := b.engine.Step(t.Context(), s, &engine.StepResult{}); !errors.Is(err, rpcerr.AnyInvalidArgument) {
		t.Errorf("rows twice: %v", err)
	}
}

// TestLinkBreaksMidStep: a step that waits for rows fails when the link breaks.
func TestLinkBreaksMidStep(t *testing.T) {
	b := holdByHand(t)
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := b.greet(ctx, greeting()); err != nil {
		t.Fatal(err)
	}
	ran := make(chan error, 1)
	go func() { ran <- b.run(1, nil) }()
	cancel()
	if err := testwait.For(t, ran, "the step fails"); !errors.Is(err, rpcerr.EngineLost) {
		t.Error(err)
	}
	b.lost()
}

// TestNextStage: a stage checks who it is to hand rows to, and gives up when nobody answers.
func TestNextStage(t *testing.T) {
	first := second
	first.Stage, first.Stages, first.First, first.Last = 2, 3, 1, 2
	other := second
	other.Stage, other.Stages = 3, 3
	open := func(want stagenet.Description) error {
		n := &network{stages: map[string]*stage{}}
		own := serve(t, first, enginefake.New(enginefake.Options{}), 0, func(c *stagenet.ServerConfig) { c.Dial = n.dial })
		n.stages["there"] = serve(t, other, enginefake.New(enginefake.Options{}), 0)
		o := options()
		o.LayerFirst, o.LayerLast = 1, 2
		a, err := own.open("head", first, 0)(t.Context(), o, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		// Another stage than the one that the head holds.
		n.stages["elsewhere"] = serve(t, want, enginefake.New(enginefake.Options{}), 0)
		b, err := stagenet.Open(stagenet.OpenConfig{Address: "there", Dial: n.stages["elsewhere"].dial, Want: want,
			HeadID: "head", Log: zap.NewNop()})(t.Context(), options(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		return a.(interface {
			ForwardRows(context.Context, engine.Target) error
		}).ForwardRows(t.Context(), b)
	}
	if err := open(other); rpcerr.Code(err) != codes.PermissionDenied {
		t.Errorf("a stage that nobody holds: %v", err)
	}
	if err := (&network{}).silent(t, first); rpcerr.Code(err) != codes.DeadlineExceeded {
		t.Errorf("nobody answers: %v", err)
	}
}

// silent has a stage link with one that swallows all that is sent.
func (n *network) silent(t *testing.T, d stagenet.Description) error {
	lis, err := net.Listen("tcp", "127.0.0.1:0") // nobody accepts
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	own := serve(t, d, enginefake.New(enginefake.Options{}), 0, func(c *stagenet.ServerConfig) {
		c.Dial = func(string) (*grpc.ClientConn, error) {
			return grpc.NewClient(lis.Addr().String(), append(host.DialOptions(),
				grpc.WithTransportCredentials(insecure.NewCredentials()))...)
		}
	})
	o := options()
	o.LayerFirst, o.LayerLast = 1, 2
	a, err := own.open("head", d, 0)(t.Context(), o, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	there := serve(t, second, enginefake.New(enginefake.Options{}), 0)
	b, err := there.open("head", second, 0)(t.Context(), options(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	start := time.Now()
	err = a.(interface {
		ForwardRows(context.Context, engine.Target) error
	}).ForwardRows(t.Context(), b)
	if d := time.Since(start); d > 20*time.Second {
		t.Errorf("it took %v", d)
	}
	return err
}
