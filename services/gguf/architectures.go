package gguf

// architecture is what the reader knows of models of a name in general.architecture.
type architecture struct {
	hybrid bool // mixes Gated-DeltaNet and attention layers
	runs   bool // engines of this build run it as a target
	scores bool // and as a scorer
}

// architectures are those whose metadata and tensors are checked; files of others are only accounted for.
var architectures = map[string]architecture{
	"qwen35":    {hybrid: true, runs: true},
	"qwen35moe": {hybrid: true}, // waits for experts in the engine
	"qwen3":     {runs: true, scores: true},
}

// RunsTarget reports whether engines of this build run targets of an architecture.
func RunsTarget(arch string) bool { return architectures[arch].runs }

// RunsScorer reports whether engines of this build run prompt scorers of an architecture.
func RunsScorer(arch string) bool { return architectures[arch].scores }
