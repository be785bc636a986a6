package e2e

import (
	"crypto/rand"
	"encoding/json"
	mathrand "math/rand/v2"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/services/testwait"
	"github.com/tandem-inference/tandem/tests/client"
	"github.com/tandem-inference/tandem/tests/cluster"
)

// conversation is one that nobody else has: system text and a question of about 1200 tokens together.
func conversation() []any {
	system := "Session " + rand.Text() + ". " +
		strings.Repeat("You answer questions about the Go language. Be brief and exact. ", 70)
	return []any{
		map[string]any{"role": "system", "content": system},
		map[string]any{"role": "user", "content": "What is a goroutine? " + strings.Repeat("Think of channels, too. ", 20)},
	}
}

// next adds an answer and the question after it.
func next(list []any, answer string) []any {
	return append(list, map[string]any{"role": "assistant", "content": answer},
		map[string]any{"role": "user", "content": "And what is a channel?"})
}

// keeping starts a cluster of the test's own that keeps states in a folder.
func keeping(t *testing.T, dir string) (*cluster.Cluster, *client.Client) {
	t.Helper()
	args := []string{"--demo", "--kv-cache-dir", dir}
	if device != "" {
		args = append(args, "--device", device)
	}
	cl := start(t, args...)
	return cl, client.New(cl.HTTP)
}

// TestStatesOutliveARestart: the first request after a restart starts from what is on disk, drafts in its first round
// and has the text of a prompt that is read whole.
func TestStatesOutliveARestart(t *testing.T) {
	dir := t.TempDir()
	cl, c := keeping(t, dir)
	list := conversation()
	list = next(list, askCached(t, c, list, nil).text)
	if err := cl.Stop(t.Context()); err != nil { // what waits to be written is written
		t.Fatal(err)
	}
	_, c = keeping(t, dir)
	hit := askCached(t, c, list, nil)
	cold := askCached(t, c, list, map[string]any{"cache_prompt": false})
	t.Logf("%d of %d tokens from disk, first token in %.0f ms, cold %.0f ms", hit.cached, hit.prompt, hit.firstMS, cold.firstMS)
	if hit.cached < hit.prompt-150 || cold.cached != 0 || hit.drafted == 0 || hit.text == "" || hit.text != cold.text {
		t.Errorf("%+v, cold %+v", hit, cold)
	}
	var props struct {
		Cache struct {
			Disk struct {
				Hits    int `json:"lifetime_hits"`
				Damaged int `json:"lifetime_damaged"`
				States  int
			}
		} `json:"prefix_cache"`
	}
	testwait.Until(t, "/props shows the hit", func() bool {
		raw, err := c.Get(t.Context(), "/props")
		return err == nil && json.Unmarshal(raw, &props) == nil && props.Cache.Disk.Hits > 0
	})
	if d := props.Cache.Disk; d.Damaged != 0 || d.States == 0 {
		t.Errorf("%+v", d)
	}
}

// TestKilledWhileWriting kills the target at any moment of its writing states, again and again: it comes back, answers
// as a cold run does, and finds states that were written whole. TANDEM_TEST_DISK_KILLS says how often, else three
// times.
func TestKilledWhileWriting(t *testing.T) {
	times, err := strconv.Atoi(os.Getenv("TANDEM_TEST_DISK_KILLS"))
	if err != nil {
		times = 3
	}
	cl, c := keeping(t, t.TempDir())
	hits, asked := 0, 0
	compare := func(what string, list []any) {
		asked++
		got := askCached(t, c, list, nil)
		cold := askCached(t, c, list, map[string]any{"cache_prompt": false})
		if got.text == "" || got.text != cold.text || cold.cached != 0 {
			t.Errorf("%s after a kill %+v, cold %+v", what, got, cold)
		}
		if got.cached > 0 {
			hits++
		}
	}
	var before []any
	for range times {
		list := conversation()
		list = next(list, askCached(t, c, list, nil).text)               // its states are being written
		time.Sleep(time.Duration(mathrand.IntN(150)) * time.Millisecond) // a part of them, by now
		if err := syscall.Kill(cl.Find("worker-target"), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		compare("the next turn", list)
		if before != nil {
			compare("an older conversation", before)
		}
		before = list
	}
	t.Logf("%d kills, %d of %d answers from states on disk", times, hits, asked)
	if hits == 0 {
		t.Error("no state outlived a kill")
	}
}
