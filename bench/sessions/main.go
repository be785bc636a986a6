// Command sessions measures what the prefix cache saves: the second turn of a long conversation, also after a restart
// from states on disk, with what was read ahead, and on another worker, and the prompts of an agent whose history grows
// from turn to turn.
//
//	go run ./bench/sessions [-rounds 3] [-turns 16] [-out build/sessions.json]
package main

import (
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-inference/tandem/bench/report"
	"github.com/tandem-inference/tandem/tests/client"
	"github.com/tandem-inference/tandem/tests/cluster"
)

// Aims of the measurements.
const (
	mostShare = 0.05 // of the second turn's first token in the time of a cold one
	mostDisk  = 0.12 // the same after a restart
	mostAhead = 0.03 // the same after a pause in which the conversation was read ahead
	mostRead  = 1.1  // prompt tokens read for a new one
	// the same on another worker, which fetches the state from the first
	mostFetched = 0.2
)

func main() {
	rounds := flag.Int("rounds", 3, "conversations of two turns")
	turns := flag.Int("turns", 16, "turns of the agent")
	out := flag.String("out", filepath.Join("build", "sessions.json"), "file of results")
	flag.Parse()
	if err := run(context.Background(), *rounds, *turns, *out); err != nil {
		report.Exit(err)
	}
}

// results are what the file holds.
type results struct {
	Machine string `json:"machine"`
	// Second are the second turns.
	Second []second `json:"second_turn"`
	// Share is the median of theirs.
	Share float64 `json:"second_turn_share"`
	// Restarted are second turns that a restarted cluster serves from disk.
	Restarted      []second `json:"second_turn_after_restart"`
	RestartedShare float64  `json:"second_turn_after_restart_share"`
	// Paused are second turns after a pause, with and without reading ahead.
	Ahead       []second `json:"second_turn_read_ahead"`
	AheadShare  float64  `json:"second_turn_read_ahead_share"`
	Paused      []second `json:"second_turn_not_read_ahead"`
	PausedShare float64  `json:"second_turn_not_read_ahead_share"`
	// Elsewhere are second turns on another worker, which fetches the state, and on one that does not.
	Elsewhere      []second `json:"second_turn_fetched"`
	ElsewhereShare float64  `json:"second_turn_fetched_share"`
	Unfetched      []second `json:"second_turn_not_fetched"`
	UnfetchedShare float64  `json:"second_turn_not_fetched_share"`
	Agent          agent    `json:"agent"`
}

// second is the second turn of a conversation, beside the first, which is cold.
type second struct {
	Tokens    int     `json:"tokens"`
	ColdMS    float64 `json:"cold_first_token_ms"`
	Cached    int     `json:"cached_tokens"`
	HitMS     float64 `json:"hit_first_token_ms"`
	RestoreMS float64 `json:"restore_ms"`
	Share     float64 `json:"share"`
	// Drafted and Steps are those of the 17 tokens after the hit, in chains.
	Drafted int `json:"drafted_tokens"`
	Steps   int `json:"verify_steps"`
}

// agent is a conversation that grows.
type agent struct {
	Turns  int     `json:"turns"`
	New    int     `json:"new_tokens"`
	Read   int     `json:"read_tokens"`
	Asked  int     `json:"prompt_tokens"` // of all turns together, what would be read without a cache
	Ratio  float64 `json:"read_per_new"`
	Checks int     `json:"answers_compared"` // with those of prompts that were read whole
}

func run(ctx context.Context, rounds, turns int, out string) error {
	cl, err := report.Start(ctx, cluster.Options{Args: []string{"--demo", "--read-ahead", "off"}})
	if err != nil {
		return err
	}
	defer cl.Close()
	c := client.New(cl.HTTP)
	r := results{Machine: report.Machine()}
	fmt.Println("# Sessions\n\n" + r.Machine)
	for _, part := range []struct {
		title   string
		turns   *[]second
		share   *float64
		measure func() (second, error)
	}{
		{"The second turn over a conversation of 8K tokens", &r.Second, &r.Share,
			func() (second, error) { return secondTurn(ctx, c) }},
		{"The second turn after a restart, from disk", &r.Restarted, &r.RestartedShare,
			func() (second, error) { return restarted(ctx) }},
		{"The second turn after a pause, read ahead", &r.Ahead, &r.AheadShare,
			func() (second, error) { return paused(ctx, "on") }},
		{"The second turn after a pause, not read ahead", &r.Paused, &r.PausedShare,
			func() (second, error) { return paused(ctx, "off") }},
		{"The second turn on another worker, fetched", &r.Elsewhere, &r.ElsewhereShare,
			func() (second, error) { return elsewhere(ctx, "on") }},
		{"The second turn on another worker, not fetched", &r.Unfetched, &r.UnfetchedShare,
			func() (second, error) { return elsewhere(ctx, "off") }},
	} {
		if *part.turns, *part.share, err = turnsOf(part.title, rounds, part.measure); err != nil {
			return err
		}
	}
	if r.Agent, err = trace(ctx, c, turns); err != nil {
		return err
	}
	a := r.Agent
	table := &report.Table{Title: fmt.Sprintf("An agent of %d turns: 6K tokens of system text and tools, results of 0.5K to 2K", turns),
		Header: []string{"prompts together", "new tokens", "read", "read a new one", "answers compared"}}
	table.Add(a.Asked, a.New, a.Read, a.Ratio, a.Checks)
	table.Write(os.Stdout)
	if err := report.WriteJSON(out, r); err != nil {
		return err
	}
	switch {
	case r.Share > mostShare:
		return fmt.Errorf("the second turn's first token takes %.1f %% of a cold one, at most %.0f %% are the aim",
			100*r.Share, 100*mostShare)
	case r.RestartedShare > mostDisk:
		return fmt.Errorf("after a restart the second turn's first token takes %.1f %% of a cold one, at most %.0f %% are the aim",
			100*r.RestartedShare, 100*mostDisk)
	case r.AheadShare > mostAhead:
		return fmt.Errorf("read ahead, the second turn's first token takes %.1f %% of a cold one, at most %.0f %% are the aim",
			100*r.AheadShare, 100*mostAhead)
	case r.ElsewhereShare > mostFetched:
		return fmt.Errorf("fetched, the second turn's first token takes %.1f %% of a cold one, at most %.0f %% are the aim",
			100*r.ElsewhereShare, 100*mostFetched)
	case a.Ratio > mostRead:
		return fmt.Errorf("the agent's target reads %.2f tokens for a new one, at most %.1f are the aim", a.Ratio, mostRead)
	}
	return nil
}

// words is text of about so many tokens that nobody else's prompt has.
func words(tokens int) string {
	var b strings.Builder
	for n := 0; n < tokens; n += 12 {
		fmt.Fprintf(&b, "Function %s returns the sum of its arguments.\n", strings.ToLower(rand.Text()[:4]))
	}
	return b.String()
}

var off = false

// ask streams an answer of so many tokens in chains of the draft.
func ask(ctx context.Context, c *client.Client, list []client.Message, most int, cache *bool) (client.Reply, error) {
	return c.Stream(ctx, client.Request{Messages: list, MaxTokens: most, EnableThinking: &off, CachePrompt: cache,
		Speculation: &client.Speculation{Mode: "chain"}}, nil)
}

// turnsOf measures second turns, prints them and returns the median of their shares.
func turnsOf(title string, rounds int, measure func() (second, error)) (all []second, share float64, err error) {
	table := &report.Table{Title: title,
		Header: []string{"tokens", "first token, cold", "from the cache", "first token, second turn", "restoring", "share",
			"tokens drafted in", "steps"}}
	var shares []float64
	for range rounds {
		s, err := measure()
		if err != nil {
			return all, 0, err
		}
		all = append(all, s)
		shares = append(shares, s.Share)
		table.Add(s.Tokens, s.ColdMS, s.Cached, s.HitMS, s.RestoreMS, fmt.Sprintf("%.1f %%", 100*s.Share), s.Drafted, s.Steps)
	}
	table.Write(os.Stdout)
	slices.Sort(shares)
	return all, shares[len(shares)/2], nil
}

// restarted is a second turn at a cluster that was restarted after the first, with none of its files in the page cache.
func restarted(ctx context.Context) (s second, err error) {
	dir, err := os.MkdirTemp("", "tandem-sessions-")
	if err != nil {
		return s, err
	}
	defer os.RemoveAll(dir)
	begin := func() (*cluster.Cluster, error) {
		ctx, stop := context.WithTimeout(ctx, time.Minute)
		defer stop()
		return cluster.Start(ctx, cluster.Options{Args: []string{"--demo", "--kv-cache-dir", dir}})
	}
	cl, err := begin()
	if err != nil {
		return s, err
	}
	again := func() (*client.Client, error) {
		ended, stop := context.WithTimeout(ctx, time.Minute)
		defer stop()
		if err := cl.Stop(ended); err != nil {
			return nil, err
		}
		cl.Close()
		if err := uncache(dir); err != nil {
			return nil, err
		}
		if cl, err = begin(); err != nil {
			return nil, err
		}
		return client.New(cl.HTTP), nil
	}
	defer func() { cl.Close() }()
	return secondTurnAt(ctx, client.New(cl.HTTP), 17, again)
}

// paused is a second turn after a long answer, at a cluster with --read-ahead of this value, 2.5 s after it has read
// what it reads ahead.
func paused(ctx context.Context, ahead string) (s second, err error) {
	cl, err := report.Start(ctx, cluster.Options{Args: []string{"--demo", "--read-ahead", ahead}})
	if err != nil {
		return s, err
	}
	defer cl.Close()
	c := client.New(cl.HTTP)
	return secondTurnAt(ctx, c, 400, func() (*client.Client, error) {
		read, same := -1.0, 0
		for range 300 { // heartbeats say it every second
			workers, err := c.Workers(ctx)
			if err != nil {
				return nil, err
			}
			now := 0.0
			for _, w := range workers {
				now += w.Counters["read_ahead_tokens"]
			}
			if same++; now != read {
				read, same = now, 0
			}
			if same >= 25 && (read > 0 || ahead == "off") {
				return c, nil
			}
			time.Sleep(100 * time.Millisecond)
		}
		return nil, fmt.Errorf("%.0f tokens were read ahead in 30 s", read)
	})
}

// elsewhere is a second turn on another worker than the first, which fetches the state or not. The second worker is
// there from the second turn on, and its name is the lower one.
func elsewhere(ctx context.Context, fetch string) (s second, err error) {
	dir, err := os.MkdirTemp("", "tandem-sessions-")
	if err != nil {
		return s, err
	}
	defer os.RemoveAll(dir)
	registry := "unix://" + filepath.Join(dir, "registry")
	cl, err := report.Start(ctx, cluster.Options{Args: []string{"--demo", "--read-ahead", "off", "--route", "load",
		"--registry-listen", registry, "--peer-fetch", fetch}})
	if err != nil {
		return s, err
	}
	defer cl.Close()
	c := client.New(cl.HTTP)
	var joined *cluster.Joined
	defer func() {
		if joined != nil {
			joined.Close()
		}
	}()
	return secondTurnOn(ctx, c, 17, fetch == "on", func() (*client.Client, error) {
		if joined, err = cluster.Join(registry, "another", "--peer-fetch", fetch); err != nil {
			return nil, err
		}
		for range 600 {
			workers, err := c.Workers(ctx)
			if err != nil {
				return nil, err
			}
			for _, w := range workers {
				if w.ID == "another" && w.State == "ready" {
					return c, nil
				}
			}
			time.Sleep(100 * time.Millisecond)
		}
		return nil, fmt.Errorf("the second worker is not ready after a minute:\n%s", joined.Log())
	})
}

// uncache drops the files of a folder from the page cache; they are synced.
func uncache(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	})
}

func secondTurn(ctx context.Context, c *client.Client) (s second, err error) {
	return secondTurnAt(ctx, c, 17, func() (*client.Client, error) { return c, nil })
}

// secondTurnAt is secondTurnOn for a second turn that is to be restored.
func secondTurnAt(
	ctx context.Context, c *client.Client, most int, again func() (*client.Client, error),
) (s second, err error) {
	return secondTurnOn(ctx, c, most, true, again)
}

// secondTurnOn asks for the first turn of a conversation, with an answer of so many tokens at most, then for the second
// one where again says. cached says whether that is to come from the cache.
func secondTurnOn(
	ctx context.Context, c *client.Client, most int, cached bool, again func() (*client.Client, error),
) (s second, err error) {
	list := []client.Message{{Role: "system", Content: words(1000)}}
	for i := range 14 {
		list = append(list, client.Message{Role: []string{"user", "assistant"}[i%2], Content: words(500)})
	}
	list = append(list, client.Message{Role: "user", Content: "What is a goroutine?"})
	cold, err := ask(ctx, c, list, most, nil)
	if err != nil {
		return s, err
	}
	list = append(list, client.Message{Role: "assistant", Content: cold.Text},
		client.Message{Role: "user", Content: "And what is a channel?"})
	if c, err = again(); err != nil {
		return s, err
	}
	hit, err := ask(ctx, c, list, 17, nil)
	if err != nil {
		return s, err
	}
	t := hit.Usage.Timings
	s = second{Tokens: hit.Usage.PromptTokens, ColdMS: cold.Usage.Timings.TTFTMs,
		Cached: hit.Usage.PromptDetails.CachedTokens, HitMS: t.TTFTMs, RestoreMS: t.RestoreMs,
		Share: t.TTFTMs / cold.Usage.Timings.TTFTMs, Drafted: t.DraftedTokens, Steps: t.VerifySteps}
	if s.Cached > 0 != cached || cached && s.Drafted == 0 {
		return s, fmt.Errorf("the second turn took %d tokens from the cache and verified %d drafted ones", s.Cached, s.Drafted)
	}
	return s, nil
}

// trace runs an agent: every turn adds an answer and the result of a tool.
func trace(ctx context.Context, c *client.Client, turns int) (a agent, err error) {
	list := []client.Message{{Role: "system", Content: words(6000)}, {Role: "user", Content: "Find the function."}}
	before := 0
	for turn := range turns {
		reply, err := ask(ctx, c, list, 30, nil)
		if err != nil {
			return a, fmt.Errorf("turn %d: %w", turn, err)
		}
		u := reply.Usage
		a.Turns++
		a.Asked += u.PromptTokens
		a.New += u.PromptTokens - before
		a.Read += u.PromptTokens - u.PromptDetails.CachedTokens
		before = u.PromptTokens
		if turn%5 == 4 {
			cold, err := ask(ctx, c, list, 30, &off)
			if err != nil {
				return a, err
			}
			if cold.Text != reply.Text || cold.Usage.PromptDetails.CachedTokens != 0 {
				return a, fmt.Errorf("turn %d: the answer is %q, of a prompt that is read whole %q", turn, reply.Text, cold.Text)
			}
			a.Checks++
		}
		list = append(list, client.Message{Role: "assistant", Content: reply.Text},
			client.Message{Role: "user", Content: "The tool says:\n" + words(500+100*((7*turn)%16))})
	}
	a.Ratio = float64(a.Read) / float64(a.New)
	return a, nil
}
