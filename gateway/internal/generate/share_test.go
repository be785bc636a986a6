package generate

import (
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/model"
)

// TestShareKey: a share has one number, another one in every process; who asks as nobody has none.
func TestShareKey(t *testing.T) {
	a, b := newShareSalt(), newShareSalt()
	x := a.key("key x")
	if a.key("key x") != x || a.key("key y") == x {
		t.Error("shares do not have a number each")
	}
	if b.key("key x") == x {
		t.Error("the number of a share follows from its name")
	}
	if a.key("") != 0 {
		t.Error("nobody has a number")
	}
}

// TestShareReachesWorker: the worker is told who asks, as a number, and the priority.
func TestShareReachesWorker(t *testing.T) {
	r := &run{g: New(Config{}, Deps{}), req: &Request{Model: &model.Model{}, Share: "session s", Priority: 7}}
	m := r.decodeRequest(job{}, nil)
	if m.FairnessKey != r.g.shareSalt.key("session s") || m.FairnessKey == 0 || m.Priority != 7 {
		t.Errorf("key %d, priority %d", m.FairnessKey, m.Priority)
	}
}
