package workernode

import (
	"testing"

	"github.com/tandem-inference/tandem/services/engine"
)

func TestCacheFlags(t *testing.T) {
	for name, id := range map[string]int32{"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8} {
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
