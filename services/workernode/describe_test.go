package workernode

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// TestRegistrationFollowsTheEngine: an engine that comes back with other limits is described again, one that comes back
// as it was is not.
func TestRegistrationFollowsTheEngine(t *testing.T) {
	core, lines := observer.New(zap.InfoLevel)
	sequences := []int{32, 32, 7, 7, 9}
	fill := func(_ context.Context, r *tandemv1.Registration) error {
		if len(sequences) == 0 {
			return context.Canceled
		}
		Describe(r, engine.Info{MaxSequences: sequences[0], MaxContext: 100, KVPositions: 400})
		sequences = sequences[1:]
		return nil
	}
	n := &node{log: zap.New(core), cfg: Config{Describe: fill, Again: fill, Registration: &tandemv1.Registration{
		Role: tandemv1.Role_ROLE_TARGET, Model: &tandemv1.ModelInfo{}, Limits: &tandemv1.Limits{}}}}
	if err := n.describe(t.Context()); err != context.Canceled || !n.complete.Load() {
		t.Errorf("%v, complete: %v", err, n.complete.Load())
	}
	var lanes []int32
	for _, line := range lines.All() {
		lanes = append(lanes, line.ContextMap()["lanes"].(int32))
	}
	if d := cmp.Diff([]int32{32, 7, 9}, lanes); d != "" {
		t.Error(d)
	}
}
