package e2e

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/services/testwait"
	"github.com/tandem-inference/tandem/tests/client"
	"github.com/tandem-inference/tandem/tests/cluster"
)

// engineMemory is the memory of the engines of each worker program, in bytes; a program without an engine is left out.
func engineMemory(cl *cluster.Cluster) map[string]int64 {
	list := cl.Processes()
	programs := map[int]string{}
	for _, p := range list {
		programs[p.PID] = p.Name
	}
	memory := map[string]int64{}
	for _, p := range list {
		if p.Name != "tandem-engine" {
			continue
		}
		if sizes, err := cluster.SizesOf(p.PID); err == nil { // else it has ended
			memory[programs[p.Parent]] += sizes.RSSBytes
		}
	}
	return memory
}

// TestEnginesThatNobodyUses: after --park-after no engine process is left, but with --prefill-skip-park that of the
// scorer; their memory is free, and /cluster, /props and /metrics say so. The next request gets the same text from new
// engines and drafts again, and with --lazy-draft the draft has an engine only then.
func TestEnginesThatNobodyUses(t *testing.T) {
	for name, args := range map[string][]string{"all": nil, "keep the scorer": {"--prefill-skip-park"}} {
		t.Run(name, func(t *testing.T) {
			keeps := len(args) > 0
			args = append([]string{"--demo", "--park-after", "3s", "--lazy-draft"}, args...)
			if device != "" {
				args = append(args, "--device", device)
			}
			cl := start(t, args...)
			c := client.New(cl.HTTP)
			list := conversation()
			first := askCached(t, c, list, nil)
			var drafting map[string]int64 // while the draft has an engine
			testwait.Until(t, "the draft's engine opens and drafts", func() bool {
				drafted := askCached(t, c, list, nil).drafted > 0
				drafting = engineMemory(cl)
				return drafted && drafting["worker-draft"] > 0
			})
			const least = 5 << 20 // of an engine with the smallest of the models
			if drafting["worker-draft"] < least || drafting["worker-target"] < least {
				t.Errorf("engines in use take %v", drafting)
			}
			testwait.Until(t, "parked engines end", func() bool {
				m := engineMemory(cl)
				return m["worker-draft"] == 0 && m["worker-target"] == 0 && (m["worker-prefill"] == 0) == !keeps
			})
			if m := engineMemory(cl); keeps && m["worker-prefill"] < least {
				t.Errorf("the scorer's engine takes %d bytes", m["worker-prefill"])
			}
			parked := map[string]bool{"target": true, "draft": true, "scorer": !keeps}
			testwait.Until(t, "/cluster and /props say so", func() bool {
				return saysParked(t, c, "/cluster", parked) && saysParked(t, c, "/props", parked)
			})
			if again := askCached(t, c, list, nil); again.text != first.text || again.text == "" {
				t.Errorf("after parking: %q, before: %q", again.text, first.text)
			}
			if text := cl.Log(); strings.Contains(text, "failed") {
				t.Errorf("the log calls parking a failure:\n%s", text)
			}
		})
	}
}

// saysParked reports whether a page lists the workers of the given roles, all ready, as parked or not.
func saysParked(t *testing.T, c *client.Client, page string, parked map[string]bool) bool {
	t.Helper()
	raw, err := c.Get(t.Context(), page)
	if err != nil {
		t.Fatal(err)
	}
	type workers struct{ Workers []client.Worker }
	var v struct {
		workers
		Tandem workers
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatalf("%v: %s", err, raw)
	}
	list := append(v.Workers, v.Tandem.Workers...)
	for _, w := range list {
		want, known := parked[w.Role]
		if !known || w.State != "ready" || (w.Counters["engine_parked"] == 1) != want {
			return false
		}
	}
	return len(list) == len(parked)
}
