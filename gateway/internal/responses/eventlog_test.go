package responses

import (
	"fmt"
	"strings"
	"testing"
)

// readLog reads all events from number n on, waiting for those to come.
func readLog(t *testing.T, l *eventLog, n int) string {
	var out strings.Builder
	for {
		events, next, more := l.from(n)
		switch {
		case len(events) > 0:
			out.Write(events)
			n = next
		case more == nil:
			return out.String()
		default:
			select {
			case <-more:
			case <-t.Context().Done():
				return out.String()
			}
		}
	}
}

// TestEventLog: whatever was added comes out from any number on, over packed blocks and the rest, also to readers that
// came first.
func TestEventLog(t *testing.T) {
	l, want := &eventLog{}, make([]string, 3000)
	for i := range want {
		want[i] = fmt.Sprintf("event: e\ndata: {\"n\":%d,\"text\":\"%s\"}\n\n", i, strings.Repeat("x", i%50))
	}
	early := make(chan string, 3)
	for range cap(early) {
		go func() { early <- readLog(t, l, 0) }()
	}
	for i := 0; i < len(want); {
		n := min(1+i%7, len(want)-i)
		l.add([]byte(strings.Join(want[i:i+n], "")), i+n)
		i += n
	}
	raw := len(strings.Join(want, ""))
	if len(l.blocks) < 3 || len(l.tail) == 0 {
		t.Fatalf("%d blocks and %d bytes after them: the test is too small", len(l.blocks), len(l.tail))
	}
	check := func() {
		t.Helper()
		for _, n := range []int{0, 1, l.blocks[0].next - 1, l.blocks[0].next, l.blocks[1].next + 1, l.first, l.first + 1,
			len(want) - 1, len(want), len(want) + 5} {
			if !l.ended && n >= len(want) {
				continue
			}
			var got strings.Builder
			for at := n; at < len(want); {
				events, next, _ := l.from(at)
				got.Write(events)
				if next <= at {
					t.Fatalf("from(%d) goes on at %d", at, next)
				}
				at = next
			}
			if got.String() != strings.Join(want[min(n, len(want)):], "") {
				t.Errorf("from %d on: other events", n)
			}
		}
	}
	check()
	l.end()
	check()
	if events, _, more := l.from(len(want)); len(events) > 0 || more != nil {
		t.Errorf("after the end: %q, more %v", events, more)
	}
	for range cap(early) {
		if <-early != strings.Join(want, "") {
			t.Error("an early reader missed events")
		}
	}
	if n := l.size(); n == 0 || n > raw/3 {
		t.Errorf("%d bytes are kept of %d", n, raw)
	}
}
