package generate

import (
	"errors"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

func TestLength(t *testing.T) {
	tests := []struct {
		name             string
		cfg              Config
		prompt, ctx      int
		max              int // -1 = not given
		n, clamped       int
		promptInTheError int // 0 = none
	}{
		{"default", Config{DefaultMaxTokens: 100}, 50, 1000, -1, 100, 0, 0},
		{"default meets the room", Config{DefaultMaxTokens: 100}, 950, 1000, -1, 50, 0, 0},
		{"given is not limited by the default", Config{DefaultMaxTokens: 100}, 50, 1000, 700, 700, 0, 0},
		{"given is clamped", Config{DefaultMaxTokens: 100}, 950, 1000, 700, 50, 50, 0},
		{"ceiling", Config{DefaultMaxTokens: 100, MaxTokensCeiling: 200}, 50, 1000, 700, 200, 0, 0},
		{"ceiling below the default", Config{DefaultMaxTokens: 100, MaxTokensCeiling: 20}, 50, 1000, -1, 20, 0, 0},
		{"strict", Config{DefaultMaxTokens: 100, StrictContext: true}, 950, 1000, 51, 0, 0, 950},
		{"strict fits", Config{DefaultMaxTokens: 100, StrictContext: true}, 950, 1000, 50, 50, 0, 0},
		{"less than 16 left", Config{DefaultMaxTokens: 100}, 985, 1000, -1, 0, 0, 985},
		{"less was asked for", Config{DefaultMaxTokens: 100}, 985, 1000, 15, 15, 0, 0},
		{"scoring a full context", Config{DefaultMaxTokens: 100}, 1000, 1000, 0, 0, 0, 0},
		{"prompt alone too long", Config{DefaultMaxTokens: 100}, 1001, 1000, 0, 0, 0, 1001},
		{"context unknown", Config{DefaultMaxTokens: 100}, 1 << 20, 0, 7, 7, 0, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := &run{g: New(tt.cfg, Deps{}), req: &Request{MaxTokens: tt.max, MaxTokensGiven: tt.max >= 0}}
			n, clamped, err := r.length(tt.prompt, tt.ctx)
			if n != tt.n || clamped != tt.clamped || (err != nil) != (tt.promptInTheError != 0) {
				t.Fatalf("n %d, clamped %d, %v; want %d, %d", n, clamped, err, tt.n, tt.clamped)
			}
			if err == nil {
				return
			}
			var size *reqerr.Length
			if !errors.Is(err, rpcerr.ContextLength) || !errors.As(err, &size) ||
				size.Prompt != tt.promptInTheError || size.Limit != tt.ctx {
				t.Errorf("error %+v", err)
			}
		})
	}
}
