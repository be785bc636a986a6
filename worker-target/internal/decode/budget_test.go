package decode

import (
	"context"
	"testing"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/engine/enginetest"
	"github.com/tandem-inference/tandem/services/engine/staged"
	"github.com/tandem-inference/tandem/worker-target/internal/auto"
)

// on is an engine of a backend.
type on struct {
	counting
	backend string
}

func (o *on) Info() engine.Info {
	i := o.counting.Info()
	i.Backend = o.backend
	return i
}

// TestTreeBudget: trees have as many nodes as the request says, else as the flag says, else as suits the device.
func TestTreeBudget(t *testing.T) {
	for name, c := range map[string]struct {
		backend             string
		request, flag, want int
	}{
		"NVIDIA":            {backend: "cuda", want: 22},
		"AMD":               {backend: "hip", want: 15},
		"processor":         {backend: "cpu", want: 22},
		"a stage of AMD":    {backend: "cuda+hip", want: 15},
		"no stage of AMD":   {backend: "cpu+cuda", want: 22},
		"flag":              {backend: "hip", flag: 22, want: 22},
		"request":           {backend: "hip", request: 40, want: 40},
		"request over flag": {backend: "cuda", request: 5, flag: 8, want: 5},
	} {
		drafter := &knowing{}
		slot := NewSlot(Config{RingRows: 256, TreeBudget: c.flag}, auto.New(), drafter)
		request := &Request{Prompt: []int32{1, 2, 3}, Sampler: engine.DefaultSampler(), Budget: c.request, Max: 20,
			Mode: tandemv1.SpeculationMode_SPECULATION_MODE_TREE, TopLogprobs: -1}
		if _, err := slot.Run(context.Background(), &on{backend: c.backend}, request, &discard{}, &Stats{}); err != nil {
			t.Fatal(name, err)
		}
		if drafter.ask.Budget != c.want {
			t.Errorf("%s: the draft was asked for %d nodes, want %d", name, drafter.ask.Budget, c.want)
		}
	}
}

// TestTreeBudgetOfStages: a target whose stages run on unlike devices has the smallest tree of them.
func TestTreeBudgetOfStages(t *testing.T) {
	for _, c := range []struct {
		backends []string
		want     int
	}{{[]string{"cuda", "hip"}, 15}, {[]string{"hip", "cuda"}, 15}, {[]string{"cuda", "cpu"}, 22},
		{[]string{"hip", "hip"}, 15}} {
		var stages []staged.Stage
		for _, b := range c.backends {
			fake := enginefake.New(enginefake.Options{Backend: b})
			stages = append(stages, staged.Stage{Open: fake.OpenTarget, Layers: 4 / len(c.backends)})
		}
		e, err := staged.Open(stages, engine.HiddenF32)(t.Context(), enginetest.TargetOptions(), nil)
		if err != nil {
			t.Fatal(err)
		}
		info := e.Info()
		if got := TreeBudget(0, &info); got != c.want {
			t.Errorf("%v: %d nodes, want %d", c.backends, got, c.want)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
}
