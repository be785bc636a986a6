package workernode

import (
	"testing"

	"github.com/tandem-inference/tandem/services/engine"
)

// TestContract: everything that changes bits changes the id, and nothing else does.
func TestContract(t *testing.T) {
	cpu := engine.Info{Numerics: "cpu matmul=1", LayerLast: 8, MaxBatchRows: 512, KVTypeK: 1, KVTypeV: 1,
		Device: "this", MaxSequences: 4}
	gpu := cpu
	gpu.Numerics, gpu.PromptRows = "cuda 9.0 matmul=1", 64
	with := func(i engine.Info, change func(*engine.Info)) engine.Info {
		change(&i)
		return i
	}
	rows := func(n int) func(*engine.Info) { return func(i *engine.Info) { i.MaxBatchRows = n } }
	tests := []struct {
		name  string
		a, b  engine.Info
		cuts  string // of b; "" = those of a
		model string
		same  bool
	}{
		{"itself", cpu, cpu, "", "m", true},
		{"another model file", cpu, cpu, "", "n", false},
		{"another backend", cpu, gpu, "", "m", false},
		{"type of keys", cpu, with(cpu, func(i *engine.Info) { i.KVTypeK = 8 }), "", "m", false},
		{"type of values", cpu, with(cpu, func(i *engine.Info) { i.KVTypeV = 8 }), "", "m", false},
		{"types swapped", with(cpu, func(i *engine.Info) { i.KVTypeK = 8 }),
			with(cpu, func(i *engine.Info) { i.KVTypeV = 8 }), "", "m", false},
		{"layers", cpu, with(cpu, func(i *engine.Info) { i.LayerLast = 4 }), "", "m", false},
		{"cuts of prompts that change no bits", cpu, cpu, "rule 2", "m", true},
		{"cuts of prompts", gpu, gpu, "rule 2", "m", false},
		{"an engine of narrower steps", gpu, with(gpu, rows(100)), "", "m", true},
		{"steps too narrow for a cut that changes no bits", gpu, with(gpu, rows(40)), "", "m", false},
		{"narrow steps that change no bits", cpu, with(cpu, rows(40)), "", "m", true},
		{"rows from which prompts differ", gpu, with(gpu, func(i *engine.Info) { i.PromptRows = 128 }), "", "m", false},
		{"device, sequences and tree rows", cpu,
			with(cpu, func(i *engine.Info) { i.Device, i.MaxSequences, i.MaxTreeRows = "that", 1, 32 }), "", "m", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cuts := "rule 1"
			if tt.cuts != "" {
				cuts = tt.cuts
			}
			a, b := Contract("m", tt.a, "rule 1"), Contract(tt.model, tt.b, cuts)
			if len(a) != 32 || (a == b) != tt.same {
				t.Errorf("%s and %s, want equal: %v", a, b, tt.same)
			}
		})
	}
}
