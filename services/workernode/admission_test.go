package workernode

import (
	"testing"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/registry"
	"go.uber.org/zap"
	"google.golang.org/protobuf/encoding/prototext"
)

// TestAdmission: a worker does what it is asked once, whichever of its gateways asks, and heartbeats say what holds.
func TestAdmission(t *testing.T) {
	const (
		nothing = tandemv1.Admission_ADMISSION_UNSPECIFIED
		open    = tandemv1.Admission_ADMISSION_OPEN
		hold    = tandemv1.Admission_ADMISSION_HOLD
		end     = tandemv1.Admission_ADMISSION_END
	)
	client, err := registry.NewMembership([]string{"passthrough:///x"}, registry.ClientConfig{
		Registration: &tandemv1.Registration{}, Heartbeat: func() *tandemv1.Heartbeat { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	n := &node{worker: counting{}, log: zap.NewNop(), end: make(chan struct{}), client: client}
	n.complete.Store(true)
	ended := func() bool {
		select {
		case <-n.end:
			return true
		default:
			return false
		}
	}
	for i, step := range []struct {
		gateway string
		asked   tandemv1.Admission
		held    bool
		ends    bool
	}{
		{"a", nothing, false, false}, {"a", hold, true, false},
		{"b", nothing, true, false}, // it joins another gateway
		{"b", open, false, false},
		{"a", hold, false, false}, // that lease repeats what it said
		{"a", nothing, false, false}, {"a", hold, true, false},
		{"b", open, true, false},
		{"b", nothing, true, false}, {"b", open, false, false},
		{"a", end, false, true}, {"b", end, false, true},
	} {
		n.admit(step.gateway, step.asked)
		if h := n.heartbeat(); (h.State == registry.StateDraining) != step.held || ended() != step.ends {
			t.Errorf("step %d: %s, ends %v", i, h.State, ended())
		}
	}
}

// TestGatewayEnds: gateways of earlier versions tell their workers to drain when they end. A worker takes work all the
// same: of other gateways, and of the one that is started again.
func TestGatewayEnds(t *testing.T) {
	l := &tandemv1.Lease{}
	if err := prototext.Unmarshal([]byte("epoch: 1 drain: true"), l); err != nil {
		t.Fatal(err)
	}
	n := &node{worker: counting{}, log: zap.NewNop(), end: make(chan struct{})}
	n.complete.Store(true)
	n.lease(l)
	if h := n.heartbeat(); h.State == registry.StateDraining {
		t.Error("the worker drains")
	}
}
