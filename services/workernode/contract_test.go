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
	tests := []struct {
		name  string
		a, b  engine.Info
		chunk int // of b
		model string
		same  bool
	}{
		{"itself", cpu, cpu, 0, "m", true},
		{"another model file", cpu, cpu, 0, "n", false},
		{"another backend", cpu, gpu, 0, "m", false},
		{"type of keys", cpu, with(cpu, func(i *engine.Info) { i.KVTypeK = 8 }), 0, "m", false},
		{"type of values", cpu, with(cpu, func(i *engine.Info) { i.KVTypeV = 8 }), 0, "m", false},
		{"types swapped", with(cpu, func(i *engine.Info) { i.KVTypeK = 8 }),
			with(cpu, func(i *engine.Info) { i.KVTypeV = 8 }), 0, "m", false},
		{"layers", cpu, with(cpu, func(i *engine.Info) { i.LayerLast = 4 }), 0, "m", false},
		{"cuts of prompts that change no bits", cpu, cpu, 128, "m", true},
		{"cuts of prompts", gpu, gpu, 128, "m", false},
		{"the engine's widest step", gpu, gpu, 512, "m", true},
		{"more than the engine's widest step", gpu, gpu, 1024, "m", true},
		{"a narrower engine", gpu, with(gpu, func(i *engine.Info) { i.MaxBatchRows = 256 }), 0, "m", false},
		{"rows from which prompts differ", gpu, with(gpu, func(i *engine.Info) { i.PromptRows = 128 }), 0, "m", false},
		{"device, sequences and tree rows", cpu,
			with(cpu, func(i *engine.Info) { i.Device, i.MaxSequences, i.MaxTreeRows = "that", 1, 32 }), 0, "m", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a, b := Contract("m", tt.a, 0), Contract(tt.model, tt.b, tt.chunk)
			if len(a) != 32 || (a == b) != tt.same {
				t.Errorf("%s and %s, want equal: %v", a, b, tt.same)
			}
		})
	}
	// Pieces of at most PromptRows rows all have the bits of decoding, wherever a prompt is cut.
	if a, b := Contract("m", gpu, 64), Contract("m", gpu, 32); a != b {
		t.Errorf("%s and %s for prompts cut into narrow pieces", a, b)
	}
}
