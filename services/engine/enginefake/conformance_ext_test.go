package enginefake_test

import (
	"testing"
	"time"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/engine/enginetest"
)

func TestFake(t *testing.T) {
	for name, o := range map[string]enginefake.Options{
		"recurrent":   {},
		"truncatable": {Truncatable: true, Vocab: 100},
		"prompt bits": {PromptRows: 64},
		"slow":        {RowDelay: 30 * time.Microsecond, ScoreDelay: time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			enginetest.Run(t, func(*testing.T) (engine.Opener, enginetest.Models) {
				return enginefake.New(o), enginetest.FakeModels
			})
		})
	}
}
