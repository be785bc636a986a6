package workernode

import (
	"strings"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/gguf"
)

// CacheFlags are the types of an engine's cached keys and values.
type CacheFlags struct {
	CacheTypeK string `name:"cache-type-k" was:"kv-type-k" help:"Type of cached keys: f16, f32, q8_0, q4_0." enum:"f16,f32,q8_0,q4_0" default:"f16"`
	CacheTypeV string `name:"cache-type-v" was:"kv-type-v" help:"Type of cached values: f16, f32, q8_0, q4_0." enum:"f16,f32,q8_0,q4_0" default:"f16"`
}

// Apply sets the types in the options of an engine.
func (f CacheFlags) Apply(o *engine.OpenOptions) {
	o.KVTypeK, o.KVTypeV = cacheType(f.CacheTypeK), cacheType(f.CacheTypeV)
}

// cacheType is the id of a type that the flags take.
func cacheType(name string) int32 {
	t, _ := gguf.ParseType(strings.ToUpper(name))
	return int32(t)
}
