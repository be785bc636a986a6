package e2e

import (
	"fmt"
	"sync"
	"testing"

	"github.com/tandem-inference/tandem/tests/client"
)

// TestAutomaticSlots: target and draft have 32 slots by themselves, and as many requests at a time get the texts that
// they get alone.
func TestAutomaticSlots(t *testing.T) {
	const requests = 32
	_, c := demo(t, "--max-ctx", "1024")
	lanes := func(role string) (n int) {
		workers, err := c.Workers(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range workers {
			if w.Role == role {
				n = w.Lanes
			}
		}
		return n
	}
	for _, role := range []string{"target", "draft"} {
		eventually(t, role+" has 32 slots", func() bool { return lanes(role) == requests })
	}
	ask := func(i int) client.Request {
		return client.Request{Messages: chat(fmt.Sprintf("Question %d: What is DDTree?", i)), MaxTokens: 24}
	}
	var want, got [requests]string
	var failed [requests]error
	for i := range requests {
		reply, err := c.Do(t.Context(), ask(i))
		if err != nil {
			t.Fatal(err)
		}
		want[i] = reply.Text
	}
	var group sync.WaitGroup
	for i := range requests {
		group.Go(func() {
			reply, err := c.Do(t.Context(), ask(i))
			got[i], failed[i] = reply.Text, err
		})
	}
	group.Wait()
	for i := range requests {
		if failed[i] != nil || got[i] != want[i] {
			t.Errorf("%d: %q (%v), alone %q", i, got[i], failed[i], want[i])
		}
	}
}
