package main

import (
	"testing"

	"github.com/tandem-inference/tandem/services/engine"
)

// TestSettingOfTrees: the gateway is told the nodes of trees that hold on the engine that opened.
func TestSettingOfTrees(t *testing.T) {
	for _, c := range []struct {
		flag    int
		backend string
		want    string
	}{{0, "hip", "15"}, {0, "cuda", "22"}, {0, "cuda+hip", "15"}, {40, "hip", "40"}} {
		s := serveCmd{DDTreeBudget: c.flag}
		settings := s.settings()
		s.chosen(settings, engine.Info{Backend: c.backend})
		if got := settings["ddtree-budget"]; got != c.want {
			t.Errorf("--ddtree-budget %d on %s: the setting is %s, want %s", c.flag, c.backend, got, c.want)
		}
	}
}
