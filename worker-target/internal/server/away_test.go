package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/worker-target/internal/decode"
)

// slowRig is a worker of one slot whose clients may leave output unread for a moment only, and a request whose output
// fills the connection's window.
func slowRig(t *testing.T, host uint64) (*rig, *tandemv1.DecodeRequest) {
	const context13 = 1 << 13
	r := newRig(t, rigOptions{
		slots: 1, decode: decode.Config{SlowReader: 100 * time.Millisecond}, target: enginefake.Options{Context: context13},
		open: engine.OpenOptions{MaxContext: context13, KVPositions: context13, MaxTopK: 32, HostCapBytes: host},
	})
	return r, &tandemv1.DecodeRequest{
		PromptTokens: prompt(5, 1), MaxTokens: context13 - 100, TopLogprobs: 32, Speculation: modes()[0].spec,
	}
}

// away waits until so many requests are away for good, and so many slots are busy: on a slow machine a request may be
// away for a moment although its client reads.
func (r *rig) away(requests, busy int) {
	r.t.Helper()
	r.until(fmt.Sprintf("%d requests to be away and %d slots busy", requests, busy), func() bool {
		before := r.counters()["slow_readers"]
		for range 10 {
			if r.server.Busy() != busy || r.server.members.Stats().Parked != requests || r.counters()["slow_readers"] != before {
				return false
			}
			time.Sleep(30 * time.Millisecond)
		}
		return true
	})
}

// TestSlowReaderHoldsNothing: a request whose client does not read gives back its slot, sequence and pages, so that
// others run; when its client reads on it goes on with the tokens that it gives alone, from a state in host memory or
// by reading its text again.
func TestSlowReaderHoldsNothing(t *testing.T) {
	for name, host := range map[string]uint64{"kept": 0, "read again": 1} {
		t.Run(name, func(t *testing.T) {
			r, m := slowRig(t, host)
			want := r.must(m).tokens
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			slow, err := r.client.Decode(ctx, m)
			if err != nil {
				t.Fatal(err)
			}
			r.away(1, 0)
			handles, err := r.opener.Opened()[0].Handles(ctx)
			if err != nil || len(handles.Sequences) > 0 {
				t.Errorf("sequences %v are held, %v", handles.Sequences, err)
			}
			// Another request that needs all pages.
			other := &tandemv1.DecodeRequest{PromptTokens: prompt(8000, 2), MaxTokens: 100, TopLogprobs: -1}
			if a := r.must(other); len(a.tokens) != 100 {
				t.Errorf("%d tokens beside a slow reader", len(a.tokens))
			}
			var got []int32
			for {
				e, err := slow.Recv()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, e.GetCommitted().GetTokens()...)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%d tokens of a slow reader differ from the %d alone", len(got), len(want))
			}
			r.idle()
			c := r.counters()
			if c["preemptions"] != 0 || c["requests_parked"] != 0 || (c["tokens_read_again"] > 0) != (host == 1) {
				t.Errorf("%v", c)
			}
		})
	}
}

// TestReturnWaitsForASlot: a request that comes back takes the next slot that becomes free, before those that arrive,
// and one that is cancelled while it is away leaves nothing.
func TestReturnWaitsForASlot(t *testing.T) {
	r, m := slowRig(t, 0)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	slow, err := r.client.Decode(ctx, m)
	if err != nil {
		t.Fatal(err)
	}
	r.away(1, 0)
	second, err := r.client.Decode(ctx, m)
	if err != nil {
		t.Fatal(err)
	}
	r.away(2, 1) // the second stays in its slot: there are as many away as there are slots
	if _, err := r.decode(ctx, m, nil); !errors.Is(err, rpcerr.NoSlot) {
		t.Errorf("a third request: %v", err)
	}
	var received atomic.Int64
	read := func(s tandemv1.TargetService_DecodeClient) func() {
		return func() {
			for {
				if _, err := s.Recv(); err != nil {
					return
				}
				received.Add(1)
			}
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		read(slow)()
	}()
	r.until("the first waits for a slot", func() bool {
		s := r.slots()
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.waiting) == 1
	})
	read(second)() // and ends, which gives its slot to the first
	<-done
	r.idle()
	if c := r.counters(); received.Load() < 2*int64(m.MaxTokens) || c["requests"] != 2 || c["requests_cancelled"] != 0 {
		t.Errorf("%d messages, %v", received.Load(), c)
	}
	if _, err := r.client.Decode(ctx, m); err != nil {
		t.Fatal(err)
	}
	r.away(1, 0)
	cancel()
	r.until("the last has left", func() bool { return r.counters()["requests_cancelled"] == 1 })
	s := r.slots()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.free != 1 || s.away != 0 || len(s.waiting) != 0 || len(s.idle) != 1 {
		t.Errorf("%d free, %d away, %d waiting, %d idle", s.free, s.away, len(s.waiting), len(s.idle))
	}
}
