package workernode

import (
	"context"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/racetest"
)

func TestCacheFlags(t *testing.T) {
	for name, id := range map[string]int32{
		"f32": 0, "f16": 1, "bf16": 30, "q8_0": 8, "q5_1": 7, "q5_0": 6, "q4_1": 3, "q4_0": 2,
		"tq3_0": 42, "auto": engine.KVAuto,
	} {
		var o engine.OpenOptions
		CacheFlags{CacheTypeK: name, CacheTypeV: "f16"}.Apply(&o)
		if o.KVTypeK != id || o.KVTypeV != 1 {
			t.Errorf("%s: keys %d, values %d", name, o.KVTypeK, o.KVTypeV)
		}
		CacheFlags{CacheTypeK: "f16", CacheTypeV: name}.Apply(&o)
		if o.KVTypeK != 1 || o.KVTypeV != id {
			t.Errorf("values %s: keys %d, values %d", name, o.KVTypeK, o.KVTypeV)
		}
	}
}

// TestTypesChosenByMemory: automatic types are those that fit, what is registered has them by name, the contract is
// theirs, and an engine that is opened again has them too, although memory is free by then.
func TestTypesChosenByMemory(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		opener, opened := enginefake.New(enginefake.Options{Context: 4096}), 0
		o := engine.OpenOptions{ModelPath: "model", MaxSequences: 1, MaxContext: 4096}
		o.MemoryCapBytes = 1<<20 + 1<<10 + 48*4096 // F16 takes 64 bytes a position, Q8_0 32
		CacheFlags{CacheTypeK: "auto", CacheTypeV: "auto"}.Apply(&o)
		k := NewTargetKeeper(KeeperConfig[engine.Target]{Options: o, Open: func(
			ctx context.Context, o engine.OpenOptions, p engine.Progress) (engine.Target, error) {
			if opened++; opened > 1 {
				o.MemoryCapBytes = 0
			}
			return opener.OpenTarget(ctx, o, p)
		}})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- k.Run(ctx) }()
		for generation := range uint64(2) {
			e, _, err := k.Next(ctx, generation)
			if err != nil {
				t.Fatal(err)
			}
			info, asked := e.Info(), map[string]string{"cache-type-k": "auto", "cache-type-v": "auto", "lookup": "true"}
			Chosen(asked, info)
			if asked["cache-type-k"] != "q8_0" || asked["cache-type-v"] != "q8_0" || asked["lookup"] != "true" {
				t.Errorf("opened %d times: registered as %v", opened, asked)
			}
			f16 := info
			f16.KVTypeK, f16.KVTypeV = 1, 1
			if Contract("m", info, "") == Contract("m", f16, "") {
				t.Error("the contract does not tell the chosen types")
			}
			if generation == 0 {
				opener.Opened()[0].Crash()
				time.Sleep(time.Second)
			}
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
