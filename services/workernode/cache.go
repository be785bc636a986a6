package workernode

import "github.com/tandem-inference/tandem/services/engineplugin"

// CacheFlags are the types of an engine's cached keys and values.
type CacheFlags struct {
	KvTypeK string `help:"Type of cached keys: f16, f32, q8_0 or q4_0." enum:"f16,f32,q8_0,q4_0" default:"f16"`
	KvTypeV string `help:"Type of cached values: f16, f32, q8_0 or q4_0." enum:"f16,f32,q8_0,q4_0" default:"f16"`
}

// Apply sets the types in the options of an engine.
func (f CacheFlags) Apply(o *engineplugin.OpenOptions) {
	ids := map[string]int32{"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8} // ggml's
	o.KVTypeK, o.KVTypeV = ids[f.KvTypeK], ids[f.KvTypeV]
}
