package modelcard

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/tandem-inference/tandem/services/gguf"
)

func p(n int) *int { return &n }

func card(t *testing.T, name string) *Found {
	t.Helper()
	f, err := Lookup(name, nil)
	if err != nil || f == nil {
		t.Fatal(f, err)
	}
	return f
}

func TestResolve(t *testing.T) {
	tests := []struct {
		name  string
		card  string
		arch  string
		flags Overrides
		ctx   int
		want  Envelope
		notes int
	}{
		{"card", "Qwen3.6 27B", "qwen35", Overrides{}, 131072,
			Envelope{Source: "built-in/qwen3.6-27b.json", MaxTokens: 32768, ReplyBudget: 4096, ThinkMax: 28672,
				Tiers: [5]int{4032, 16128, 32256, 56832, 81408}}, 0},
		{"derived tiers", "Gemma 4 31B IT", "gemma4", Overrides{}, 0,
			Envelope{Source: "built-in/gemma-4-31b-it.json", MaxTokens: 16384, ReplyBudget: 4096, ThinkMax: 12288,
				Tiers: [5]int{1536, 6144, 12288, 12288, 12288}}, 0},
		{"reply as large as the output", "Laguna-XS.2", "laguna", Overrides{}, 0,
			Envelope{Source: "built-in/laguna-xs.2.json", MaxTokens: 4096, ReplyBudget: 1024, ThinkMax: 3072,
				Tiers: [5]int{384, 1536, 3072, 3072, 3072}}, 1},
		{"family", "", "qwen35", Overrides{}, 0,
			Envelope{Source: "family:qwen35", MaxTokens: 32768, ReplyBudget: 4096, ThinkMax: 28672,
				Tiers: [5]int{3584, 14336, 28672, 28672, 28672}}, 0},
		{"fallback", "", "llama", Overrides{}, 0,
			Envelope{Source: "hard-fallback", MaxTokens: 16000, ReplyBudget: 4096, ThinkMax: 11904,
				Tiers: [5]int{1488, 5952, 11904, 11904, 11904}}, 0},
		{"small context", "Qwen3.6 27B", "qwen35", Overrides{}, 32768,
			Envelope{Source: "built-in/qwen3.6-27b.json", MaxTokens: 32768, ReplyBudget: 4096, ThinkMax: 28672,
				Tiers: [5]int{4032, 16128, 28672, 28672, 28672}}, 3},
		{"flags", "Qwen3.6 27B", "qwen35",
			Overrides{MaxTokens: p(8000), ThinkMax: p(1000), ReplyBudget: p(500),
				Tiers: [5]*int{p(900), p(100), nil, nil, p(2000)}}, 0,
			Envelope{Source: "built-in/qwen3.6-27b.json", MaxTokens: 8000, ReplyBudget: 500, ThinkMax: 1000, ThinkMaxGiven: true,
				Tiers: [5]int{900, 900, 32256, 56832, 56832}}, 2},
		{"no forced closing", "", "llama", Overrides{ReplyBudget: p(0)}, 0,
			Envelope{Source: "hard-fallback", MaxTokens: 16000, ThinkMax: 16000, Tiers: [5]int{2000, 8000, 16000, 16000, 16000}},
			0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var f *Found
			if tt.card != "" {
				f = card(t, tt.card)
			}
			got, notes := Resolve(f, tt.arch, tt.flags, tt.ctx)
			got.Card = nil
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
			if len(notes) != tt.notes {
				t.Errorf("notes %q, want %d", notes, tt.notes)
			}
		})
	}
}

// TestBudget holds the worked figures of docs/spec/http-api.md appendix B (Qwen3.6 27B card, context 131072).
func TestBudget(t *testing.T) {
	const ctx = 131072
	e, _ := Resolve(card(t, "Qwen3.6 27B"), "qwen35", Overrides{}, ctx)
	tests := []struct {
		name       string
		settings   Settings
		max        int // 0 = not given
		prompt     int
		n, r, k    int
		noThinking bool
	}{
		{"effort medium", Settings{Effort: "medium"}, 0, 2000, 32768, 4096, 16128, false},
		{"effort max", Settings{Effort: "max"}, 0, 2000, 85504, 4096, 81408, false},
		{"effort max in 20000", Settings{Effort: "max"}, 20000, 2000, 20000, 4096, 15904, false},
		{"numbers", Settings{Budget: 4000, ReplyBudget: p(300)}, 16000, 2000, 16000, 300, 4000, false},
		{"small output", Settings{Effort: "low"}, 2000, 2000, 2000, 500, 1500, false},
		{"long prompt", Settings{Effort: "high"}, 0, 120000, 11072, 4096, 6976, false},
		{"the number wins over the effort", Settings{Effort: "low", Budget: 9000}, 0, 2000, 32768, 4096, 9000, false},
		{"a number beyond the largest tier", Settings{Budget: 1 << 20}, 0, 2000, 85504, 4096, 81408, false},
		{"no effort is high", Settings{}, 0, 2000, 36352, 4096, 32256, false},
		{"unknown effort is high", Settings{Effort: "colossal"}, 0, 2000, 36352, 4096, 32256, false},
		{"minimal is low", Settings{Effort: "minimal"}, 0, 2000, 32768, 4096, 4032, false},
		{"xhigh", Settings{Effort: "xhigh"}, 0, 2000, 60928, 4096, 56832, false},
		{"a reply budget cannot raise the server's", Settings{Effort: "low", ReplyBudget: p(9999)}, 0, 2000,
			32768, 4096, 4032, false},
		{"reply budget 0", Settings{Effort: "high", ReplyBudget: p(0)}, 0, 2000, 36352, 0, 32256, false},
		{"off", Settings{}, 500, 2000, 500, 0, 0, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n := tt.max
			if n == 0 {
				n = e.DefaultMaxTokens(!tt.noThinking, tt.settings)
			}
			n = min(n, ctx-tt.prompt)
			if n != tt.n {
				t.Errorf("N = %d, want %d", n, tt.n)
			}
			if tt.noThinking {
				return
			}
			if b := e.Budget(n, tt.settings); b.Think != tt.k || b.Reserve != tt.r {
				t.Errorf("K = %d, R = %d, want %d, %d", b.Think, b.Reserve, tt.k, tt.r)
			}
		})
	}
	given, _ := Resolve(card(t, "Qwen3.6 27B"), "qwen35", Overrides{ThinkMax: p(5000)}, ctx)
	if b := given.Budget(30000, Settings{Budget: 9000}); b.Think != 5000 {
		t.Errorf("an explicit think_max does not bind the request: K = %d", b.Think)
	}
}

// TestBudgetProperties: whatever is asked for, reasoning and reserve fit into the output, and a reply is possible when
// closing can be forced.
func TestBudgetProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := Overrides{}
		if rapid.Bool().Draw(t, "flags") {
			o = Overrides{MaxTokens: p(rapid.IntRange(1, 40000).Draw(t, "max")),
				ReplyBudget: p(rapid.IntRange(0, 9000).Draw(t, "reply"))}
		}
		e, _ := Resolve(nil, rapid.SampledFrom([]string{"qwen35", "llama", "laguna"}).Draw(t, "arch"), o,
			rapid.IntRange(0, 50000).Draw(t, "ctx"))
		for i := 1; i < len(e.Tiers); i++ {
			if e.Tiers[i] < e.Tiers[i-1] {
				t.Fatalf("tiers descend: %v", e.Tiers)
			}
		}
		w := Settings{Budget: rapid.IntRange(0, 50000).Draw(t, "budget"),
			Effort: rapid.SampledFrom(append([]string{""}, Efforts[:]...)).Draw(t, "effort")}
		n := rapid.IntRange(1, 50000).Draw(t, "n")
		b := e.Budget(n, w)
		if b.Think < 0 || b.Reserve < 0 || b.Think+b.Reserve > n {
			t.Fatalf("K = %d, R = %d of N = %d", b.Think, b.Reserve, n)
		}
		if e.ReplyBudget > 0 && n >= 4 && b.Reserve == 0 {
			t.Fatalf("no reserve of N = %d with a reply budget of %d", n, e.ReplyBudget)
		}
	})
}

// TestFamiliesThatRun: every family is of an architecture that engines run, or waits for its engine and is listed here.
func TestFamiliesThatRun(t *testing.T) {
	waiting := []string{"gemma4", "laguna", "qwen35moe"}
	for name := range families {
		if gguf.RunsTarget(name) == slices.Contains(waiting, name) {
			t.Errorf("%s: engines run it: %v, among those that wait: %v", name, gguf.RunsTarget(name),
				slices.Contains(waiting, name))
		}
	}
	for _, name := range waiting {
		if _, ok := families[name]; !ok {
			t.Errorf("%s waits for an engine and has no limits", name)
		}
	}
}
