package gguf

import (
	"maps"
	"os"
	"regexp"
	"testing"
)

// TestArchitecturesOfTheEngine: what RunsTarget and RunsScorer say is what the engine's table says, and the engine
// reads keys of DeltaNet for the same architectures.
func TestArchitecturesOfTheEngine(t *testing.T) {
	source, err := os.ReadFile("../../native/src/models/architectures.cpp")
	if err != nil {
		t.Fatal(err)
	}
	engine, here := map[string]architecture{}, map[string]architecture{}
	row := regexp.MustCompile(`\{"(\w+)", (true|false), (?:true|false), (true|false), make_\w+\}`)
	for _, m := range row.FindAllStringSubmatch(string(source), -1) {
		engine[m[1]] = architecture{hybrid: m[2] == "true", runs: true, scores: m[3] == "true"}
	}
	if len(engine) == 0 {
		t.Fatal("the engine's table was not found")
	}
	for name, a := range architectures {
		if RunsTarget(name) != a.runs || RunsScorer(name) != a.scores {
			t.Errorf("%s: RunsTarget %v, RunsScorer %v", name, RunsTarget(name), RunsScorer(name))
		}
		if a.runs {
			here[name] = a
		}
	}
	if !maps.Equal(here, engine) {
		t.Errorf("architectures that run: %v here, %v in the engine", here, engine)
	}
}
