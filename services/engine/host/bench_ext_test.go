package host_test

import (
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/engine/enginetest"
	"github.com/tandem-inference/tandem/services/racetest"
)

// stepCases are the two ends of the decode loop: a plain token, and a tree of 23 rows with 92,160 bytes of features,
// nine fused rows of the 27B model (here: as many bytes in rows of another width).
func stepCases() map[string]*engine.Step {
	row := func(i int, want uint32) engine.Row {
		return engine.Row{Token: int32(i % 50), Position: 8 + int32(i), Parent: int32(i) - 1, Want: want, Mask: -1}
	}
	one := &engine.Step{Groups: []engine.Group{{Rows: 1}}, Rows: []engine.Row{row(0, engine.WantToken)}}
	tree := &engine.Step{Groups: []engine.Group{{Rows: 23}}, Features: engine.FeatureRawBF16}
	for i := range 23 {
		want := engine.WantToken
		if i < 9 {
			want |= engine.WantFeatures
		}
		tree.Rows = append(tree.Rows, row(i, want))
	}
	return map[string]*engine.Step{"1 row": one, "23 rows, 92160 bytes": tree}
}

// wide is a fake with feature rows of 10,240 bytes.
var wide = enginefake.Options{Hidden: 2560, CaptureLayers: []int32{1, 3}}

func prepareSteps(b testing.TB, opener engine.Opener) (engine.Target, engine.Sequence) {
	b.Helper()
	e, err := opener.OpenTarget(b.Context(), enginetest.TargetOptions(), nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = e.Close() })
	q, err := e.NewSequence(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	if err := e.SetCapture(b.Context(), []int32{1, 3}); err != nil {
		b.Fatal(err)
	}
	prompt := &engine.Step{Groups: []engine.Group{{Sequence: q, Rows: 8, Commit: true}}}
	for i := range int32(8) {
		prompt.Rows = append(prompt.Rows, engine.Row{Token: i, Position: i, Parent: i - 1, Mask: -1})
	}
	if err := e.Step(b.Context(), prompt, &engine.StepResult{}); err != nil {
		b.Fatal(err)
	}
	return e, q
}

// BenchmarkStep reports the round trip of a step to an engine process less the time inside the engine.
func BenchmarkStep(b *testing.B) {
	for name, step := range stepCases() {
		b.Run(name, func(b *testing.B) {
			e, q := prepareSteps(b, newHost(b, "wide"))
			step.Groups[0].Sequence = q
			var r engine.StepResult
			var overhead, total []time.Duration
			b.ReportAllocs()
			for b.Loop() {
				start := time.Now()
				if err := e.Step(b.Context(), step, &r); err != nil {
					b.Fatal(err)
				}
				d := time.Since(start)
				total = append(total, d)
				overhead = append(overhead, d-time.Duration(r.EngineNanos))
			}
			slices.Sort(overhead)
			slices.Sort(total)
			b.ReportMetric(float64(overhead[len(overhead)/2].Nanoseconds())/1000, "overhead-p50-µs")
			b.ReportMetric(float64(overhead[len(overhead)*99/100].Nanoseconds())/1000, "overhead-p99-µs")
			b.ReportMetric(float64(total[len(total)/2].Nanoseconds())/1000, "total-p50-µs")
		})
	}
}

// TestStepAllocations bounds what a step costs the worker's process: gRPC's own objects, none of ours.
func TestStepAllocations(t *testing.T) {
	if racetest.Enabled {
		t.Skip("the race detector makes pools forget at random")
	}
	for name, step := range stepCases() {
		t.Run(name, func(t *testing.T) {
			e, q := prepareSteps(t, newHost(t, "wide"))
			step.Groups[0].Sequence = q
			var r engine.StepResult
			run := func() {
				if err := e.Step(t.Context(), step, &r); err != nil {
					t.Fatal(err)
				}
			}
			for range 50 {
				run()
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			const n = 500
			for range n {
				run()
			}
			runtime.ReadMemStats(&after)
			allocs := float64(after.Mallocs-before.Mallocs) / n
			t.Logf("%.1f allocations, %d bytes a step", allocs, (after.TotalAlloc-before.TotalAlloc)/n)
			if allocs > 12 {
				t.Errorf("%.1f allocations a step; gRPC's own are about 7", allocs)
			}
		})
	}
}
