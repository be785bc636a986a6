package workernode

import (
	"fmt"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/kvtype"
)

// CacheFlags are types and room of an engine's cached keys and values.
type CacheFlags struct {
	CacheTypeK string `name:"cache-type-k" was:"kv-type-k" help:"Type of cached keys: ${kv_choices}; auto = the first of f16, q8_0, q5_1, q5_0, q4_1, q4_0, tq3_0 with which --max-ctx or --kv-positions fits, without these f16 or q8_0." enum:"${kv_choices}" default:"f16"`
	CacheTypeV string `name:"cache-type-v" was:"kv-type-v" help:"Type of cached values: ${kv_choices}; auto as for --cache-type-k." enum:"${kv_choices}" default:"f16"`

	KVPositions int `name:"kv-positions" help:"Positions of keys and values for all requests together, 0 = --lanes times --max-ctx, of automatic lanes at most 4 times, as far as memory allows." default:"0"`
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

// Chosen puts the types that an engine opened with into settings, by the flags of their names.
func Chosen(settings map[string]string, info engine.Info) {
	settings["cache-type-k"], settings["cache-type-v"] = kvtype.Name(info.KVTypeK), kvtype.Name(info.KVTypeV)
}

// cacheType is the id of a type that the flags take.
func cacheType(name string) int32 {
	if name == kvtype.Auto {
		return engine.KVAuto
	}
	t, err := kvtype.Parse(name)
	if err != nil {
		return engine.KVDefault // flags that were not parsed
	}
	return t.ID
}
