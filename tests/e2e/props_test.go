package e2e

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/tandem-inference/tandem/tests/client"
	"github.com/tandem-inference/tandem/tests/cluster"
)

// TestPropsAgreeWithAcceptance: what /props says of speculation is what answers show, with a draft, with lookup alone
// and with neither.
func TestPropsAgreeWithAcceptance(t *testing.T) {
	needPrograms(t)
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(root, "models", "tandem-tiny-target-q4_k_m.gguf")
	for name, tt := range map[string]struct {
		args []string
		mode string
	}{
		"demonstration":  {[]string{"--demo"}, "dflash"},
		"without draft":  {[]string{target}, "lookup"},
		"without either": {[]string{target, "--no-lookup"}, "off"},
	} {
		t.Run(name, func(t *testing.T) {
			c := start(t, tt.args...)
			api := client.New(c.HTTP)
			type props struct {
				Mode        string `json:"speculative_mode"`
				Speculative struct {
					Enabled    bool
					Drafted    float64  `json:"drafted_tokens"`
					Accepted   float64  `json:"accepted_tokens"`
					AcceptRate *float64 `json:"accept_rate"`
				}
			}
			var got props
			var usage struct {
				Usage struct {
					AcceptRate *float64 `json:"accept_rate"`
					Timings    struct {
						Drafted float64 `json:"drafted_tokens"`
					}
				}
			}
			// What repeats itself is drafted by lookup too.
			text := "red green blue red green blue red green blue red green blue red green blue"
			body, err := api.Post(t.Context(), "/v1/completions", map[string]any{"prompt": text, "max_tokens": 48})
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(body, &usage); err != nil {
				t.Fatal(err)
			}
			drafted := usage.Usage.Timings.Drafted
			eventually(t, "the worker's next heartbeat", func() bool {
				body, err := api.Get(t.Context(), "/props")
				if err != nil {
					return false
				}
				got = props{}
				return json.Unmarshal(body, &got) == nil && got.Speculative.Drafted == drafted
			})
			if got.Mode != tt.mode || got.Speculative.Enabled != (tt.mode != "off") {
				t.Errorf("props %+v, want mode %s", got, tt.mode)
			}
			if (drafted > 0) && !got.Speculative.Enabled || (tt.mode == "off") != (drafted == 0) {
				t.Errorf("%v tokens were drafted while props say %+v", drafted, got)
			}
			if a, b := got.Speculative.AcceptRate, usage.Usage.AcceptRate; (a == nil) != (b == nil) ||
				a != nil && (*a-*b > 1e-3 || *b-*a > 1e-3) {
				t.Errorf("accept rate %v in props, %v in the answer", got.Speculative, usage.Usage)
			}
		})
	}
}
