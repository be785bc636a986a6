package workernode

import (
	"fmt"
	"strings"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/gguf"
)

// CacheFlags are types and room of an engine's cached keys and values.
type CacheFlags struct {
	CacheTypeK string `name:"cache-type-k" was:"kv-type-k" help:"Type of cached keys: f16, f32, q8_0, q4_0." enum:"f16,f32,q8_0,q4_0" default:"f16"`
	CacheTypeV string `name:"cache-type-v" was:"kv-type-v" help:"Type of cached values: f16, f32, q8_0, q4_0." enum:"f16,f32,q8_0,q4_0" default:"f16"`

	KVPositions int `name:"kv-positions" help:"Positions of keys and values for all requests together, 0 = --lanes times --max-ctx, as far as memory allows." default:"0"`
}

// Pool reports a number of positions that cannot work with a context of maxCtx.
func (f CacheFlags) Pool(maxCtx int) error {
	if f.KVPositions < 0 || f.KVPositions > 0 && f.KVPositions < maxCtx {
		return fmt.Errorf("--kv-positions: must be 0 or at least --max-ctx, %d, got %d", maxCtx, f.KVPositions)
	}
	return nil
}

// Apply sets types and room in the options of an engine.
func (f CacheFlags) Apply(o *engine.OpenOptions) {
	o.KVTypeK, o.KVTypeV = cacheType(f.CacheTypeK), cacheType(f.CacheTypeV)
	o.KVPositions = f.KVPositions
}

// cacheType is the id of a type that the flags take.
func cacheType(name string) int32 {
	t, _ := gguf.ParseType(strings.ToUpper(name))
	return int32(t)
}
