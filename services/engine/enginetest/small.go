package enginetest

import "github.com/tandem-inference/tandem/services/engine"

// FakeModels names models for engines that read no files.
var FakeModels = Models{
	Target: "target.gguf", Draft: "draft.gguf", Tables: "target.gguf", Score: "score.gguf", Missing: "missing.gguf",
}

// TargetOptions opens FakeModels.Target for two sequences.
func TargetOptions() engine.OpenOptions {
	return engine.OpenOptions{
		ModelPath: FakeModels.Target, MaxSequences: 2,
		KVTypeK: engine.KVDefault, KVTypeV: engine.KVDefault,
	}
}

// OneRow is a step that asks an empty sequence for the token after token 0, without committing it.
func OneRow(q engine.Sequence) *engine.Step {
	return &engine.Step{
		Groups: []engine.Group{{Sequence: q, Rows: 1}},
		Rows:   []engine.Row{{Parent: -1, Mask: -1, Want: engine.WantToken}},
	}
}
