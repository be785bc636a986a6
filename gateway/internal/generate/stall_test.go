package generate_test

import (
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/generate"
	"github.com/tandem-inference/tandem/services/testwait"
)

// stuck is a sink whose client does not read before it is let go.
type stuck struct {
	sink
	read chan struct{}
}

// Delta implements generate.Sink.
func (s *stuck) Delta(index int, d generate.Delta) error {
	<-s.read
	return s.sink.Delta(index, d)
}

// TestStalledClient: a client that does not read holds no slot in the gateway once its worker has given it up: another
// request runs on the worker's only slot. The client gets its text when it reads on.
func TestStalledClient(t *testing.T) {
	const text = "one two three four five six seven eight"
	r := start(t, generate.Config{})
	// The fake worker ends its stream, and so gives up its slot, as soon as it has sent its text.
	r.Target(gatewaytest.WorkerOptions{ID: "a", Slots: 1, Decode: say(r, text, 3)})
	slow := &stuck{read: make(chan struct{})}
	slow.texts = make([]strings.Builder, 1)
	ended := make(chan error, 1)
	go func() {
		_, err := r.gen.Run(t.Context(), r.request(), slow)
		ended <- err
	}()
	testwait.Until(t, "the first request runs", func() bool {
		busy, _, _ := r.Cluster.Targets.Busy("a")
		return busy == 1
	})
	got := testwait.For(t, r.send(t.Context(), r.request()), "the second request's answer")
	if got.err != nil || got.texts[0] != text {
		t.Errorf("%q, %v", got.texts, got.err)
	}
	close(slow.read)
	if err := testwait.For(t, ended, "the first request's end"); err != nil || slow.texts[0].String() != text {
		t.Errorf("%q, %v", slow.texts[0].String(), err)
	}
}
