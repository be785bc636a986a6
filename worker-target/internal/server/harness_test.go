package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/testwait"
	"github.com/tandem-inference/tandem/services/workernode"
	"github.com/tandem-inference/tandem/worker-target/internal/auto"
	"github.com/tandem-inference/tandem/worker-target/internal/constraint"
	"github.com/tandem-inference/tandem/worker-target/internal/decode"
	"github.com/tandem-inference/tandem/worker-target/internal/drafts"
	"github.com/tandem-inference/tandem/worker-target/internal/drafttest"
	"github.com/tandem-inference/tandem/worker-target/internal/peers"
	"github.com/tandem-inference/tandem/worker-target/internal/prefix"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a target worker on a fake engine with an optional draft, over in-memory connections.
type rig struct {
	t       testing.TB
	opener  *enginefake.Opener
	keeper  *workernode.Keeper[engine.Target]
	manager *drafts.Manager
	model   *auto.Model
	// prefixes is used by all requests, so that every test here is one of the cache, too.
	prefixes *prefix.Cache
	server   *Server
	client   tandemv1.TargetServiceClient
	conn     *grpc.ClientConn
}

type rigOptions struct {
	target     enginefake.Options
	open       engine.OpenOptions
	decode     decode.Config
	draft      *drafttest.Draft
	slots      int
	dontAttach bool
	text       func(vocab int) (*constraint.Text, error) // nil = testText
	wrap       func(engine.Opener) engine.Opener         // around the fake engine; nil = nothing
	guard      engine.GuardConfig
	peers      *peers.Client // nil = states are neither fetched nor sent
	contract   string
	prefixes   prefix.Config // the zero value = room for all
}

const draftName = "draft-address"

// newSlowRig is newRig with a draft and a target of the same engine, whose steps take a while.
func newSlowRig(t testing.TB, o enginefake.Options, step time.Duration) (*rig, *drafttest.Draft) {
	t.Helper()
	draft := drafttest.New(t, o, 0)
	o.StepDelay = step
	return newRig(t, rigOptions{target: o, draft: draft}), draft
}

func newRig(t testing.TB, o rigOptions) *rig {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	if o.text == nil {
		o.text = testText
	}
	if o.slots == 0 {
		o.slots = 4
	}
	o.open.ModelPath = "target"
	o.open.MaxSequences = o.slots
	o.open.KVTypeK, o.open.KVTypeV = engine.KVDefault, engine.KVDefault
	r := &rig{t: t, opener: enginefake.New(o.target), model: auto.New()}
	log := zap.NewNop()
	dir := t.TempDir()
	tables := filepath.Join(dir, "tables.gguf")
	if err := os.WriteFile(tables, make([]byte, 3<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	static := []string{draftName}
	dial := func(address string) (*grpc.ClientConn, error) { return nil, fmt.Errorf("nothing at %s", address) }
	if o.draft != nil {
		dial = o.draft.Dial
	} else {
		static = nil
	}
	r.manager = drafts.NewManager(drafts.Config{
		Engine: func() (drafts.Engine, error) {
			e, err := r.keeper.Engine()
			return e, err
		},
		TablesDigest: func(context.Context) (string, error) { return "tables-digest", nil },
		TablesFile:   func(context.Context) (string, error) { return tables, nil },
		CacheDir:     filepath.Join(dir, "cache"), Dial: dial, Log: log,
	}, static)
	var opener engine.Opener = r.opener
	if o.wrap != nil {
		opener = o.wrap(opener)
	}
	r.keeper = workernode.NewTargetKeeper(workernode.KeeperConfig[engine.Target]{
		Open: opener.OpenTarget, Options: o.open, Log: log, Guard: o.guard,
		OnOpen: func(ctx context.Context, e engine.Target) error { return r.manager.Restore(ctx, e) },
	})
	group.Go(func() { _ = r.keeper.Run(ctx) })
	if _, err := r.keeper.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	group.Go(func() { _ = r.manager.Run(ctx) })
	if o.prefixes.Slots == 0 {
		o.prefixes = prefix.Config{Bytes: 1 << 30, Slots: 64}
	}
	r.prefixes = prefix.New(o.prefixes)
	r.server = New("target", o.decode, Deps{
		Engines: r.keeper, Drafts: r.manager, Constraints: constraint.NewFactory(o.text), Model: r.model,
		Prefixes: r.prefixes, Peers: o.peers, Contract: func(engine.Info) string { return o.contract }, Log: log,
	})
	listener := bufconn.Listen(1 << 20)
	g := grpc.NewServer(workernode.ServerOptions(log)...)
	r.server.Register(g)
	group.Go(func() { _ = g.Serve(listener) })
	conn, err := grpc.NewClient("passthrough:///target", append(rpcerr.DialOptions(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn,
			error) {
			return listener.DialContext(ctx)
		}))...)
	if err != nil {
		t.Fatal(err)
	}
	r.conn = conn
	r.client = tandemv1.NewTargetServiceClient(conn)
	t.Cleanup(func() {
		conn.Close()
		g.Stop()
		r.idle()
		r.server.Close()
		r.prefixes.Close()
		for _, e := range r.opener.Opened() {
			if e.Err() != nil {
				continue // it took its sequences along
			}
			if seqs, snapshots := e.Leaks(); len(seqs)+len(snapshots) > 0 {
				t.Errorf("sequences %v and snapshots %v are not freed", seqs, snapshots)
			}
		}
		cancel()
		group.Wait()
		listener.Close()
	})
	if o.draft != nil && !o.dontAttach {
		r.until("draft attached", func() bool { return len(r.manager.Attached()) == 1 })
	}
	return r
}

// until polls a condition: for states that no event announces.
func (r *rig) until(what string, ok func() bool) {
	r.t.Helper()
	testwait.Until(r.t, what, ok)
}

// idle waits until all slots are free.
func (r *rig) idle() { r.until("slots free", func() bool { return r.server.Busy() == 0 }) }

type answer struct {
	tokens   []int32
	logprobs []*tandemv1.PositionLogprobs
	prefill  *tandemv1.Prefilled
	finished *tandemv1.Finished
	closed   tandemv1.CloseKind // the last that came with tokens
	gap      time.Duration      // longest time between two events
}

// decode runs a request; on receives every committed batch and may cancel.
func (r *rig) decode(ctx context.Context, m *tandemv1.DecodeRequest, on func(total int)) (answer, error) {
	var a answer
	stream, err := r.client.Decode(ctx, m)
	if err != nil {
		return a, err
	}
	last := time.Now()
	for {
		e, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return a, nil
		}
		if err != nil {
			return a, err
		}
		a.gap = max(a.gap, time.Since(last))
		last = time.Now()
		switch e := e.Event.(type) {
		case *tandemv1.DecodeResponse_Prefilled:
			a.prefill = e.Prefilled
		case *tandemv1.DecodeResponse_Committed:
			a.tokens = append(a.tokens, e.Committed.Tokens...)
			if e.Committed.CloseKind != tandemv1.CloseKind_CLOSE_KIND_UNSPECIFIED {
				a.closed = e.Committed.CloseKind
			}
			a.logprobs = append(a.logprobs, e.Committed.Logprobs...)
			if on != nil {
				on(len(a.tokens))
			}
		case *tandemv1.DecodeResponse_Finished:
			a.finished = e.Finished
		}
	}
}

func (r *rig) must(m *tandemv1.DecodeRequest) answer {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	a, err := r.decode(ctx, m, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	return a
}

func prompt(n int, seed int32) []int32 {
	p := make([]int32, n)
	for i := range p {
		p[i] = (seed*31 + int32(i)*17 + int32(i*i)%7) % 64
	}
	return p
}

func ptr[T any](v T) *T { return &v }

type mode struct {
	name string
	spec *tandemv1.Speculation
}

func modes() []mode {
	list := []mode{
		{"plain", &tandemv1.Speculation{Mode: tandemv1.SpeculationMode_SPECULATION_MODE_OFF}},
		{"chain", &tandemv1.Speculation{Mode: tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN}},
		{"chain4", &tandemv1.Speculation{Mode: tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN, Block: 4}},
		{"lookup", &tandemv1.Speculation{Mode: tandemv1.SpeculationMode_SPECULATION_MODE_LOOKUP}},
		{"lookup2", &tandemv1.Speculation{Mode: tandemv1.SpeculationMode_SPECULATION_MODE_LOOKUP, Block: 2}},
		{"lookup16", &tandemv1.Speculation{Mode: tandemv1.SpeculationMode_SPECULATION_MODE_LOOKUP, Block: 16}},
		{"auto", &tandemv1.Speculation{Mode: tandemv1.SpeculationMode_SPECULATION_MODE_AUTO}},
		{"default", nil},
	}
	for _, b := range []int32{1, 4, 8, 16, 22, 40} {
		list = append(list, mode{fmt.Sprintf("tree%d", b),
			&tandemv1.Speculation{Mode: tandemv1.SpeculationMode_SPECULATION_MODE_TREE, Budget: b}})
	}
	return list
}

func samplings() map[string]*tandemv1.Sampling {
	return map[string]*tandemv1.Sampling{
		"greedy":  nil,
		"sampled": {Temperature: ptr(1.3), TopK: ptr(int32(20)), TopP: ptr(0.95), Seed: ptr(int64(42))},
		"penalties": {
			Temperature: ptr(0.8), RepetitionPenalty: ptr(1.3), FrequencyPenalty: ptr(0.2), PresencePenalty: ptr(0.1),
			PenaltyWindow: ptr(int32(32)), Seed: ptr(int64(7)), LogitBias: map[int32]float64{3: 2, 5: -4},
		},
	}
}

// slots are those of the engine that serves now.
func (r *rig) slots() *slots {
	r.server.mu.Lock()
	defer r.server.mu.Unlock()
	return r.server.slots
}
