package server

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/worker-target/internal/disk"
	"github.com/tandem-inference/tandem/worker-target/internal/drafttest"
	"github.com/tandem-inference/tandem/worker-target/internal/peers"
	"github.com/tandem-inference/tandem/worker-target/internal/prefix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/testing/protocmp"
)

// fetching is the client of a worker that expects reading to take so long, and reaches peers by dial.
func fetching(t *testing.T, read time.Duration, dial func() (*grpc.ClientConn, error)) *peers.Client {
	t.Helper()
	c := peers.NewClient(peers.Config{
		Dial:        func(string) (*grpc.ClientConn, error) { return dial() },
		Read:        func(engine.Info, int, int) time.Duration { return read },
		MaxRowBytes: 1 << 30,
	})
	t.Cleanup(c.Close)
	return c
}

// between is a peer's service whose messages pass through change, which may also end the stream.
type between struct {
	tandemv1.UnimplementedPeerServiceServer
	to     tandemv1.PeerServiceClient
	ask    func(m *tandemv1.FetchStateRequest)
	change func(i int, m *tandemv1.FetchStateResponse) error
}

var errCut = errors.New("cut")

func (b *between) FetchState(m *tandemv1.FetchStateRequest, s tandemv1.PeerService_FetchStateServer) error {
	if b.ask != nil {
		b.ask(m)
	}
	from, err := b.to.FetchState(s.Context(), m)
	if err != nil {
		return err
	}
	for i := 0; ; i++ {
		r, err := from.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if b.change != nil {
			if err := b.change(i, r); err == errCut {
				return nil
			} else if err != nil {
				return err
			}
		}
		if err := s.Send(r); err != nil {
			return err
		}
	}
}

// through serves b in memory and returns how to reach it.
func through(t *testing.T, b *between) func() (*grpc.ClientConn, error) {
	t.Helper()
	listener := bufconn.Listen(1 << 20)
	g := grpc.NewServer(rpcerr.ServerOptions(nil)...)
	tandemv1.RegisterPeerServiceServer(g, b)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = g.Serve(listener)
	}()
	t.Cleanup(func() {
		g.Stop()
		<-served
	})
	return func() (*grpc.ClientConn, error) {
		return grpc.NewClient("passthrough:///between", append(rpcerr.DialOptions(),
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
				return listener.DialContext(ctx)
			}))...)
	}
}

// pair are two workers of which the second fetches from the first through b.
func pair(t *testing.T, o rigOptions, read time.Duration, b *between) (holder, asker *rig) {
	t.Helper()
	if o.contract == "" {
		o.contract = "contract"
	}
	o.peers = fetching(t, read, func() (*grpc.ClientConn, error) { return nil, errors.New("nobody") })
	holder = newRig(t, o)
	b.to = tandemv1.NewPeerServiceClient(holder.conn)
	o.peers = fetching(t, read, through(t, b))
	o.prefixes = prefix.Config{}
	return holder, newRig(t, o)
}

// conversationOf is a random prompt, which a later one may continue.
func conversationOf(random *rand.Rand, n int) []int32 {
	p := make([]int32, n)
	for i := range p {
		p[i] = random.Int32N(64)
	}
	return p
}

func hintOf(tokens int) *tandemv1.PeerHint {
	return &tandemv1.PeerHint{WorkerId: "holder", Address: "holder:1", Tokens: int32(tokens)}
}

// same fails unless two answers have the same tokens and the same bits of log-probabilities.
func same(t *testing.T, what string, got, want answer) {
	t.Helper()
	if d := cmp.Diff(want.tokens, got.tokens); d != "" {
		t.Errorf("%s: other tokens (-want +got):\n%s", what, d)
	}
	if d := cmp.Diff(want.logprobs, got.logprobs, protocmp.Transform()); d != "" {
		t.Errorf("%s: other log-probabilities (-want +got):\n%s", what, d)
	}
}

// TestPeerFetch: a prompt whose begin another worker has read starts from the state that is fetched from there, of the
// longest useful length, beside pages that the worker has itself, with the bits of a cold one.
func TestPeerFetch(t *testing.T) {
	for name, o := range map[string]rigOptions{
		"one contract": {}, "two contracts": {target: enginefake.Options{PromptRows: 64}},
		"a window": {target: enginefake.Options{PromptRows: 64}, open: engine.OpenOptions{AttentionWindow: 128}},
	} {
		t.Run(name, func(t *testing.T) {
			holder, asker := pair(t, o, time.Minute, &between{})
			random := rand.New(rand.NewPCG(1, 2))
			tokens, most := 0, uint64(0) // bytes that are sent
			info := holder.opener.Opened()[0].Info()
			for i := range 8 {
				first := conversationOf(random, 1100+random.IntN(1500))
				if i%2 == 1 { // the asker has a begin of it
					asker.must(&tandemv1.DecodeRequest{PromptTokens: first[:550], MaxTokens: 1, TopLogprobs: -1})
				}
				use := &tandemv1.CacheUse{Isolation: []string{"", "key"}[i%4/2]}
				if i%2 == 1 {
					use.Isolation = ""
				}
				holder.must(&tandemv1.DecodeRequest{PromptTokens: first, MaxTokens: 1, TopLogprobs: -1, Cache: use})
				second := append(first, conversationOf(random, 1+random.IntN(300))...)
				m := &tandemv1.DecodeRequest{PromptTokens: second, MaxTokens: 12, TopLogprobs: 4, Cache: use,
					Sampling: samplings()["sampled"], Peer: hintOf(len(first))}
				before := asker.server.deps.Peers.Stats()
				hit := asker.must(m)
				now := asker.server.deps.Peers.Stats()
				if now.Fetched != before.Fetched+1 || now.Tokens <= before.Tokens || len(now.Failures) > 0 {
					t.Fatalf("%d: %+v after %+v", i, now, before)
				}
				tokens += int(now.Tokens - before.Tokens)
				least := len(first) - 1
				if o.target.PromptRows > 0 {
					least = len(first) / 512 * 512
				}
				sent := len(first) + info.KVPage
				if window := o.open.AttentionWindow; window > 0 {
					sent = window + 2*info.KVPage
				}
				most += info.StateBytesPerSequence + uint64(4*len(first)+sent*int(info.KVBytesPerToken))
				if got := int(hit.prefill.CachedTokens); got < least {
					t.Errorf("%d: %d tokens came from the cache, %d are held", i, got, least)
				}
				again := asker.must(m) // it is there now
				if s := asker.server.deps.Peers.Stats(); s.Fetched != now.Fetched {
					t.Errorf("%d: fetched again", i)
				}
				m.Cache = &tandemv1.CacheUse{Off: true}
				cold := asker.must(m)
				same(t, "fetched", hit, cold)
				same(t, "again", again, cold)
			}
			var a, b tandemv1.Heartbeat
			holder.server.Heartbeat(&a)
			asker.server.Heartbeat(&b)
			if sent := a.Counters["peer_sent_bytes"]; sent > float64(most) {
				t.Errorf("%g bytes are sent, at most %d are needed", sent, most)
			}
			if a.Counters["peer_sends"] != 8 || a.Counters["peer_sent_tokens"] != float64(tokens) ||
				b.Counters["peer_fetches"] != 8 || b.Counters["peer_fetched_bytes"] != a.Counters["peer_sent_bytes"] ||
				b.Counters["peer_fetch_seconds"] <= 0 || a.Counters["peer_sends_failed"] != 0 {
				t.Errorf("%v, %v", a.Counters, b.Counters)
			}
		})
	}
}

// TestPeerFaults: whatever is wrong with a peer or with what it sends, the prompt is read and the answer is that of a
// cold one; it is counted by reason.
func TestPeerFaults(t *testing.T) {
	const held = 1024
	crc := func(data []byte) uint32 { return crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli)) }
	header := func(change func(h *tandemv1.StateHeader)) func(int, *tandemv1.FetchStateResponse) error {
		return func(i int, m *tandemv1.FetchStateResponse) error {
			if i == 0 {
				change(m.GetHeader())
			}
			return nil
		}
	}
	part := func(at int, change func(p *tandemv1.StatePart) error) func(int, *tandemv1.FetchStateResponse) error {
		return func(i int, m *tandemv1.FetchStateResponse) error {
			if i == at {
				return change(m.GetPart())
			}
			return nil
		}
	}
	for name, c := range map[string]struct {
		reason string
		ask    func(m *tandemv1.FetchStateRequest)
		change func(i int, m *tandemv1.FetchStateResponse) error
		read   time.Duration
	}{
		"a flipped bit of the state": {reason: peers.Damaged, change: part(1, func(p *tandemv1.StatePart) error {
			p.Data[len(p.Data)-1] ^= 1
			return nil
		})},
		"a flipped bit of a page": {reason: peers.Damaged, change: part(4, func(p *tandemv1.StatePart) error {
			p.Data[17] ^= 0x80
			return nil
		})},
		"ids of another prompt with a right checksum": {reason: peers.Damaged, change: part(1,
			func(p *tandemv1.StatePart) error {
				id := binary.LittleEndian.Uint32(p.Data[4*500:])
				binary.LittleEndian.PutUint32(p.Data[4*500:], (id+1)%64)
				p.Crc = crc(p.Data)
				return nil
			})},
		"a page twice": {reason: peers.Damaged, change: part(5, func(p *tandemv1.StatePart) error {
			p.Page--
			return nil
		})},
		"a short part": {reason: peers.Damaged, change: part(5, func(p *tandemv1.StatePart) error {
			p.Data = p.Data[1:]
			p.Crc = crc(p.Data)
			return nil
		})},
		"no part": {reason: peers.Damaged, change: func(i int, m *tandemv1.FetchStateResponse) error {
			if i == 3 {
				m.Message = &tandemv1.FetchStateResponse_Rows{Rows: &tandemv1.StateRows{}}
			}
			return nil
		}},
		"an early end": {reason: peers.Damaged, change: part(6, func(*tandemv1.StatePart) error { return errCut })},
		"a peer that is killed in the middle": {reason: peers.Lost, change: part(6, func(*tandemv1.StatePart) error {
			return rpcerr.Unavailable("gone")
		})},
		"a header of another contract": {reason: peers.Refused, change: header(func(h *tandemv1.StateHeader) {
			h.Contract = "other"
		})},
		"a longer state than was asked for": {reason: peers.Damaged, change: header(func(h *tandemv1.StateHeader) {
			h.Length += 64
			h.Pages++
		})},
		"another model": {reason: peers.Damaged, change: header(func(h *tandemv1.StateHeader) { h.Identity++ })},
		"pages that are not released": {reason: peers.Damaged, change: header(func(h *tandemv1.StateHeader) {
			h.FirstPage++
		})},
		"too many pages released": {reason: peers.Damaged, change: header(func(h *tandemv1.StateHeader) {
			h.FirstPage = h.Pages + 1000
		})},
		"a negative first page": {reason: peers.Damaged, change: header(func(h *tandemv1.StateHeader) {
			h.FirstPage = -1
		})},
		"huge pages": {reason: peers.Slow, change: header(func(h *tandemv1.StateHeader) { h.PageBytes = 1 << 40 })},
		"negative sizes": {reason: peers.Damaged, change: header(func(h *tandemv1.StateHeader) {
			h.BlockBytes = -h.BlockBytes
		})},
		"no header": {reason: peers.Damaged, change: func(i int, m *tandemv1.FetchStateResponse) error {
			if i == 0 {
				m.Message = &tandemv1.FetchStateResponse_Part{Part: &tandemv1.StatePart{}}
			}
			return nil
		}},
		"another contract":  {reason: peers.Refused, ask: func(m *tandemv1.FetchStateRequest) { m.Contract = "other" }},
		"another isolation": {reason: peers.Missing, ask: func(m *tandemv1.FetchStateRequest) { m.Isolation = "other" }},
		"other tokens":      {reason: peers.Missing, ask: func(m *tandemv1.FetchStateRequest) { m.Tokens[5] ^= 1 }},
		"a bad request":     {reason: peers.Refused, ask: func(m *tandemv1.FetchStateRequest) { m.LongerThan = -1 }},
		"a slow peer": {reason: peers.Slow, read: 200 * time.Millisecond,
			change: part(4, func(*tandemv1.StatePart) error {
				time.Sleep(300 * time.Millisecond)
				return nil
			})},
		"a peer that is busy": {reason: peers.Busy, read: 200 * time.Millisecond,
			change: func(int, *tandemv1.FetchStateResponse) error { return rpcerr.ResourceExhausted("enough") }},
	} {
		t.Run(name, func(t *testing.T) {
			if c.read == 0 {
				c.read = time.Minute
			}
			holder, asker := pair(t, rigOptions{target: enginefake.Options{PromptRows: 64}}, c.read,
				&between{ask: c.ask, change: c.change})
			p := prompt(1300, 1)
			holder.must(&tandemv1.DecodeRequest{PromptTokens: p, MaxTokens: 1, TopLogprobs: -1})
			m := &tandemv1.DecodeRequest{PromptTokens: p, MaxTokens: 9, TopLogprobs: 3, Peer: hintOf(held)}
			got := asker.must(m)
			s := asker.server.deps.Peers.Stats()
			if got.prefill.CachedTokens != 0 || s.Fetched != 0 || s.Failures[c.reason] != 1 || len(s.Failures) != 1 {
				t.Errorf("%d tokens cached, %+v, want one %q", got.prefill.CachedTokens, s, c.reason)
			}
			m.Cache = &tandemv1.CacheUse{Off: true}
			same(t, "after the fault", got, asker.must(m))
		})
	}
}

// TestPeerIsBusy: a peer that sends enough states already is asked again while reading would take longer.
func TestPeerIsBusy(t *testing.T) {
	asked := 0
	holder, asker := pair(t, rigOptions{target: enginefake.Options{PromptRows: 64}}, time.Minute, &between{
		change: func(i int, _ *tandemv1.FetchStateResponse) error {
			if i > 0 {
				return nil
			}
			if asked++; asked < 4 {
				return rpcerr.ResourceExhausted("enough")
			}
			return nil
		},
	})
	p := prompt(1300, 1)
	holder.must(&tandemv1.DecodeRequest{PromptTokens: p, MaxTokens: 1, TopLogprobs: -1})
	m := &tandemv1.DecodeRequest{PromptTokens: p, MaxTokens: 9, TopLogprobs: 3, Peer: hintOf(1024)}
	got := asker.must(m)
	s := asker.server.deps.Peers.Stats()
	if got.prefill.CachedTokens != 1024 || s.Fetched != 1 || len(s.Failures) != 0 || asked != 4 {
		t.Errorf("%v cached, %+v, asked %d times", got.prefill, s, asked)
	}
	m.Cache = &tandemv1.CacheUse{Off: true}
	same(t, "after it was asked again", got, asker.must(m))
}

// TestPeerSendsFeatures: a fetched state has its rows of features, so that the first round after it drafts. Rows that
// are damaged or out of place make the fetch a miss.
func TestPeerSendsFeatures(t *testing.T) {
	for name, change := range map[string]func(r *tandemv1.StateRows){
		"whole":        nil,
		"damaged":      func(r *tandemv1.StateRows) { r.Data[3] ^= 1 },
		"out of place": func(r *tandemv1.StateRows) { r.Position += 64 },
		"too wide":     func(r *tandemv1.StateRows) { r.Width *= 2 },
		"of no kind":   func(r *tandemv1.StateRows) { r.Kind = strings.Repeat("k", 65) },
	} {
		t.Run(name, func(t *testing.T) {
			target := enginefake.Options{PromptRows: 64}
			rows := 0
			holder, asker := pair(t, rigOptions{target: target, draft: drafttest.New(t, target, 0)}, time.Minute,
				&between{change: func(_ int, m *tandemv1.FetchStateResponse) error {
					if r := m.GetRows(); r != nil {
						if rows++; rows == 2 && change != nil {
							change(r)
						}
					}
					return nil
				}})
			p := prompt(1300, 1)
			holder.must(&tandemv1.DecodeRequest{PromptTokens: p, MaxTokens: 8, TopLogprobs: -1})
			m := &tandemv1.DecodeRequest{PromptTokens: p, MaxTokens: 9, TopLogprobs: 3, Peer: hintOf(1024),
				Speculation: &tandemv1.Speculation{Mode: tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN}}
			got := asker.must(m)
			s := asker.server.deps.Peers.Stats()
			if rows < 2 {
				t.Fatalf("%d messages of rows", rows)
			}
			if change == nil {
				if got.prefill.CachedTokens != 1024 || s.Fetched != 1 || got.finished.Timings.DraftedTokens == 0 {
					t.Errorf("%v, %+v, %v", got.prefill, s, got.finished.Timings)
				}
			} else if got.prefill.CachedTokens != 0 || s.Failures[peers.Damaged] != 1 {
				t.Errorf("%v, %+v", got.prefill, s)
			}
			m.Cache = &tandemv1.CacheUse{Off: true}
			same(t, "with features", got, asker.must(m))
		})
	}
}

// TestPeerIsAskedOnlyWhereItPays: hints of states that are not longer, or that take longer to fetch than to read, are
// not followed; nor are they where fetching is off, and such a worker sends nothing.
func TestPeerIsAskedOnlyWhereItPays(t *testing.T) {
	asked := 0
	b := &between{ask: func(*tandemv1.FetchStateRequest) { asked++ }}
	holder, asker := pair(t, rigOptions{}, time.Microsecond, b)
	p := prompt(900, 1)
	m := &tandemv1.DecodeRequest{PromptTokens: p, MaxTokens: 2, TopLogprobs: -1, Peer: hintOf(800)}
	holder.must(m)
	asker.must(m)
	if s := asker.server.deps.Peers.Stats(); asked != 0 || s.Skipped != 1 {
		t.Errorf("asked %d times, %+v", asked, s)
	}
	m.Peer = hintOf(500)
	asker.must(m) // it has one of 512 tokens by now
	if s := asker.server.deps.Peers.Stats(); asked != 0 || s.Skipped != 1 {
		t.Errorf("asked %d times, %+v", asked, s)
	}
	off := newRig(t, rigOptions{})
	if a := off.must(m); a.prefill.CachedTokens != 0 || asked != 0 {
		t.Errorf("off: %v, asked %d times", a.prefill, asked)
	}
	stream, err := tandemv1.NewPeerServiceClient(off.conn).FetchState(t.Context(), &tandemv1.FetchStateRequest{Tokens: p})
	if err == nil {
		_, err = stream.Recv()
	}
	if rpcerr.Code(rpcerr.FromRPC(err)) != codes.Unimplemented {
		t.Errorf("a worker that sends nothing: %v", err)
	}
}

// TestPeerHintIsChecked: errors name the field.
func TestPeerHintIsChecked(t *testing.T) {
	r := newRig(t, rigOptions{})
	for text, hint := range map[string]*tandemv1.PeerHint{
		"peer: tokens":    {Tokens: -1},
		"peer: worker_id": {WorkerId: "a b"},
		"peer: address":   {Address: strings.Repeat("a", 513)},
	} {
		_, err := r.decode(t.Context(), &tandemv1.DecodeRequest{PromptTokens: prompt(30, 1), MaxTokens: 1, TopLogprobs: -1,
			Peer: hint}, nil)
		if rpcerr.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), text) {
			t.Errorf("want an error of %s, got %v", text, err)
		}
	}
}

// TestPeerSendsFromDisk: a state that is left on disk alone is sent from there, without a place in memory; a damaged
// file is a miss, and deleted.
func TestPeerSendsFromDisk(t *testing.T) {
	dir := t.TempDir()
	store, err := disk.Open(disk.Config{Dir: dir, Budget: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	holder, asker := pair(t, rigOptions{
		target: enginefake.Options{PromptRows: 64},
		prefixes: prefix.Config{Bytes: 1 << 30, Slots: 1, Disk: &prefix.Disk{
			Store: store, MinTokens: 64, ColdMax: 1 << 20,
		}},
	}, time.Minute, &between{})
	p := prompt(1300, 1)
	holder.must(&tandemv1.DecodeRequest{PromptTokens: p, MaxTokens: 1, TopLogprobs: -1})
	holder.until("the state is on disk", func() bool {
		s, _ := holder.prefixes.DiskStats()
		return s.States > 0
	})
	holder.must(&tandemv1.DecodeRequest{PromptTokens: prompt(1300, 5), MaxTokens: 1, TopLogprobs: -1})
	hits := holder.prefixes.Stats().Hits
	m := &tandemv1.DecodeRequest{PromptTokens: p, MaxTokens: 9, TopLogprobs: 3, Peer: hintOf(1024)}
	got := asker.must(m)
	d, _ := holder.prefixes.DiskStats()
	if got.prefill.CachedTokens != 1024 || d.Hits != 1 || holder.prefixes.Stats().Hits != hits {
		t.Errorf("%v cached, %+v", got.prefill, d)
	}
	m.Cache = &tandemv1.CacheUse{Off: true}
	cold := asker.must(m)
	same(t, "from disk", got, cold)

	damaged := 0
	err = filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".kv" {
			return err
		}
		damaged++
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		data[len(data)-100] ^= 1 // in the last page: parts before it were sent by then
		return os.WriteFile(path, data, 0o600)
	})
	if err != nil || damaged == 0 {
		t.Fatalf("%d files are damaged: %v", damaged, err)
	}
	other := newRig(t, rigOptions{
		target: enginefake.Options{PromptRows: 64}, contract: "contract",
		peers: fetching(t, time.Minute, through(t, &between{to: tandemv1.NewPeerServiceClient(holder.conn)})),
	})
	m.Cache = nil
	got = other.must(m)
	d, _ = holder.prefixes.DiskStats()
	s := other.server.deps.Peers.Stats()
	if got.prefill.CachedTokens != 0 || s.Fetched != 0 || s.Failures[peers.Damaged] != 1 || d.Damaged != 1 {
		t.Errorf("%v cached of a damaged file, %+v, %+v", got.prefill, s, d)
	}
	same(t, "from a damaged file", got, cold)
}
