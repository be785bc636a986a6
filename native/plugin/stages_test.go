package main

import (
	"context"
	"testing"

	"github.com/tandem-inference/tandem/native/plugin/internal/native"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginetest"
	"github.com/tandem-inference/tandem/services/engine/staged"
)

// stagedOpener opens targets in stages, everything else as the library does.
type stagedOpener struct {
	engine.Opener
	layers []int
}

func (o stagedOpener) OpenTarget(ctx context.Context, options engine.OpenOptions,
	p engine.Progress) (engine.Target, error) {
	var stages []staged.Stage
	for _, n := range o.layers {
		stages = append(stages, staged.Stage{Open: o.Opener.OpenTarget, Layers: n})
	}
	return staged.Open(stages, engine.HiddenF32)(ctx, options, p)
}

// TestStages runs the suite against the target in stages, which keep every promise of one engine, and holds them to its
// bits, also where a stage has recurrent layers only.
func TestStages(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute; services/engine/staged runs the suite with the fake engine")
	}
	path, models := files(t)
	lib, err := native.Load(path, func(int, string) {})
	if err != nil {
		t.Fatal(err)
	}
	whole := models
	models.Score = "" // the same as without stages
	t.Run("promises", func(t *testing.T) {
		enginetest.Run(t, func(*testing.T) (engine.Opener, enginetest.Models) {
			return stagedOpener{lib, []int{4, 4}}, models
		})
	})
	t.Run("bits", func(t *testing.T) {
		enginetest.Same(t, whole, lib, stagedOpener{lib, []int{5, 3}}, stagedOpener{lib, []int{2, 1, 5}})
	})
}
