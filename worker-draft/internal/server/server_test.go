package server

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/ddtree"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/racetest"
	"github.com/tandem-inference/tandem/services/registry"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/telemetry"
	"github.com/tandem-inference/tandem/services/tensorwire"
	"github.com/tandem-inference/tandem/services/testwait"
	"github.com/tandem-inference/tandem/services/workernode"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	hidden = 16
	block  = 8
)

// files stand in for the store.
type files struct {
	dir    string
	mu     sync.Mutex
	cached map[string]string
}

func (f *files) Cached(_ context.Context, digest string) (string, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	path, ok := f.cached[digest]
	return path, ok
}

func (f *files) Receive(_ context.Context, digest string, total int64, next func() ([]byte, error)) (string, error) {
	got := int64(0)
	for {
		part, err := next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", err
		}
		got += int64(len(part))
	}
	if got != total {
		return "", rpcerr.DataLoss("%d of %d bytes", got, total)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cached[digest] = "received"
	return "received", nil
}

func (f *files) Fuse() (path, digest string, err error) {
	return filepath.Join(f.dir, "fuse"), "fuse-digest", nil
}

type rig struct {
	t      *testing.T
	server *Server
	client tandemv1.DraftServiceClient
	opener *enginefake.Opener
	files  *files
}

func newRig(t *testing.T, o enginefake.Options, slots, maxContext int, local bool) *rig {
	t.Helper()
	return newWrappedRig(t, o, slots, maxContext, local, workernode.KeeperConfig[engine.Draft]{})
}

// newWrappedRig is newRig with the rest of the keeper's settings and with wrappers around the fake engine.
func newWrappedRig(t *testing.T, o enginefake.Options, slots, maxContext int, local bool,
	keeper workernode.KeeperConfig[engine.Draft],
	wrap ...func(engine.Opener) engine.Opener) *rig {
	t.Helper()
	o.BlockSize, o.Hidden = block, hidden
	r := &rig{t: t, opener: enginefake.New(o), files: &files{dir: t.TempDir(), cached: map[string]string{}}}
	if err := os.WriteFile(filepath.Join(r.files.dir, "fuse"), make([]byte, 3<<20+5), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := Config{
		WorkerID: "draft", Assets: r.files,
		Shape: Shape{Digest: "draft-digest", TokenizerDigest: "tok", Hidden: hidden, Vocab: 64, CaptureLayers: []int32{1, 3}},
		Open: func(tables string) Engine {
			var opener engine.Opener = r.opener
			for _, w := range wrap {
				opener = w(opener)
			}
			keeper.Open, keeper.Options = opener.OpenDraft, engine.OpenOptions{
				ModelPath: "draft", TablesPath: tables, MaxSequences: slots, MaxContext: maxContext,
				MaxBatchRows: 16, KVTypeK: engine.KVDefault, KVTypeV: engine.KVDefault,
			}
			return workernode.NewDraftKeeper(keeper)
		},
	}
	if local {
		cfg.TablesPath, cfg.TablesDigest = "local", "tables"
	}
	r.server = New(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() { _ = r.server.Run(ctx) })
	listener := bufconn.Listen(1 << 20)
	g := grpc.NewServer(workernode.ServerOptions(zap.NewNop())...)
	r.server.Register(g)
	group.Go(func() { _ = g.Serve(listener) })
	conn, err := grpc.NewClient("passthrough:///draft", append(append(tensorwire.DialOptions(), rpcerr.DialOptions()...),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return listener.DialContext(ctx)
		}))...)
	if err != nil {
		t.Fatal(err)
	}
	r.client = tandemv1.NewDraftServiceClient(conn)
	t.Cleanup(func() {
		conn.Close()
		g.Stop()
		for _, e := range r.opener.Opened() {
			if seqs, _ := e.Leaks(); e.Err() == nil && len(seqs) > 0 {
				t.Errorf("sequences not freed: %v", seqs)
			}
		}
		cancel()
		group.Wait()
		listener.Close()
	})
	return r
}

func (r *rig) get() (*tandemv1.GetDraftResponse, error) {
	return r.client.GetDraft(r.t.Context(), &tandemv1.GetDraftRequest{
		TablesDigest: "tables", TokenizerDigest: "tok", TargetHidden: hidden, TargetLayers: 4, TargetVocab: 64,
	})
}

func (r *rig) ready() {
	r.t.Helper()
	d, err := r.get()
	if err != nil || !d.Ready {
		r.t.Fatalf("%v, %v", d, err)
	}
}

func (r *rig) stream() grpc.BidiStreamingClient[tandemv1.SpeculateRequest, tandemv1.SpeculateResponse] {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 20*time.Second)
	r.t.Cleanup(cancel)
	s, err := r.client.Speculate(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

// rows are n fused feature rows from a position on.
func rows(position, n int) []byte {
	var out []byte
	for p := range n {
		h := sha256.Sum256([]byte{byte(position + p)})
		for i := range hidden {
			out = binary.LittleEndian.AppendUint16(out, uint16(math.Float32bits(float32(h[i]))>>16))
		}
	}
	return out
}

func message(epoch, step uint64, position, n int, ask *tandemv1.Propose) *tandemv1.SpeculateRequest {
	return &tandemv1.SpeculateRequest{
		SessionId: "s", Epoch: epoch, Step: step, FeaturePosition: int32(position), FeatureRows: int32(n),
		FeatureEncoding: tandemv1.FeatureEncoding_FEATURE_ENCODING_FUSED_BF16, Features: rows(position, n), Propose: ask,
	}
}

func ask(anchor int32, position, budget int, mode tandemv1.SpeculationMode) *tandemv1.Propose {
	return &tandemv1.Propose{Anchor: anchor, Position: int32(position), Budget: int32(budget), Block: block,
		Mode: mode, DeadlineUs: 10_000_000}
}

const (
	tree  = tandemv1.SpeculationMode_SPECULATION_MODE_TREE
	chain = tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN
)

func exchange(t *testing.T, s grpc.BidiStreamingClient[tandemv1.SpeculateRequest, tandemv1.SpeculateResponse],
	m *tandemv1.SpeculateRequest) *tandemv1.SpeculateResponse {
	t.Helper()
	if err := s.Send(m); err != nil {
		t.Fatal(err)
	}
	a, err := s.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestAttach(t *testing.T) {
	r := newRig(t, enginefake.Options{}, 2, 0, false)
	if !r.server.Ready() {
		t.Error("a draft without tables does not take part")
	}
	d, err := r.get()
	if err != nil || d.Ready || !d.NeedsTables {
		t.Fatalf("without tables: %v, %v", d, err)
	}
	if s := r.stream(); s.Send(message(1, 1, 0, 1, nil)) == nil {
		if _, err := s.Recv(); !errors.Is(err, rpcerr.AnyUnavailable) {
			t.Errorf("stream without tables: %v", err)
		}
	}
	put := func(total int64) error {
		s, err := r.client.PutTables(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			m := &tandemv1.PutTablesRequest{Chunk: make([]byte, 1<<20)}
			if i == 0 {
				m.Digest, m.TotalBytes = "tables", total
			}
			if err := s.Send(m); err != nil {
				break
			}
		}
		_, err = s.CloseAndRecv()
		return err
	}
	if err := put(5); !errors.Is(err, rpcerr.AnyDataLoss) {
		t.Errorf("wrong size: %v", err)
	}
	if err := put(3 << 20); err != nil {
		t.Fatal(err)
	}
	d, err = r.get()
	if err != nil || !d.Ready || d.BlockSize != block || d.FusedWidth != hidden || d.FuseDigest != "fuse-digest" ||
		d.DraftDigest != "draft-digest" {
		t.Fatalf("with tables: %v, %v", d, err)
	}
	s, err := r.client.GetFuse(t.Context(), &tandemv1.GetFuseRequest{})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 && (m.Digest != "fuse-digest" || m.TotalBytes != 3<<20+5) {
			t.Errorf("first chunk: %q, %d bytes", m.Digest, m.TotalBytes)
		}
		n += len(m.Chunk)
	}
	if n != 3<<20+5 {
		t.Errorf("%d bytes of the fuse file", n)
	}
}

func TestRefusesOthers(t *testing.T) {
	r := newRig(t, enginefake.Options{}, 2, 0, true)
	r.ready()
	for name, change := range map[string]func(m *tandemv1.GetDraftRequest){
		"tables":    func(m *tandemv1.GetDraftRequest) { m.TablesDigest = "others" },
		"tokenizer": func(m *tandemv1.GetDraftRequest) { m.TokenizerDigest = "others" },
		"hidden":    func(m *tandemv1.GetDraftRequest) { m.TargetHidden = 17 },
		"vocab":     func(m *tandemv1.GetDraftRequest) { m.TargetVocab = 65 },
		"layers":    func(m *tandemv1.GetDraftRequest) { m.TargetLayers = 3 },
	} {
		m := &tandemv1.GetDraftRequest{TablesDigest: "tables", TokenizerDigest: "tok", TargetHidden: hidden,
			TargetLayers: 4, TargetVocab: 64}
		change(m)
		if _, err := r.client.GetDraft(t.Context(), m); !errors.Is(err, rpcerr.ModelMismatch) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSpeculate: proposals are trees of what was asked; repeated and stale messages are dropped, rows that are there
// already are skipped, a new epoch starts again at any position.
func TestSpeculate(t *testing.T) {
	r := newRig(t, enginefake.Options{}, 2, 0, true)
	r.ready()
	s := r.stream()
	check := func(a *tandemv1.SpeculateResponse, epoch, step uint64, length int32, nodes int) {
		t.Helper()
		var got ddtree.Tree
		if err := got.Set(0, a.Tokens, a.Parents, a.Logprobs,
			ddtree.Limits{Vocab: 64, Nodes: nodes, Depth: block - 1}); err != nil {
			t.Error(err)
		}
		if a.Epoch != epoch || a.Step != step || a.Length != length || len(a.Tokens) != nodes {
			t.Errorf("epoch %d step %d length %d, %d nodes; want %d, %d, %d, %d", a.Epoch, a.Step, a.Length, len(a.Tokens),
				epoch, step, length, nodes)
		}
	}
	// 40 rows are more than the engine takes at once.
	check(exchange(t, s, message(1, 1, 0, 40, ask(5, 40, 22, tree))), 1, 1, 40, 22)
	check(exchange(t, s, message(1, 2, 40, 3, ask(6, 43, 0, chain))), 1, 2, 43, block-1)
	first := exchange(t, s, message(1, 3, 43, 2, ask(7, 45, 4, chain)))
	check(first, 1, 3, 45, 4)
	for _, stale := range []*tandemv1.SpeculateRequest{message(1, 3, 45, 2, ask(7, 47, 4, chain)),
		message(0, 9, 0, 2, ask(7, 2, 4, chain))} {
		if err := s.Send(stale); err != nil {
			t.Fatal(err)
		}
	}
	// Rows 43 and 44 are there; row 45 is new.
	check(exchange(t, s, message(1, 4, 43, 3, ask(8, 46, 10, tree))), 1, 4, 46, 10)
	// A question about another position than the next is of no use.
	check(exchange(t, s, message(1, 5, 46, 1, ask(8, 50, 10, tree))), 1, 5, 47, 0)
	// The same rows in a new epoch, from the middle: the same proposal as before.
	again := message(2, 1, 20, 25, ask(7, 45, 4, chain))
	got := exchange(t, s, again)
	check(got, 2, 1, 45, 4)
	if err := s.Send(message(2, 2, 60, 1, nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); !errors.Is(err, rpcerr.AnyAborted) {
		t.Errorf("after a gap: %v", err)
	}
}

// TestStreamsAreLogged: a stream leaves one line, with the request that it was for.
func TestStreamsAreLogged(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	r := newRig(t, enginefake.Options{}, 2, 0, true)
	r.server.cfg.Log = zap.New(core)
	r.ready()
	s, err := r.client.Speculate(metadata.AppendToOutgoingContext(t.Context(), telemetry.MetadataRequestID, "req-7"))
	if err != nil {
		t.Fatal(err)
	}
	exchange(t, s, message(1, 1, 0, 40, ask(5, 40, 22, tree)))
	exchange(t, s, message(1, 2, 40, 3, ask(6, 43, 10, tree)))
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	lines := logs.FilterMessage("request ended").All()
	if len(lines) != 1 {
		t.Fatalf("%d lines", len(lines))
	}
	got := lines[0].ContextMap()
	for _, name := range []string{"duration_ms", "wait_ms", "engine_ms", "append_ms"} {
		if got[name] == nil {
			t.Errorf("no %s in %v", name, got)
		}
		delete(got, name)
	}
	want := map[string]any{"request_id": "req-7", "outcome": "ok", "messages": int64(2),
		"proposals": int64(2), "skipped": int64(0), "nodes": int64(32)}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// TestParkedIsNoFailure: a stream that finds the engine parked has it opened and is refused, at info.
func TestParkedIsNoFailure(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	r := newWrappedRig(t, enginefake.Options{}, 2, 0, true, workernode.KeeperConfig[engine.Draft]{Lazy: true})
	r.server.cfg.Log = zap.New(core)
	for {
		if _, err := r.stream().Recv(); errors.Is(err, rpcerr.EngineLost) {
			break
		} else if !errors.Is(err, rpcerr.AnyUnavailable) {
			t.Fatal(err)
		}
	}
	testwait.Until(t, "the streams end", func() bool { return logs.Len() > 0 })
	for _, line := range logs.FilterMessage("request ended").All() {
		if line.Level != zap.InfoLevel || line.ContextMap()["outcome"] != "refused" {
			t.Errorf("%v: %v", line.Level, line.ContextMap())
		}
	}
}

// TestCountersAreKnown: what heartbeats count is what the gateway shows.
func TestCountersAreKnown(t *testing.T) {
	r := newRig(t, enginefake.Options{}, 2, 0, true)
	r.ready()
	var h tandemv1.Heartbeat
	r.server.Heartbeat(&h)
	if len(h.Counters) == 0 {
		t.Error("no counters")
	}
	for name := range h.Counters {
		if registry.Counters[name]+registry.Gauges[name] == "" {
			t.Errorf("%s is not in registry.Counters or Gauges: the gateway will not show it", name)
		}
	}
}

func TestRefusesBadMessages(t *testing.T) {
	r := newRig(t, enginefake.Options{}, 2, 64, true)
	r.ready()
	for name, test := range map[string]struct {
		m    *tandemv1.SpeculateRequest
		want error
	}{
		"bytes": {&tandemv1.SpeculateRequest{Epoch: 1, Step: 1, FeatureRows: 2, FeatureEncoding: 2,
			Features: make([]byte, 7)}, rpcerr.AnyInvalidArgument},
		"encoding": {&tandemv1.SpeculateRequest{Epoch: 1, Step: 1, FeatureRows: 1, FeatureEncoding: 9,
			Features: make([]byte, 32)}, rpcerr.AnyInvalidArgument},
		"f32": {&tandemv1.SpeculateRequest{Epoch: 1, Step: 1, FeatureRows: 1,
			FeatureEncoding: engine.FeatureFusedF32, Features: make([]byte, 64)}, rpcerr.AnyInvalidArgument},
		"no rows": {&tandemv1.SpeculateRequest{Epoch: 1, Step: 1, FeatureEncoding: 2, Features: make([]byte, 32)},
			rpcerr.AnyInvalidArgument},
		"context": {message(1, 1, 0, 65, nil), rpcerr.AnyResourceExhausted},
		"anchor":  {message(1, 1, 0, 1, ask(-1, 1, 4, chain)), rpcerr.AnyInvalidArgument},
		"vocab":   {message(1, 1, 0, 1, ask(64, 1, 4, chain)), rpcerr.AnyInvalidArgument},
		"negative": {&tandemv1.SpeculateRequest{Epoch: 1, Step: 1, FeatureRows: -2, FeatureEncoding: 2},
			rpcerr.AnyInvalidArgument},
		"before":   {&tandemv1.SpeculateRequest{Epoch: 1, Step: 1, FeaturePosition: -9}, rpcerr.AnyInvalidArgument},
		"position": {message(1, 1, 0, 1, ask(3, -1, 4, chain)), rpcerr.AnyInvalidArgument},
		"block":    {message(1, 1, 0, 1, &tandemv1.Propose{Anchor: 3, Position: 1, Block: -4}), rpcerr.AnyInvalidArgument},
		"budget":   {message(1, 1, 0, 1, &tandemv1.Propose{Anchor: 3, Position: 1, Budget: -4}), rpcerr.AnyInvalidArgument},
		"mode":     {message(1, 1, 0, 1, &tandemv1.Propose{Anchor: 3, Position: 1, Mode: 77}), rpcerr.AnyInvalidArgument},
		"deadline": {message(1, 1, 0, 1, &tandemv1.Propose{Anchor: 3, Position: 1, DeadlineUs: -1}),
			rpcerr.AnyInvalidArgument},
		"name": {&tandemv1.SpeculateRequest{SessionId: strings.Repeat("x", 257), Epoch: 1, Step: 1},
			rpcerr.AnyInvalidArgument},
	} {
		s := r.stream()
		if err := s.Send(test.m); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); !errors.Is(err, test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSlots(t *testing.T) {
	r := newRig(t, enginefake.Options{}, 1, 0, true)
	r.ready()
	s := r.stream()
	exchange(t, s, message(1, 1, 0, 1, ask(1, 1, 4, chain)))
	second := r.stream()
	if _, err := second.Recv(); !errors.Is(err, rpcerr.NoSlot) {
		t.Errorf("second stream on one slot: %v", err)
	}
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("end of the first stream: %v", err)
	}
	exchange(t, r.stream(), message(1, 1, 0, 1, ask(1, 1, 4, chain)))
	r.server.Drain()
	if _, err := r.stream().Recv(); !errors.Is(err, rpcerr.Draining) {
		t.Errorf("draining: %v", err)
	}
}

// TestSkips: of questions that pile up behind a slow engine those with newer ones behind them are skipped, and each
// is answered.
func TestSkips(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		r := newRig(t, enginefake.Options{ProposeDelay: 20 * time.Millisecond}, 1, 0, true)
		r.ready()
		s := r.stream()
		const n = 10
		for i := range n {
			if err := s.Send(message(1, uint64(i+1), i, 1, ask(1, i+1, 4, chain))); err != nil {
				t.Fatal(err)
			}
		}
		before := false
		for i := range n {
			a, err := s.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if a.Step != uint64(i+1) || a.Length != int32(i+1) {
				t.Fatalf("answer %d: step %d, length %d", i, a.Step, a.Length)
			}
			worked := len(a.Tokens) > 0
			if i == n-1 && !worked {
				t.Error("the newest question was skipped")
			}
			// While one is worked on, newer ones than the next come in.
			if i < n-1 && worked && before {
				t.Errorf("questions %d and %d were both worked on", i, i+1)
			}
			before = worked
		}
		late := message(1, n+1, n, 1, ask(1, n+1, 4, chain))
		late.Propose.DeadlineUs = 10_000_000
		if a := exchange(t, s, late); len(a.Tokens) == 0 {
			t.Error("a question in time was skipped")
		}
	})
}

// still is an engine that does nothing, so that only the worker's own allocations are counted, and states fixed times.
type still struct {
	engine.Draft
	info engine.Info
}

const stillAppends, stillTakes = 2 * time.Millisecond, 5 * time.Millisecond

func (s *still) Info() engine.Info { return s.info }

func (s *still) Propose(_ context.Context, _ []engine.FeatureRows, requests []engine.DraftRequest,
	result *engine.DraftResult) error {
	result.AppendNanos, result.EngineNanos = int64(stillAppends), int64(stillTakes)
	if len(requests) == 0 {
		return nil
	}
	result.Positions, result.Stride = block-1, 4
	result.IDs, result.Logprobs = result.IDs[:0], result.Logprobs[:0]
	for range block - 1 {
		result.IDs = append(result.IDs, 1, 2, 3, 4)
		result.Logprobs = append(result.Logprobs, -0.3, -2, -3, -4)
	}
	return nil
}

func TestHotPathDoesNotAllocate(t *testing.T) {
	w := newWork(&still{info: engine.Info{Vocab: 64, FeatureFused: hidden, BlockSize: block, MaxContext: 1 << 30,
		MaxBatchRows: 512, MaxTopK: 64}}, 1)
	m := message(1, 0, 0, 4, ask(1, 4, 22, tree))
	ctx := context.Background()
	round := func() {
		m.Step++
		m.FeaturePosition = int32(w.length)
		m.Propose.Position = int32(w.length + 4)
		if reply, err := w.handle(ctx, m, time.Now(), false); err != nil || !reply || len(w.response.Tokens) != 22 {
			t.Fatal(reply, err, len(w.response.Tokens))
		}
	}
	round()
	if n := testing.AllocsPerRun(200, round); n != 0 {
		t.Errorf("%v allocations a message", n)
	}
}

// TestTimes: features that the engine takes in three calls, the last one with the question.
func TestTimes(t *testing.T) {
	w := newWork(&still{info: engine.Info{Vocab: 64, FeatureFused: hidden, BlockSize: block, MaxContext: 1 << 30,
		MaxBatchRows: 16, MaxTopK: 64}}, 1)
	if _, err := w.handle(context.Background(), message(1, 1, 0, 40, ask(1, 40, 22, tree)),
		time.Now(), false); err != nil {
		t.Fatal(err)
	}
	if appended, forward := w.response.AppendUs, w.response.ForwardUs; appended != 6000 || forward != 9000 {
		t.Errorf("three calls: %d us for features, %d us for the proposal, want 6000 and 9000", appended, forward)
	}
	// Features that the draft has, and no question: nothing for the engine to do.
	if _, err := w.handle(context.Background(), message(1, 2, 38, 2, nil), time.Now(), false); err != nil ||
		w.appended+w.forward != 0 {
		t.Errorf("nothing new: %v, %v", w.appended+w.forward, err)
	}
}
