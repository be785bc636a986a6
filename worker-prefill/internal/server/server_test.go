package server

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/racetest"
	"github.com/tandem-inference/tandem/services/registry"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/testwait"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/protobuf/testing/protocmp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixed yields one engine for ever.
type fixed struct{ engine engine.Scorer }

func (f fixed) Use(context.Context) (engine.Scorer, func(), error) { return f.engine, func() {}, nil }
func (f fixed) Report(_ engine.Engine, _ error)                    {}

func newServer(t *testing.T, o enginefake.Options, slots int) *Server {
	t.Helper()
	engine, err := enginefake.New(o).OpenScorer(t.Context(), engine.OpenOptions{
		ModelPath: "scorer", MaxSequences: 1, KVTypeK: engine.KVDefault,
		KVTypeV: engine.KVDefault,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { engine.Close() })
	return New(fixed{engine}, slots, nil, nil)
}

// document is 3200 tokens in which the question's words stand once, in chunk 40.
func document() (tokens []int32, question *tandemv1.Span) {
	tokens = make([]int32, 3200)
	for i := range tokens {
		tokens[i] = int32((i*i/3 + i*7) % 90)
	}
	needle := []int32{91, 92, 93, 94, 95, 96, 97, 98}
	copy(tokens[40*32+5:], needle)
	copy(tokens[3150:], needle)
	return tokens, &tandemv1.Span{First: 3100, Last: 3158}
}

func covers(spans []*tandemv1.Span, position int32) bool {
	for _, s := range spans {
		if s.First <= position && position < s.Last {
			return true
		}
	}
	return false
}

func TestCompress(t *testing.T) {
	s := newServer(t, enginefake.Options{Vocab: 128}, 4)
	tokens, question := document()
	segment := func(first, last int32, ratio float64) *tandemv1.Segment {
		return &tandemv1.Segment{Span: &tandemv1.Span{First: first, Last: last}, KeepRatio: ratio}
	}
	request := &tandemv1.CompressRequest{
		Tokens: tokens, Query: question,
		Segments: []*tandemv1.Segment{segment(0, 6, 0.1), segment(6, 2982, 0.1), segment(2990, 3090, 1)},
	}
	got, err := s.Compress(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Segments) != 3 {
		t.Fatalf("%d segments", len(got.Segments))
	}
	if d := cmp.Diff([]*tandemv1.Span{{First: 0, Last: 6}}, got.Segments[0].Kept, protocmp.Transform()); d != "" {
		t.Error("a short segment is kept:", d)
	}
	if d := cmp.Diff([]*tandemv1.Span{{First: 2990, Last: 3090}}, got.Segments[2].Kept, protocmp.Transform()); d != "" {
		t.Error("ratio 1 keeps all:", d)
	}
	kept := got.Segments[1].Kept
	if !covers(kept, 40*32+5) || !covers(kept, 2981) {
		t.Errorf("the needle or the end is missing from %v", kept)
	}
	n := int32(0)
	for _, k := range kept {
		n += k.Last - k.First
	}
	if n > 2976/4 {
		t.Errorf("%d of 2976 tokens kept", n)
	}

	// Without the span of the question the end of the prompt asks, and the minimum of chunks is kept.
	request.Query = nil
	request.Segments = []*tandemv1.Segment{segment(6, 2982, 0.001)}
	request.Segments[0].MinChunks = 7
	if got, err = s.Compress(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	n = 0
	for _, k := range got.Segments[0].Kept {
		n += k.Last - k.First
	}
	// Seven chunks, of which six are the ends, and the six around the two chunks that the needle touches.
	if n != 12*32 || !covers(got.Segments[0].Kept, 40*32+5) {
		t.Errorf("%d tokens kept: %v", n, got.Segments[0].Kept)
	}
	var h tandemv1.Heartbeat
	s.Heartbeat(&h)
	for name := range h.Counters {
		if registry.Counters[name] == "" {
			t.Errorf("the counter %s is not in registry.Counters: the gateway will not show it", name)
		}
	}
	if h.LanesBusy != 0 || h.Counters["requests"] != 2 || h.Counters["scored_tokens"] != 6400 {
		t.Errorf("%v", &h)
	}
}

// TestRequestsAreLogged: served or refused, a request leaves one line with its id.
func TestRequestsAreLogged(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	s := newServer(t, enginefake.Options{Vocab: 128, Context: 4000}, 1)
	s.log = zap.New(core)
	tokens, query := document()
	for id, want := range map[string]string{"good": "ok", "bad": "refused"} {
		m := &tandemv1.CompressRequest{RequestId: id, Tokens: tokens, Query: query,
			Segments: []*tandemv1.Segment{{Span: &tandemv1.Span{First: 0, Last: 3000}, KeepRatio: 0.1}}}
		if id == "bad" {
			m.Tokens = append([]int32{1000}, tokens...)
		}
		_, err := s.Compress(t.Context(), m)
		lines := logs.TakeAll()
		if len(lines) != 1 || lines[0].Message != "request ended" {
			t.Fatalf("%s: %v, %v", id, lines, err)
		}
		got := lines[0].ContextMap()
		if got["request_id"] != id || got["outcome"] != want || (err == nil) != (want == "ok") ||
			got["prompt_tokens"] != int64(len(m.Tokens)) || got["wait_ms"] == nil || got["score_ms"] == nil ||
			(got["tokens"] == int64(0)) == (want == "ok") {
			t.Errorf("%s: %v, %v", id, got, err)
		}
	}
}

func TestRefusals(t *testing.T) {
	s := newServer(t, enginefake.Options{Vocab: 128, Context: 100}, 1)
	span := func(first, last int32) *tandemv1.Span { return &tandemv1.Span{First: first, Last: last} }
	ok := make([]int32, 50)
	for name, test := range map[string]struct {
		request *tandemv1.CompressRequest
		want    error
		text    string
	}{
		"empty": {&tandemv1.CompressRequest{}, rpcerr.AnyInvalidArgument, "tokens"},
		"too long": {&tandemv1.CompressRequest{Tokens: make([]int32, 101)}, rpcerr.AnyResourceExhausted,
			"101 tokens, the scorer takes 100"},
		"token": {&tandemv1.CompressRequest{Tokens: []int32{128}}, rpcerr.AnyInvalidArgument, "128"},
		"query": {&tandemv1.CompressRequest{Tokens: ok, Query: span(0, 51)}, rpcerr.AnyInvalidArgument, "query"},
		"segment order": {&tandemv1.CompressRequest{Tokens: ok,
			Segments: []*tandemv1.Segment{{Span: span(5, 9), KeepRatio: 1}, {Span: span(8, 12), KeepRatio: 1}}},
			rpcerr.AnyInvalidArgument, "segment 1"},
		"segment end": {&tandemv1.CompressRequest{Tokens: ok,
			Segments: []*tandemv1.Segment{{Span: span(5, 51), KeepRatio: 1}}}, rpcerr.AnyInvalidArgument, "segment 0"},
		"no span": {&tandemv1.CompressRequest{Tokens: ok, Segments: []*tandemv1.Segment{{KeepRatio: 1}}},
			rpcerr.AnyInvalidArgument, "segment 0"},
		"ratio": {&tandemv1.CompressRequest{Tokens: ok, Segments: []*tandemv1.Segment{{Span: span(5, 9)}}},
			rpcerr.AnyInvalidArgument, "keep_ratio"},
		"query tokens": {&tandemv1.CompressRequest{Tokens: ok, QueryTokens: 1 << 30},
			rpcerr.AnyInvalidArgument, "query_tokens"},
		"id": {&tandemv1.CompressRequest{Tokens: ok, RequestId: strings.Repeat("x", 257)},
			rpcerr.AnyInvalidArgument, "request_id"},
		"negative chunk": {&tandemv1.CompressRequest{Tokens: ok, ChunkTokens: -1}, rpcerr.AnyInvalidArgument, "chunk_tokens"},
	} {
		if _, err := s.Compress(t.Context(), test.request); !errors.Is(err, test.want) ||
			!strings.Contains(err.Error(), test.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
	s.Drain()
	if _, err := s.Compress(t.Context(), &tandemv1.CompressRequest{Tokens: ok}); !errors.Is(err, rpcerr.Draining) {
		t.Errorf("draining: %v", err)
	}
}

func TestCancel(t *testing.T) {
	s := newServer(t, enginefake.Options{Vocab: 128, ScoreDelay: time.Minute}, 1)
	tokens, question := document()
	request := &tandemv1.CompressRequest{
		Tokens: tokens, Query: question,
		Segments: []*tandemv1.Segment{{Span: &tandemv1.Span{First: 0, Last: 3000}, KeepRatio: 0.1}},
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := s.Compress(ctx, request)
		ended <- err
	}()
	testwait.Until(t, "the request takes a slot", func() bool { return len(s.slots) > 0 })
	if _, err := s.Compress(t.Context(), request); !errors.Is(err, rpcerr.NoSlot) {
		t.Errorf("second request on one slot: %v", err)
	}
	cancel()
	if err := testwait.For(t, ended, "the request that was given up ends"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if len(s.slots) != 0 {
		t.Error("the slot is not free")
	}
}

// TestProgressCounts: the tokens of a long prompt count while it is scored, and once when it is done.
func TestProgressCounts(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		s := newServer(t, enginefake.Options{Vocab: 128, Layers: 4, ScoreDelay: 4 * time.Second}, 1)
		tokens, question := document()
		scored := func() float64 {
			var h tandemv1.Heartbeat
			s.Heartbeat(&h)
			return h.Counters["scored_tokens"]
		}
		ended := make(chan error, 1)
		go func() {
			_, err := s.Compress(t.Context(), &tandemv1.CompressRequest{Tokens: tokens, Query: question,
				Segments: []*tandemv1.Segment{{Span: &tandemv1.Span{First: 0, Last: 2982}, KeepRatio: 0.1}}})
			ended <- err
		}()
		n := float64(len(tokens))
		for i := range 4 {
			time.Sleep(500 * time.Millisecond)
			if got, want := scored(), n*float64(i)/4; got != want {
				t.Errorf("after %d layers %v tokens are counted, want %v", i, got, want)
			}
			time.Sleep(500 * time.Millisecond)
		}
		if err := <-ended; err != nil || scored() != n {
			t.Errorf("at the end %v tokens are counted, want %v: %v", scored(), n, err)
		}
	})
}
