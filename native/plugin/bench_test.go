package main

import (
	"runtime"
	"testing"

	"github.com/tandem-inference/tandem/native/plugin/internal/native"
	"github.com/tandem-inference/tandem/services/engine"
)

// TestLibraryStepAllocations: a step through the binding costs the native calls' own allocations (24 bytes each) only.
func TestLibraryStepAllocations(t *testing.T) {
	path, models := files(t)
	lib, err := native.Load(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	e, err := lib.OpenTarget(t.Context(), engine.OpenOptions{
		ModelPath: models.Target, Threads: 2, MaxSequences: 1, MaxContext: 512,
		KVTypeK: engine.KVDefault, KVTypeV: engine.KVDefault,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	q, err := e.NewSequence(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	step := &engine.Step{Groups: []engine.Group{{Sequence: q, Rows: 1}}}
	var result engine.StepResult
	at := int32(0)
	run := func() {
		step.Rows = append(step.Rows[:0], engine.Row{Token: 5, Position: at, Parent: -1, Want: engine.WantToken, Mask: -1})
		if err := e.Step(t.Context(), step, &result); err != nil {
			t.Fatal(err)
		}
		if at == 0 {
			step.Groups[0].Path = []int32{0}
		}
		at++
	}
	for range 10 {
		run()
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	const n = 100
	for range n {
		run()
	}
	runtime.ReadMemStats(&after)
	allocs := float64(after.Mallocs-before.Mallocs) / n
	t.Logf("%.1f allocations, %d bytes, %d µs in the engine", allocs, (after.TotalAlloc-before.TotalAlloc)/n,
		result.EngineNanos/1000)
	if allocs > 2 {
		t.Errorf("%.1f allocations a step, which is one native call", allocs)
	}
}
