package peers

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/pause"
	"github.com/tandem-inference/tandem/services/registry"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/worker-target/internal/disk"
	"github.com/tandem-inference/tandem/worker-target/internal/prefix"
)

const (
	page = prefix.PageRows // positions of a page of keys and values, and of features
	// headerWait is how long a header may take; a peer that needs longer is left alone for a while.
	headerWait = 2 * time.Second
	// settled is how long parts arrive before the rest is projected from their rate.
	settled = 20 * time.Millisecond
	// again is after how long a peer is asked again that sends enough states already.
	again = 50 * time.Millisecond
	// mostRow and mostKind bound a row of features and the name of what it is, in bytes.
	mostRow, mostKind = 1 << 20, 64
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// peer is a worker that may hold a state for one request.
type peer struct {
	client              *Client
	hint                *tandemv1.PeerHint
	contract, isolation string
}

// state is one that is being fetched.
type state struct {
	peer   *peer
	link   *link
	ctx    context.Context // of the stream
	cancel context.CancelFunc
	stream tandemv1.PeerService_FetchStateClient
	limit  time.Duration // of reading the tokens
	start  time.Time     // of the call
	header time.Time     // when it came
	layout engine.SnapshotLayout
	tokens []int32 // of the state
	least  int     // tokens of the asker's own
	total  uint64  // bytes of state and pages
	got    uint64
	began  bool // parts are received: there is one attempt
	over   bool // it is counted
}

// Find implements prefix.Peer.
func (p *peer) Find(
	ctx context.Context, info engine.Info, tokens []int32, least int, fits func(length int) bool,
) prefix.Kept {
	c := p.client
	most := min(int(p.hint.GetTokens()), len(tokens))
	var lengths []int32
	for n := least + 1; n <= most; n++ {
		if fits(n) {
			lengths = append(lengths, int32(n))
		}
	}
	if len(lengths) == 0 {
		return nil
	}
	goal := int(lengths[len(lengths)-1])
	if len(lengths) == most-least { // any
		lengths = nil
	}
	limit := c.cfg.Read(info, least, goal)
	l := c.link(registry.Reach(p.hint))
	if l == nil {
		c.skip()
		return nil
	}
	first := max(least/page, engine.FirstPage(goal, c.cfg.Window, page))
	bytes := info.StateBytesPerSequence + uint64(goal-first*page)*info.KVBytesPerToken
	if c.expected(l, bytes) >= limit {
		c.leave(l)
		c.skip()
		return nil
	}
	s := &state{peer: p, link: l, limit: limit, least: least}
	s.ctx, s.cancel = context.WithTimeout(ctx, limit)
	latest := time.Now().Add(limit - again - c.expected(l, bytes)) // waiting until then is worth it
	err := s.open(tokens[:goal], lengths, info)
	for isBusy(err) && time.Now().Before(latest) && pause.For(ctx, again) {
		err = s.open(tokens[:goal], lengths, info)
	}
	if err != nil {
		s.fail(ctx, err)
		s.Close()
		return nil
	}
	return s
}

// failure is an error with the reason by which it is counted.
type failure struct {
	reason string
	err    error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// isBusy reports whether an error is that of a peer that sends enough states already.
func isBusy(err error) bool {
	var f *failure
	return errors.As(err, &f) && f.reason == Busy
}

func wrong(format string, args ...any) error { return &failure{Damaged, fmt.Errorf(format, args...)} }

// remote is an error of the call. Its code is not that of an engine: there is nothing to be made room for.
func remote(err error) error {
	reason := Lost
	switch rpcerr.Code(rpcerr.FromRPC(err)) {
	case codes.NotFound:
		reason = Missing
	case codes.FailedPrecondition, codes.InvalidArgument, codes.Unimplemented:
		reason = Refused
	case codes.ResourceExhausted:
		reason = Busy
	case codes.DeadlineExceeded:
		reason = Slow
	case codes.DataLoss:
		reason = Damaged
	}
	return &failure{reason, errors.New(err.Error())}
}

// open asks for the state and reads its header.
func (s *state) open(tokens, lengths []int32, info engine.Info) (err error) {
	p := s.peer
	s.start = time.Now()
	s.stream, err = tandemv1.NewPeerServiceClient(s.link.conn).FetchState(s.ctx, &tandemv1.FetchStateRequest{
		Contract: p.contract, Isolation: p.isolation, Tokens: tokens, LongerThan: int32(s.least), Lengths: lengths,
	})
	if err != nil {
		return remote(err)
	}
	waited := time.AfterFunc(headerWait, s.cancel)
	m, err := s.stream.Recv()
	waited.Stop()
	s.header = time.Now()
	if err == nil || s.ctx.Err() != nil {
		p.client.answered(s.link, s.header.Sub(s.start))
	}
	if err != nil {
		return remote(err)
	}
	h := m.GetHeader()
	length := int(h.GetLength())
	switch {
	case h == nil:
		return wrong("the first message is no header")
	case h.GetContract() != p.contract:
		return &failure{Refused, fmt.Errorf("the contract id is %q, not %q", h.GetContract(), p.contract)}
	case length <= s.least || length > len(tokens) || len(lengths) > 0 && !slices.Contains(lengths, int32(length)):
		return wrong("the state has %d tokens, which were not asked for", length)
	case h.GetStateBytes() < int64(4*length) || h.GetPageBytes() < 0 || h.GetBlockBytes() < 0 ||
		int(h.GetPages()) != (length+page-1)/page:
		return wrong("%d bytes of state and %d pages of %d in blocks of %d are none of %d tokens", h.GetStateBytes(),
			h.GetPages(), h.GetPageBytes(), h.GetBlockBytes(), length)
	case h.GetFirstPage() < 0 || h.GetFirstPage() >= h.GetPages():
		return wrong("first_page is %d of %d pages", h.GetFirstPage(), h.GetPages())
	}
	s.tokens = tokens[:length]
	s.layout = engine.SnapshotLayout{
		Length: length, Pages: int(h.GetPages()), FirstPage: int(h.GetFirstPage()), Identity: h.GetIdentity(),
		KVTypeK: h.GetKvTypeK(), KVTypeV: h.GetKvTypeV(),
		StateBytes: uint64(h.GetStateBytes()), PageBytes: uint64(h.GetPageBytes()), BlockBytes: uint64(h.GetBlockBytes()),
	}
	s.total = s.layout.StateBytes + uint64(s.layout.Pages-max(s.least/page, s.layout.FirstPage))*s.layout.PageBytes
	if s.limit = p.client.cfg.Read(info, s.least, length); p.client.expected(s.link, s.total) >= s.limit {
		return &failure{Slow, fmt.Errorf("%d tokens are read in %v", length-s.least, s.limit)}
	}
	return nil
}

// fail counts a miss, once. A request that was cancelled says nothing about the peer.
func (s *state) fail(ctx context.Context, err error) {
	if s.over {
		return
	}
	s.over = true
	if ctx.Err() != nil {
		return
	}
	reason := Local
	var f *failure
	if errors.As(err, &f) {
		reason = f.reason
	}
	s.peer.client.failed(s.link, s.peer.hint, reason, err)
}

// Length implements prefix.Kept.
func (s *state) Length() int { return s.layout.Length }

// errNoRoom is how a state ends that was not loaded.
var errNoRoom = errors.New("there is no room for the state")

// Close implements prefix.Kept.
func (s *state) Close() {
	s.fail(context.Background(), errNoRoom)
	s.cancel()
	s.peer.client.leave(s.link)
}

// Load implements prefix.Kept.
func (s *state) Load(ctx context.Context, e disk.Engine, base engine.Snapshot, baseLength int) (
	p engine.Snapshot, rows *disk.Rows, err error,
) {
	shared := baseLength / page
	switch {
	case s.began:
		return 0, nil, errNoRoom
	case shared != s.least/page:
		return 0, nil, fmt.Errorf("%d tokens are there, pages from %d on were asked for", baseLength, s.least)
	}
	// The engine compares the layout with its own before anything of that size is done.
	p, err = e.BeginSnapshot(ctx, s.layout, base, shared)
	if err != nil {
		if rpcerr.Code(err) != codes.ResourceExhausted {
			s.fail(ctx, refusal(err))
		}
		return 0, nil, err
	}
	s.began = true
	rows, err = s.receive(ctx, e, p, shared)
	s.peer.client.received(s.link, s.got, time.Since(s.header))
	if err == nil {
		if err = e.FinishSnapshot(ctx, p); err != nil {
			err = refusal(err)
		}
	}
	if err != nil {
		_ = e.FreeSnapshot(context.WithoutCancel(ctx), p) // the guard tries again
		s.fail(ctx, err)
		return 0, nil, err
	}
	s.over = true
	s.peer.client.succeeded(s.layout.Length - s.least)
	return p, rows, nil
}

// refusal is an error of the worker's own engine: about what came, or about itself.
func refusal(err error) error {
	switch rpcerr.Code(err) {
	case codes.DataLoss, codes.InvalidArgument, codes.FailedPrecondition:
		return &failure{Damaged, err}
	}
	return &failure{Local, err}
}

// receive writes the parts that come into a snapshot and returns the rows of features.
func (s *state) receive(ctx context.Context, e disk.Engine, p engine.Snapshot, shared int) (*disk.Rows, error) {
	for _, r := range disk.Ranges(s.layout, shared) {
		m, err := s.next()
		if err == io.EOF {
			return nil, wrong("the state ends before %d bytes of page %d", r.At.Offset, r.At.Page)
		}
		if err != nil {
			return nil, err
		}
		part := m.GetPart()
		if part == nil || int(part.GetPage()) != r.At.Page || part.GetOffset() != int64(r.At.Offset) ||
			len(part.GetData()) != r.Bytes {
			return nil, wrong("%d bytes at %d of page %d came instead of %d at %d of %d", len(part.GetData()),
				part.GetOffset(), part.GetPage(), r.Bytes, r.At.Offset, r.At.Page)
		}
		if r.At.Page == engine.PartState && !s.same(int(r.At.Offset), part.GetData()) {
			return nil, wrong("it is the state of another prompt")
		}
		if err := e.WriteSnapshot(ctx, p, r.At, part.GetData(), part.GetCrc()); err != nil {
			return nil, refusal(err)
		}
	}
	return s.features()
}

// same compares the token ids in bytes of the state, from an offset on, with those of the prompt.
func (s *state) same(offset int, data []byte) bool {
	for i := 0; i < len(data) && offset+i < 4*len(s.tokens); i++ {
		var id [4]byte
		binary.LittleEndian.PutUint32(id[:], uint32(s.tokens[(offset+i)/4]))
		if data[i] != id[(offset+i)%4] {
			return false
		}
	}
	return true
}

// next receives a message. It gives up where reading the tokens is going to be faster.
func (s *state) next() (*tandemv1.FetchStateResponse, error) {
	m, err := s.stream.Recv()
	if err == io.EOF {
		return nil, err
	}
	if err != nil {
		return nil, remote(err)
	}
	s.got += uint64(len(m.GetPart().GetData()) + len(m.GetRows().GetData()))
	took := time.Since(s.header)
	if took > settled && s.got > 0 && s.got < s.total {
		if all := time.Duration(float64(took) * float64(s.total) / float64(s.got)); all > s.limit {
			return nil, &failure{Slow, fmt.Errorf("%d of %d bytes in %v, the tokens are read in %v", s.got, s.total, took,
				s.limit)}
		}
	}
	return m, nil
}

// features receives the rows of features, nil when there are none.
func (s *state) features() (*disk.Rows, error) {
	var rows *disk.Rows
	at, bytes := 0, uint64(0)
	for {
		m, err := s.next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		r := m.GetRows()
		width := int(r.GetWidth())
		if rows == nil {
			at = int(r.GetPosition())
			rows = &disk.Rows{Kind: r.GetKind(), Width: width, First: at}
		}
		n := min(page, s.layout.Length-at)
		bytes += uint64(len(r.GetData()))
		switch {
		case r == nil || len(r.GetKind()) > mostKind || width < 1 || width > mostRow || at < 0 || rows.First%page != 0 ||
			n < 1 || bytes > s.peer.client.cfg.MaxRowBytes:
			return nil, wrong("rows of features of %d bytes at %d do not fit", width, at)
		case r.GetKind() != rows.Kind || width != rows.Width || int(r.GetPosition()) != at || len(r.GetData()) != n*width:
			return nil, wrong("rows of features at %d do not follow those before", at)
		case crc32.Checksum(r.GetData(), castagnoli) != r.GetCrc():
			return nil, wrong("the checksum of rows of features at %d is wrong", at)
		}
		rows.Pages = append(rows.Pages, r.GetData())
		at += n
	}
	if rows != nil && at != s.layout.Length {
		return nil, wrong("rows of features end at %d of %d", at, s.layout.Length)
	}
	return rows, nil
}
