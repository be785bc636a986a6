package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/bounds"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/racetest"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/worker-target/internal/drafttest"
	"github.com/tandem-inference/tandem/worker-target/internal/watch"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

// watched collects the events of a watch until stop.
type watched struct {
	mu     sync.Mutex // guards the following
	events []*tandemv1.WatchEvent
	err    error
}

// watch watches the worker as fast as it may.
func (r *rig) watch(ctx context.Context) *watched {
	r.t.Helper()
	stream, err := r.client.WatchRounds(ctx, &tandemv1.WatchRoundsRequest{MaxPerSecond: 1000, MaxEvents: mostEvents})
	if err != nil {
		r.t.Fatal(err)
	}
	w := &watched{}
	go func() {
		for {
			m, err := stream.Recv()
			w.mu.Lock()
			if err != nil {
				w.err = err
				w.mu.Unlock()
				return
			}
			if err := bounds.Check(m); err != nil {
				r.t.Errorf("event out of bounds: %v", err)
			}
			w.events = append(append(w.events, m.GetEvent()), m.GetMore()...)
			w.mu.Unlock()
		}
	}()
	return w
}

// of returns the events of a request, once its end is among them.
func (w *watched) of(r *rig, id uint64) (events []*tandemv1.WatchEvent) {
	r.t.Helper()
	r.until("the end of the request is seen", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		events = nil
		for _, e := range w.events {
			if e.Watch == id {
				events = append(events, e)
			}
		}
		return len(events) > 0 && events[len(events)-1].Kind == tandemv1.WatchKind_WATCH_KIND_END
	})
	return events
}

// TestWatchRounds: two watchers see every token of every mode with its origin, the same texts as without watchers,
// trees in which the accepted path is one, and nothing of requests without a number.
func TestWatchRounds(t *testing.T) {
	o := enginefake.Options{}
	r := newRig(t, rigOptions{target: o, draft: drafttest.New(t, o, 0)})
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	list := modes()
	texts := make([][]int32, len(list))
	request := func(i int) *tandemv1.DecodeRequest {
		return &tandemv1.DecodeRequest{PromptTokens: prompt(70, 3), MaxTokens: 60, TopLogprobs: -1, Speculation: list[i].spec,
			Watch: uint64(i + 1)}
	}
	for i := range list {
		texts[i] = r.must(request(i)).tokens
	}
	watchers := []*watched{r.watch(ctx), r.watch(ctx)}
	r.until("both watch", func() bool { return r.server.feed.Watchers() == 2 })
	drafted := 0
	for i, m := range list {
		if got := r.must(request(i)).tokens; !slices.Equal(got, texts[i]) {
			t.Fatalf("%s: watched %v, unwatched %v", m.name, got, texts[i])
		}
		for _, w := range watchers {
			drafted += checkEvents(t, m.name, w.of(r, uint64(i+1)), texts[i])
		}
	}
	if drafted == 0 {
		t.Error("no token of the draft was seen")
	}
	// A request without an id is nobody's to see.
	before := len(watchers[0].of(r, uint64(len(list))))
	m := request(0)
	m.Watch = 0
	r.must(m)
	if n := len(watchers[0].of(r, uint64(len(list)))); n != before {
		t.Errorf("%d events more of a request without an id", n-before)
	}
	leave()
	r.until("nobody watches", func() bool { return r.server.feed.Watchers() == 0 })
}

// checkEvents holds the events of a request to its text and returns how many tokens were the draft's.
func checkEvents(t *testing.T, name string, events []*tandemv1.WatchEvent, text []int32) (drafted int) {
	t.Helper()
	var seen []int32
	for _, e := range events {
		if int(e.OutputIndex) != len(seen) || len(e.Tokens) != len(e.Origins) {
			t.Fatalf("%s: tokens from %d after %d, event %v", name, e.OutputIndex, len(seen), e)
		}
		seen = append(seen, e.Tokens...)
		for _, origin := range e.Origins {
			if origin == tandemv1.TokenOrigin_TOKEN_ORIGIN_DRAFT {
				drafted++
			}
		}
		if e.Kind != tandemv1.WatchKind_WATCH_KIND_ROUND {
			continue
		}
		n := len(e.NodeTokens)
		if n == 0 || len(e.NodeParents) != n || len(e.NodeOrigins) != n || int(e.Rows) != n || len(e.Path) == 0 {
			t.Fatalf("%s: no tree: %v", name, e)
		}
		for i, node := range e.Path[1:] {
			if e.NodeParents[node] != e.Path[i] {
				t.Fatalf("%s: path %v leaves the tree %v", name, e.Path, e.NodeParents)
			}
		}
		if e.StepEndUs < e.StepBeginUs || e.EndUs < e.StepEndUs || e.StartUnixMicros == 0 {
			t.Fatalf("%s: times out of order: %v", name, e)
		}
	}
	if !slices.Equal(seen, text) {
		t.Fatalf("%s: seen %v, sent %v", name, seen, text)
	}
	return drafted
}

// TestWatchEndsWithTheWorker: a watch does not hold up a worker that drains, nor may one begin there.
func TestWatchEndsWithTheWorker(t *testing.T) {
	r := newRig(t, rigOptions{})
	w := r.watch(context.Background())
	r.until("it watches", func() bool { return r.server.feed.Watchers() == 1 })
	r.server.Drain()
	r.until("the watch ended", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.err != nil
	})
	if rpcerr.Code(w.err) != codes.Unavailable {
		t.Errorf("the watch ended with %v", w.err)
	}
	stream, err := r.client.WatchRounds(context.Background(), &tandemv1.WatchRoundsRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	if rpcerr.Code(err) != codes.Unavailable {
		t.Errorf("a later watch: %v", err)
	}
}

// watcher is the stream of a watch that counts what is sent.
type watcher struct {
	grpc.ServerStream
	ctx  context.Context
	sent atomic.Int64 // messages
	told atomic.Int64 // events in them
}

func (w *watcher) Context() context.Context { return w.ctx }

func (w *watcher) Send(m *tandemv1.WatchRoundsResponse) error {
	w.sent.Add(1)
	w.told.Add(int64(1 + len(m.GetMore())))
	return nil
}

// TestWatchSendsManyAtATime: nothing wakes up the stream for one event, and a message has as many as the watcher takes.
func TestWatchSendsManyAtATime(t *testing.T) {
	for most, messages := range map[int32]int64{0: 3, 1: 3, 2: 2, 64: 1} {
		t.Run(fmt.Sprint(most, " a message"), func(t *testing.T) { manyAtATime(t, most, messages) })
	}
	for _, most := range []int32{-1, mostEvents + 1} {
		err := (&Server{feed: watch.New()}).WatchRounds(&tandemv1.WatchRoundsRequest{MaxEvents: most}, &watcher{})
		if !errors.Is(err, rpcerr.AnyInvalidArgument) {
			t.Errorf("%d a message: %v", most, err)
		}
	}
}

func manyAtATime(t *testing.T, most int32, messages int64) {
	racetest.Bubble(t, func(t *testing.T) {
		f := watch.New()
		s := &Server{feed: f}
		ctx, leave := context.WithCancel(t.Context())
		w := &watcher{ctx: ctx}
		done := make(chan error, 1)
		go func() { done <- s.WatchRounds(&tandemv1.WatchRoundsRequest{MaxPerSecond: 1000, MaxEvents: most}, w) }()
		synctest.Wait()
		r := watch.NewRecorder(f)
		for i := range 3 {
			r.Start(uint64(i + 1))
			r.Finish(0)
		}
		time.Sleep(watchEvery - time.Millisecond)
		synctest.Wait()
		if n := w.sent.Load(); n != 0 {
			t.Errorf("%d events were sent at once", n)
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if n, told := w.sent.Load(), w.told.Load(); n != messages || told != 3 {
			t.Errorf("%d events were sent in %d messages after a while, want 3 in %d", told, n, messages)
		}
		leave()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("the watch ended with %v", err)
		}
	})
}
