package decode

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/host"
	"github.com/tandem-inference/tandem/services/gguf"
	"github.com/tandem-inference/tandem/services/tokenizer"
	"github.com/tandem-inference/tandem/worker-target/internal/auto"
	"github.com/tandem-inference/tandem/worker-target/internal/piece"
)

// demonstration is the target that ships with the project.
const demonstration = "../../../models/tandem-tiny-target-q4_k_m.gguf"

// newCPU opens the demonstration target on the CPU library in a process of its own, or skips.
func newCPU(t testing.TB, o engine.OpenOptions) (*engine.GuardedTarget, *tokenizer.Tokenizer) {
	t.Helper()
	library, err := filepath.Abs("../../../bin/libtandem_cpu.so")
	if err != nil {
		t.Fatal(err)
	}
	e := newNative(t, library, demonstration, o)
	file, err := gguf.Open(demonstration)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	words, err := tokenizer.FromGGUF(file)
	if err != nil {
		t.Fatal(err)
	}
	return e, words
}

// newNative opens a model on a library in a process of its own, or skips.
func newNative(t testing.TB, library, model string, o engine.OpenOptions) *engine.GuardedTarget {
	t.Helper()
	return openNative(t, processOf(t, library).OpenTarget, model, o)
}

// processOf opens engines on a library in processes of their own, or skips the test.
func processOf(t testing.TB, library string) *host.Host {
	t.Helper()
	program, err := filepath.Abs("../../../bin/tandem-engine")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{program, library} {
		if _, err := os.Stat(f); err != nil {
			t.Skipf("needs %s: make build", f)
		}
	}
	h, err := host.NewHost(host.HostConfig{Program: program, Library: library, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func openNative(t testing.TB, open engine.Open[engine.Target], model string,
	o engine.OpenOptions) *engine.GuardedTarget {
	t.Helper()
	o.ModelPath, o.KVTypeK, o.KVTypeV = model, engine.KVDefault, engine.KVDefault
	e, err := open(t.Context(), o, nil)
	if err != nil {
		t.Fatal(err)
	}
	g := engine.GuardTarget(e, engine.GuardConfig{})
	t.Cleanup(func() { _ = g.Close() })
	return g
}

// conversation is a prompt of at least so many tokens in messages of so many.
func conversation(words *tokenizer.Tokenizer, tokens, message int, random *rand.Rand) []int32 {
	var list []int32
	for i := 0; len(list) < tokens; i++ {
		begin := words.Encode(fmt.Sprintf("<|im_start|>%s\n", []string{"user", "assistant"}[i%2]),
			tokenizer.Options{ParseSpecial: true})
		end := words.Encode("<|im_end|>\n", tokenizer.Options{ParseSpecial: true})
		list = append(list, begin...)
		for range message - len(begin) - len(end) {
			list = append(list, int32(300+random.IntN(7000)))
		}
		list = append(list, end...)
	}
	return list
}

// BenchmarkColdPrompt reads prompts of 4096 tokens in messages of several lengths: with borders after messages and, as
// none, with the grid alone.
func BenchmarkColdPrompt(b *testing.B) {
	e, words := newCPU(b, engine.OpenOptions{MaxSequences: 1, MaxContext: 8192})
	for _, message := range []int{64, 96, 128, 192, 256, 400} {
		prompt := conversation(words, 4096, message, rand.New(rand.NewPCG(1, 2)))
		for name, markers := range map[string]piece.Markers{"borders": piece.MarkersOf(words), "none": {}} {
			b.Run(fmt.Sprintf("message=%d/%s", message, name), func(b *testing.B) {
				slot := NewSlot(Config{Markers: markers}, auto.New(), nil)
				for b.Loop() {
					var stats Stats
					if _, err := slot.Run(b.Context(), e, &Request{
						Prompt: prompt, Sampler: engine.DefaultSampler(), Max: 1, TopLogprobs: -1, Arrived: time.Now(),
						Mode: tandemv1.SpeculationMode_SPECULATION_MODE_OFF,
					}, &discard{}, &stats); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(b.N*len(prompt))/b.Elapsed().Seconds(), "tokens/s")
			})
		}
	}
}
