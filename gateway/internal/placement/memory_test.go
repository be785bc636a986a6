package placement

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/host"
)

func described(t *testing.T, name string) *Model {
	t.Helper()
	m, err := ReadModel(filepath.Join("testdata", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// fileBytes are the bytes of all tensors.
func fileBytes(m *Model) (n int64) {
	for _, l := range m.Layers {
		n += l.Read
	}
	return n + m.Embedding.Read + m.Head.Read
}

// TestShapesHaveTheSizesOfFiles compares descriptions with docs/spec/gguf.md §6, dflash.md §2.5 and kv-cache.md §4.
func TestShapesHaveTheSizesOfFiles(t *testing.T) {
	target, draft := described(t, "qwen-27b-q4_k_m"), described(t, "dflash-27b-q8_0")
	if got, want := fileBytes(target)+target.Ends, int64(16_729_819_136); got != want {
		t.Errorf("target: %d bytes of tensors, want %d", got, want)
	}
	if got, want := fileBytes(draft)+draft.Draft.Fuse.Read+draft.Ends, int64(1_838_535_680); got != want {
		t.Errorf("draft: %d bytes of tensors, want %d", got, want)
	}
	m := target.TargetMemory(0, 64, Room{Context: 262144, Lanes: 1, KV: "tq3_0", Threads: 1}, nil, false)
	if m.Weights != 17_117_034_496 {
		t.Errorf("weights take %d bytes, the engine plans 17117034496", m.Weights)
	}
	if m.State != 156_893_184 || m.Replay != 81_607_680/23*treeRows {
		t.Errorf("states take %d, replay %d", m.State, m.Replay)
	}
	if want := 3_759_013_888.0; math.Abs(float64(m.KV)/want-1) > 0.001 {
		t.Errorf("keys and values take %d bytes, the engine plans %.0f", m.KV, want)
	}
	// native/SPEED.md: the target on a card with 32K in q8_0 18,592 MB, with the draft 23,374 MB.
	room := Room{Context: 32768 + 64, Lanes: 1, KV: "q8_0"}
	card := target.TargetMemory(0, 64, room, draft, true)
	if total := float64(card.Total()) / 1e6; total < 18592 || total > 19700 {
		t.Errorf("on a card the target takes %.0f MB, the engine plans 18592 and the driver takes some", total)
	}
	both := float64(card.Total()+draft.DraftMemory(target, room, true).Total()) / 1e6
	if both < 23374 || both > 25000 {
		t.Errorf("on a card target and draft take %.0f MB, the engines plan 23374 and the driver takes some", both)
	}
}

var (
	plannedPart   = regexp.MustCompile(`(\w+)_bytes (\d+)`)
	plannedScorer = regexp.MustCompile(`needs (\d+) bytes \(weights (\d+), K/V of one layer (\d+), scratch (\d+)\)`)
)

// TestMemoryIsWhatEnginesPlan opens the demonstration models within one byte: the refusal names the parts of the plan.
func TestMemoryIsWhatEnginesPlan(t *testing.T) {
	root := filepath.Join("..", "..", "..")
	program := filepath.Join(root, "bin", "tandem-engine")
	if _, err := os.Stat(program); err != nil {
		t.Skipf("build the programs first: %v", err)
	}
	h, err := host.NewHost(host.HostConfig{Program: program})
	if err != nil {
		t.Fatal(err)
	}
	in := func(name string) string { return filepath.Join(root, "models", name) }
	read := func(name string) *Model {
		m, err := ReadModel(in(name))
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	const targetFile, draftFile, scorerFile = "tandem-tiny-target-q4_k_m.gguf", "tandem-tiny-draft-q8_0.gguf",
		"tandem-tiny-prefill-q8_0.gguf"
	target, draft, scorer := read(targetFile), read(draftFile), read(scorerFile)
	options := func(path string, r Room) engine.OpenOptions {
		o := engine.OpenOptions{ModelPath: in(path), Device: "cpu", MemoryCapBytes: 1, Threads: int(r.Threads),
			MaxSequences: int(r.Lanes), MaxContext: int(r.Context), KVTypeK: 1, KVTypeV: 1}
		if r.KV == "q8_0" {
			o.KVTypeK, o.KVTypeV = 8, 8
		}
		return o
	}
	compare := func(what string, err error, want Memory) {
		t.Helper()
		if err == nil {
			t.Fatalf("%s: opened within one byte", what)
		}
		parts := map[string]int64{}
		for _, m := range plannedPart.FindAllStringSubmatch(err.Error(), -1) {
			parts[m[1]], _ = strconv.ParseInt(m[2], 10, 64)
		}
		if m := plannedScorer.FindStringSubmatch(err.Error()); m != nil {
			for i, name := range []string{"weights", "kv", "scratch"} {
				parts[name], _ = strconv.ParseInt(m[i+2], 10, 64)
			}
		}
		for _, p := range []struct {
			name string
			want int64
		}{{"weights", want.Weights}, {"kv", want.KV}, {"state", want.State}, {"replay", want.Replay}} {
			if parts[p.name] != p.want {
				t.Errorf("%s: the engine plans %d %s_bytes, the formula %d", what, parts[p.name], p.name, p.want)
			}
		}
		if ratio := float64(want.Scratch) / float64(parts["scratch"]); ratio < 0.97 || ratio > 1.03 {
			t.Errorf("%s: the engine plans %d scratch_bytes, the formula %d", what, parts["scratch"], want.Scratch)
		}
	}
	n := len(target.Layers)
	for _, r := range []Room{{Context: 4096, Lanes: 1, KV: "f16", Threads: 2},
		{Context: 1000, Lanes: 5, KV: "q8_0", Threads: 1}} {
		for _, layers := range [][2]int{{0, n}, {0, n / 2}, {n / 2, n}, {2, 5}} {
			o := options(targetFile, r)
			o.LayerFirst, o.LayerLast = layers[0], layers[1]
			_, err := h.OpenTarget(context.Background(), o, nil)
			compare("target", err, target.TargetMemory(layers[0], layers[1], r, nil, false))
		}
		o := options(draftFile, r)
		o.TablesPath = in(targetFile)
		_, err := h.OpenDraft(context.Background(), o, nil)
		compare("draft", err, draft.DraftMemory(target, r, false))
	}
	o := options(scorerFile, Room{Threads: 2})
	_, err = h.OpenScorer(context.Background(), o, nil)
	want := scorer.ScorerMemory(Room{Threads: 2}, false)
	const float16 = 2
	if m := plannedScorer.FindStringSubmatch(err.Error()); m != nil && m[2] != strconv.FormatInt(want.KV, 10) {
		// A processor with AVX512-BF16 keeps int8 keys, each with a scale and a sum, and bf16 values: ScoreKv::bytes.
		want.KV = want.KV / (2 * scorer.HeadDim * float16) * (scorer.HeadDim*3 + 8)
	}
	compare("scorer", err, want)
}
