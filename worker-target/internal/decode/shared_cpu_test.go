package decode

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/worker-target/internal/auto"
	"github.com/tandem-inference/tandem/worker-target/internal/piece"
	"github.com/tandem-inference/tandem/worker-target/internal/prefix"
)

// BenchmarkIdleConversations measures the pool of the demonstration target that 32 idle conversations of 4096 tokens
// hold, and fails when they hold the pages of their common system text of 3072 tokens more than once. Run it with
// -benchtime 1x.
func BenchmarkIdleConversations(b *testing.B) {
	for b.Loop() {
		idleConversations(b)
	}
}

func idleConversations(b *testing.B) {
	b.Helper()
	const conversations, system, length = 32, 3072, 4096
	e, words := newCPU(b, engine.OpenOptions{
		MaxSequences: 16, MaxContext: length + 64, KVPositions: system + (conversations+1)*(length-system) + 8192,
	})
	info := e.Info()
	random := rand.New(rand.NewPCG(1, 2))
	markers := piece.MarkersOf(words)
	begin := conversation(words, system, system, random)[:system]
	cache := prefix.New(prefix.Config{Bytes: 1 << 40, Slots: 1024})
	cache.Use(e)
	defer cache.Close()
	slot := NewSlot(Config{Markers: markers, Prefixes: shared{cache, e}}, auto.New(), nil)
	for i := range conversations {
		rest := conversation(words, length-system-8, length-system-8, random)[:length-system-8]
		r := Request{
			Prompt: slices.Concat(begin, rest), Sampler: engine.DefaultSampler(), Max: 8, TopLogprobs: -1,
			Mode: tandemv1.SpeculationMode_SPECULATION_MODE_OFF, Arrived: time.Now(),
		}
		var stats Stats
		if _, err := slot.Run(b.Context(), e, &r, &discard{}, &stats); err != nil {
			b.Fatal(err)
		}
		// The border is after the message's end, before the newline that follows.
		if want := system - 1; i > 0 && stats.CachedTokens < want {
			b.Fatalf("conversation %d restored %d tokens, want at least the system text's %d", i, stats.CachedTokens, want)
		}
	}
	memory, err := e.Memory(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	stat := map[string]uint64{}
	for _, s := range memory {
		stat[s.Name] = s.Value
	}
	page := uint64(info.KVPage)
	used := stat["kv_pages"] - stat["kv_pages_free"]
	apart := conversations * (length/page + 1)
	// The tip of each state that is not at the end of a page is a page of its own.
	most := system/page + conversations*((length-system)/page) + uint64(cache.Stats().Entries)
	bytes := func(pages uint64) uint64 { return pages * page * info.KVBytesPerToken }
	b.ReportMetric(float64(cache.Stats().Entries), "states")
	b.ReportMetric(float64(bytes(used)), "KV-bytes")
	b.ReportMetric(float64(bytes(apart)), "KV-bytes-apart")
	if used == 0 || used > most || most > apart*2/3 {
		b.Errorf("%d pages are held, at most %d are needed", used, most)
	}
}
