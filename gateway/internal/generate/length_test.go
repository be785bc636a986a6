package generate

import (
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/apierror"
)

func TestLength(t *testing.T) {
	tests := []struct {
		name             string
		cfg              Config
		prompt, ctx      int
		max              int // -1 = not given
		n, clamped       int
		code             string
		promptInTheError int
	}{
		{"default", Config{DefaultMaxTokens: 100}, 50, 1000, -1, 100, 0, "", 0},
		{"default meets the room", Config{DefaultMaxTokens: 100}, 950, 1000, -1, 50, 0, "", 0},
		{"given is not limited by the default", Config{DefaultMaxTokens: 100}, 50, 1000, 700, 700, 0, "", 0},
		{"given is clamped", Config{DefaultMaxTokens: 100}, 950, 1000, 700, 50, 50, "", 0},
		{"ceiling", Config{DefaultMaxTokens: 100, MaxTokensCeiling: 200}, 50, 1000, 700, 200, 0, "", 0},
		{"strict", Config{DefaultMaxTokens: 100, StrictContext: true}, 950, 1000, 51, 0, 0, "context_length_exceeded", 950},
		{"strict fits", Config{DefaultMaxTokens: 100, StrictContext: true}, 950, 1000, 50, 50, 0, "", 0},
		{"less than 16 left", Config{DefaultMaxTokens: 100}, 985, 1000, -1, 0, 0, "context_length_exceeded", 985},
		{"less was asked for", Config{DefaultMaxTokens: 100}, 985, 1000, 15, 15, 0, "", 0},
		{"scoring a full context", Config{DefaultMaxTokens: 100}, 1000, 1000, 0, 0, 0, "", 0},
		{"prompt alone too long", Config{DefaultMaxTokens: 100}, 1001, 1000, 0, 0, 0, "context_length_exceeded", 1001},
		{"context unknown", Config{DefaultMaxTokens: 100}, 1 << 20, 0, 7, 7, 0, "", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := &run{g: New(tt.cfg, Deps{}), req: &Request{MaxTokens: tt.max, MaxTokensGiven: tt.max >= 0}}
			n, clamped, err := r.length(tt.prompt, tt.ctx)
			if n != tt.n || clamped != tt.clamped || (err != nil) != (tt.code != "") {
				t.Fatalf("n %d, clamped %d, %v; want %d, %d, %q", n, clamped, err, tt.n, tt.clamped, tt.code)
			}
			if e := apierror.From(err); e != nil && (e.Code != tt.code || e.PromptTokens != tt.promptInTheError || e.MaxContext != tt.ctx) {
				t.Errorf("error %+v", e)
			}
		})
	}
}
