package e2e

import (
	"testing"
	"time"

	"github.com/tandem-inference/tandem/services/testwait"
	"github.com/tandem-inference/tandem/tests/client"
)

// TestEnginesThatNobodyUses: after --park-after no engine process is left, the next request gets the same text from new
// ones and drafts again, and with --lazy-draft the draft has an engine only then.
func TestEnginesThatNobodyUses(t *testing.T) {
	args := []string{"--demo", "--park-after", "3s", "--lazy-draft", "--prefill-skip-park"}
	if device != "" {
		args = append(args, "--device", device)
	}
	cl := start(t, args...)
	c := client.New(cl.HTTP)
	engines := func() int {
		n := 0
		for _, p := range cl.Processes() {
			if p.Name == "tandem-engine" {
				n++
			}
		}
		return n
	}
	list := conversation()
	first := askCached(t, c, list, nil)
	testwait.Until(t, "the draft's engine opens and drafts", func() bool {
		return askCached(t, c, list, nil).drafted > 0
	})
	time.Sleep(3 * time.Second)
	testwait.Until(t, "only the scorer has an engine", func() bool { return engines() == 1 })
	if again := askCached(t, c, list, nil); again.text != first.text || again.text == "" {
		t.Errorf("after parking: %q, before: %q", again.text, first.text)
	}
}
