// Package drafttest is a draft worker for tests: a fake engine behind the real protocol, with faults on demand.
package drafttest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/ddtree"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/pause"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/tensorwire"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
)

// Faults of the draft, each with the probability per answer. They may be changed at any time through Draft.Set.
type Faults struct {
	Break     float64       // the stream ends
	Delay     float64       // the answer comes after DelayFor
	DelayFor  time.Duration //
	Silent    float64       // no answer at all
	Wrong     float64       // a well-formed tree of wrong tokens
	Garbage   float64       // something that is no tree
	StaleStep float64       // the answer carries an old step
	Forward   time.Duration // time of every answer
}

// Draft is a draft worker.
type Draft struct {
	tandemv1.UnimplementedDraftServiceServer
	Digest string
	Fuse   []byte

	mu       sync.Mutex
	engine   engine.Draft
	listener *bufconn.Listener
	server   *grpc.Server
	asked    int // calls of GetDraft
	faults   Faults
	rng      *rand.Rand
	tables   string
	streams  int
	opened   int
	answers  int
	maxEpoch uint64
	down     bool
	negative int    // messages with a negative position or number of rows
	first    int    // position of the newest epoch's first feature row
	features []byte // rows of the newest epoch
}

// New starts a draft with the engine's options; it ends with the test.
func New(t testing.TB, o enginefake.Options, maxContext int) *Draft {
	d := &Draft{Digest: "draft-1", Fuse: []byte("fc and norm"), rng: rand.New(rand.NewPCG(11, 13))}
	d.open(t, o, maxContext)
	t.Cleanup(func() {
		d.close(t)
		if d.negative > 0 {
			t.Errorf("%d messages had a negative number of feature rows or a negative position", d.negative)
		}
	})
	return d
}

// Restart ends the draft and starts it again, with another model.
func (d *Draft) Restart(t testing.TB, o enginefake.Options) {
	d.close(t)
	d.open(t, o, 0)
}

func (d *Draft) open(t testing.TB, o enginefake.Options, maxContext int) {
	engine, err := enginefake.New(o).OpenDraft(context.Background(), engine.OpenOptions{
		ModelPath: "draft", TablesPath: "tables", MaxSequences: 64, MaxContext: maxContext,
		KVTypeK: engine.KVDefault, KVTypeV: engine.KVDefault,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	listener := bufconn.Listen(1 << 20)
	// Stop waits for handlers, which free their sequences.
	server := grpc.NewServer(append(append(tensorwire.ServerOptions(), grpc.WaitForHandlers(true)),
		rpcerr.ServerOptions(nil)...)...)
	tandemv1.RegisterDraftServiceServer(server, d)
	go server.Serve(listener)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.engine, d.listener, d.server = engine, listener, server
}

func (d *Draft) close(t testing.TB) {
	d.server.Stop()
	d.listener.Close()
	if seqs, _ := d.engine.(*enginefake.Draft).Leaks(); len(seqs) > 0 {
		t.Errorf("draft sequences not freed: %v", seqs)
	}
	d.engine.Close()
}

// Asked is how often the draft was asked what it is.
func (d *Draft) Asked() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.asked
}

// Dial connects to the draft, whatever the address.
func (d *Draft) Dial(string) (*grpc.ClientConn, error) {
	options := append(tensorwire.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			d.mu.Lock()
			listener := d.listener
			d.mu.Unlock()
			return listener.DialContext(ctx)
		}))
	return grpc.NewClient("passthrough:///draft", append(options, rpcerr.DialOptions()...)...)
}

// Set changes the faults.
func (d *Draft) Set(f Faults) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults = f
}

// SetDown makes every call fail with UNAVAILABLE, and running streams end with their next message.
func (d *Draft) SetDown(down bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.down = down
}

// State of the draft's streams: open now, ever opened, answers sent, highest epoch seen.
func (d *Draft) State() (streams, opened, answers int, epoch uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.streams, d.opened, d.answers, d.maxEpoch
}

// Features of the epoch that began last: the position of the first row, and all rows that came.
func (d *Draft) Features() (position int, rows []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.first, bytes.Clone(d.features)
}

func (d *Draft) isDown() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.down {
		return rpcerr.Unavailable("down")
	}
	return nil
}

// GetDraft implements DraftService.
func (d *Draft) GetDraft(_ context.Context, m *tandemv1.GetDraftRequest) (*tandemv1.GetDraftResponse, error) {
	if err := d.isDown(); err != nil {
		return nil, err
	}
	d.mu.Lock()
	d.asked++
	info := d.engine.Info()
	d.mu.Unlock()
	if int(m.TargetVocab) != info.Vocab {
		return nil, rpcerr.ModelMismatch.With("vocabulary %d", m.TargetVocab)
	}
	d.mu.Lock()
	needs := d.tables != m.TablesDigest
	d.mu.Unlock()
	sum := sha256.Sum256(d.Fuse)
	return &tandemv1.GetDraftResponse{
		WorkerId: "draft", Ready: !needs, NeedsTables: needs, CaptureLayers: info.CaptureLayers,
		BlockSize: int32(info.BlockSize),
		MaskToken: info.MaskToken, FusedWidth: int32(info.FeatureFused), FuseDigest: hex.EncodeToString(sum[:]),
		DraftDigest: d.Digest, MaxContext: int32(info.MaxContext),
	}, nil
}

// PutTables implements DraftService.
func (d *Draft) PutTables(stream grpc.ClientStreamingServer[tandemv1.PutTablesRequest, tandemv1.PutTablesResponse]) error {
	var digest string
	var got, total int64
	for first := true; ; first = false {
		m, err := stream.Recv()
		if err != nil {
			break
		}
		if first {
			digest, total = m.Digest, m.TotalBytes
		}
		got += int64(len(m.Chunk))
	}
	if got != total {
		return rpcerr.DataLoss("%d of %d bytes", got, total)
	}
	d.mu.Lock()
	d.tables = digest
	d.mu.Unlock()
	return stream.SendAndClose(&tandemv1.PutTablesResponse{})
}

// GetFuse implements DraftService.
func (d *Draft) GetFuse(_ *tandemv1.GetFuseRequest, stream grpc.ServerStreamingServer[tandemv1.GetFuseResponse]) error {
	sum := sha256.Sum256(d.Fuse)
	return stream.Send(&tandemv1.GetFuseResponse{Digest: hex.EncodeToString(sum[:]),
		TotalBytes: int64(len(d.Fuse)), Chunk: d.Fuse})
}

// Speculate implements DraftService.
func (d *Draft) Speculate(stream grpc.BidiStreamingServer[tandemv1.SpeculateRequest, tandemv1.SpeculateResponse]) error {
	if err := d.isDown(); err != nil {
		return err
	}
	d.mu.Lock()
	d.streams++
	d.opened++
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		d.streams--
		d.mu.Unlock()
	}()
	ctx := stream.Context()
	seq, err := d.engine.NewSequence(ctx)
	if err != nil {
		return err
	}
	defer d.engine.FreeSequence(context.WithoutCancel(ctx), seq)
	var epoch uint64
	base, length := 0, 0
	var result engine.DraftResult
	var builder ddtree.Builder
	var tree ddtree.Tree
	for {
		m, err := stream.Recv()
		if err != nil {
			return nil
		}
		if err := d.isDown(); err != nil {
			return err
		}
		if m.Epoch != epoch {
			if m.Epoch < epoch {
				return rpcerr.Internal("epoch went back from %d to %d", epoch, m.Epoch)
			}
			if err := d.engine.Truncate(ctx, seq, 0); err != nil {
				return err
			}
			epoch, base, length = m.Epoch, int(m.FeaturePosition), 0
			d.mu.Lock()
			d.maxEpoch = max(d.maxEpoch, epoch)
			d.first, d.features = base, d.features[:0]
			d.mu.Unlock()
		}
		d.mu.Lock()
		d.features = append(d.features, m.Features...)
		if m.FeatureRows < 0 || m.FeaturePosition < 0 {
			d.negative++
		}
		d.mu.Unlock()
		var features []engine.FeatureRows
		if m.FeatureRows > 0 {
			if int(m.FeaturePosition) != base+length {
				return rpcerr.Internal("features at %d, have %d", m.FeaturePosition, base+length)
			}
			features = []engine.FeatureRows{{
				Sequence: seq, Position: int32(length), Rows: m.FeatureRows, Encoding: m.FeatureEncoding, Data: m.Features,
			}}
			length += int(m.FeatureRows)
		}
		var requests []engine.DraftRequest
		if p := m.Propose; p != nil && int(p.Position) == base+length {
			requests = []engine.DraftRequest{{
				Sequence: seq, Token: p.Anchor, Position: p.Position - int32(base), Block: p.Block,
				TopK: min(8, max(1, p.Budget)), Temperature: 1,
			}}
		}
		if err := d.engine.Propose(ctx, features, requests, &result); err != nil {
			return err
		}
		if m.Propose == nil {
			continue
		}
		if len(requests) == 0 { // a question about rows that are not there
			result = engine.DraftResult{}
		}
		c := ddtree.Candidates{IDs: result.IDs, Logprobs: result.Logprobs, Stride: result.Stride,
			Positions: min(result.Positions, int(m.Propose.Block)-1)}
		o := ddtree.Options{Budget: int(m.Propose.Budget), ChainSeed: true}
		if m.Propose.Mode == tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN {
			o.Width = 1
		}
		builder.Build(&tree, m.Propose.Anchor, &c, o)
		answer := &tandemv1.SpeculateResponse{
			Epoch: m.Epoch, Step: m.Step, Length: int32(base + length),
			Tokens: tree.Tokens[1:], Parents: tree.Parents[1:], Logprobs: tree.Logprobs[1:],
		}
		if send, err := d.spoil(ctx, answer, int32(d.engine.Info().Vocab)); err != nil {
			return err
		} else if !send {
			continue
		}
		if err := stream.Send(answer); err != nil {
			return err
		}
		d.mu.Lock()
		d.answers++
		d.mu.Unlock()
	}
}

// spoil applies the faults to an answer.
func (d *Draft) spoil(ctx context.Context, a *tandemv1.SpeculateResponse, vocab int32) (send bool, err error) {
	d.mu.Lock()
	f := d.faults
	draw := func(p float64) bool { return p > 0 && d.rng.Float64() < p }
	broken, delay, silent, wrong, garbage, stale := draw(f.Break), draw(f.Delay), draw(f.Silent), draw(f.Wrong),
		draw(f.Garbage), draw(f.StaleStep)
	kind := d.rng.IntN(4)
	d.mu.Unlock()
	wait := f.Forward
	if delay {
		wait += f.DelayFor
	}
	if wait > 0 {
		if !pause.For(ctx, wait) {
			return false, ctx.Err()
		}
	}
	switch {
	case broken:
		return false, rpcerr.Unavailable("broken on purpose")
	case silent:
		return false, nil
	case wrong:
		for i := range a.Tokens {
			a.Tokens[i] = (a.Tokens[i] + 1) % vocab
		}
	case garbage && len(a.Tokens) > 0:
		switch kind {
		case 0:
			a.Tokens[0] = vocab
		case 1:
			a.Parents[0] = 7
		case 2:
			a.Parents = a.Parents[1:]
		case 3:
			for range 200 {
				a.Tokens, a.Parents, a.Logprobs = append(a.Tokens, 1), append(a.Parents, 0), append(a.Logprobs, -1)
			}
		}
	case stale && a.Step > 0:
		a.Step--
	}
	return true, nil
}
