package pflash

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

var exampleScores = []float32{0, 0, 0, 0, .1, .9, .1, 0, 0, 0, 0, 0, .4, .4, .4, .4, 0, 0, .2, 0}

func TestWorkedExample(t *testing.T) {
	approx := cmpopts.EquateApprox(0, 1e-6)
	smoothed := Smooth(exampleScores, 3)
	want := []float32{0, 0, 0, .033333333, .33333333, .36666667, .33333333, .033333333, 0, 0, 0, .13333333,
		.26666667, .4, .4, .26666667,
		.13333333, .066666667, .066666667, .1}
	if d := cmp.Diff(want, smoothed, approx); d != "" {
		t.Error("smoothed:", d)
	}
	if d := cmp.Diff([]float32{.0083333333, .26666667, .033333333, .33333333, .091666667},
		ChunkMeans(smoothed, 4), approx); d != "" {
		t.Error("chunks:", d)
	}
	if d := cmp.Diff([]float32{0, .275, 0, .4, .05}, ChunkMeans(exampleScores, 4), approx); d != "" {
		t.Error("chunks of raw scores:", d)
	}
	// Quota floor(5*0.6) = 3: tail chunk 4 is forced (b = 2: head 0, tail 2 takes 3 and 4), then the best of the rest.
	got := Select(make([]int32, 20), exampleScores, Segment{Span: Span{0, 20}, KeepRatio: .6}, Span{},
		Options{Chunk: 4, Pool: 3})
	if d := cmp.Diff([]Span{{4, 8}, {12, 20}}, got); d != "" {
		t.Error("selected:", d)
	}
}

func TestQuotaAndEnds(t *testing.T) {
	for _, test := range []struct {
		tokens           int
		ratio            float32
		quota, head, end int
	}{
		{131072, .02, 81, 8, 24},
		{131072, .05, 204, 8, 24},
		{131072, .10, 409, 8, 24},
		{65536, .05, 102, 8, 24},
		{32768, .10, 102, 8, 24},
		{32768, .05, 51, 8, 24},
		{16384, .05, 25, 6, 18},
		{4096, .05, 6, 1, 4},
		{32, .05, 1, 0, 1},
	} {
		quota := Quota(test.tokens/32, test.ratio, 0)
		head, tail := Ends(quota)
		if quota != test.quota || head != test.head || tail != test.end {
			t.Errorf("%d tokens at %v: quota %d, ends %d+%d, want %d, %d+%d", test.tokens, test.ratio, quota, head, tail,
				test.quota, test.head, test.end)
		}
	}
	if q := Quota(10, .1, 4); q != 4 {
		t.Errorf("quota with a minimum = %d", q)
	}
	if q := Quota(3, .1, 4); q != 3 {
		t.Errorf("quota of a short segment = %d", q)
	}
}

func TestQueryRows(t *testing.T) {
	for _, test := range []struct {
		name  string
		query Span
		n     int
		want  []int32
	}{
		{"last user turn", Span{10, 40}, 8, []int32{32, 33, 34, 35, 36, 37, 38, 39}},
		{"end of prompt", Span{}, 3, []int32{97, 98, 99}},
		{"short turn", Span{10, 12}, 8, []int32{10, 11}},
	} {
		if d := cmp.Diff(test.want, QueryRows(100, test.query, test.n)); d != "" {
			t.Error(test.name, d)
		}
	}
}

func TestAnchors(t *testing.T) {
	// 64 chunks of 4 tokens with distinct tokens; the question at the end repeats the 4-gram of chunk 20.
	tokens := make([]int32, 256)
	for i := range tokens {
		tokens[i] = int32(1000 + i)
	}
	copy(tokens[250:], tokens[80:84])
	seg := Segment{Span: Span{0, 240}, KeepRatio: .05}
	scores := make([]float32, len(tokens))
	o := Options{Chunk: 4, Pool: 1}
	window := Span{248, 256}
	// Quota 3, ends 0+2; the anchor adds chunks 18..22 although the quota is exceeded.
	if d := cmp.Diff([]Span{{72, 92}, {232, 240}}, Select(tokens, scores, seg, window, o)); d != "" {
		t.Error(d)
	}
	// Nine occurrences are too common to be anchors: one score decides instead.
	for i := range 8 {
		copy(tokens[i*12:], tokens[250:254])
	}
	scores[130] = 1
	if d := cmp.Diff([]Span{{128, 132}, {232, 240}}, Select(tokens, scores, seg, window, o)); d != "" {
		t.Error(d)
	}
	// A question inside the segment does not find itself.
	own := Segment{Span: Span{100, 256}, KeepRatio: .05}
	if d := cmp.Diff([]Span{{252, 256}}, Select(tokens, make([]float32, 256), own, window, o)); d != "" {
		t.Error(d)
	}
}

// TestKeptShare: with random scores, and no words of the question in the text, the share of tokens that is kept is the
// ratio within 10 %.
func TestKeptShare(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{8192, 40_000, 131_072} {
		tokens, scores := make([]int32, n), make([]float32, n)
		for i := range tokens {
			tokens[i], scores[i] = int32(i), random.Float32() // no 4-gram occurs twice
		}
		for _, ratio := range []float32{.05, .1, .2, .35, .5, .9} {
			seg := Segment{Span: Span{0, n - 96}, KeepRatio: ratio}
			kept := 0
			for _, s := range Select(tokens, scores, seg, Span{n - 96, n}, Options{}) {
				kept += s.Len()
			}
			if share := float64(kept) / float64(seg.Span.Len()); math.Abs(share/float64(ratio)-1) > .1 {
				t.Errorf("%d tokens at %v: %.4f are kept", n, ratio, share)
			}
		}
	}
}

func TestInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 3000).Draw(t, "n")
		tokens := make([]int32, n)
		scores := make([]float32, n)
		seed := rapid.Uint32().Draw(t, "seed")
		for i := range tokens {
			seed = seed*1664525 + 1013904223
			tokens[i] = int32(seed>>8) % int32(rapid.IntRange(2, 50).Draw(t, "vocab"))
			scores[i] = float32(seed>>16) / 65536
			if seed%97 == 0 {
				scores[i] = float32(math.NaN())
			}
		}
		first := rapid.IntRange(0, n-1).Draw(t, "first")
		seg := Segment{Span: Span{first, rapid.IntRange(first+1, n).Draw(t, "last")}}
		seg.KeepRatio = float32(rapid.Float64Range(0.01, 1).Draw(t, "ratio"))
		spans := Select(tokens, scores, seg, Span{max(0, n-200), n}, Options{})
		end, kept := seg.Span.First, 0
		for i, s := range spans {
			if s.First < end || s.Last <= s.First || s.Last > seg.Span.Last || (i > 0 && s.First == end) {
				t.Fatalf("spans %v of %v", spans, seg.Span)
			}
			end = s.Last
			kept += (s.Len() + 31) / 32
		}
		if quota := Quota((seg.Span.Len()+31)/32, seg.KeepRatio, 0); kept < quota {
			t.Fatalf("%d chunks kept, quota %d", kept, quota)
		}
		if seg.KeepRatio == 1 && (len(spans) != 1 || spans[0] != seg.Span) {
			t.Fatalf("ratio 1 keeps %v of %v", spans, seg.Span)
		}
	})
}
