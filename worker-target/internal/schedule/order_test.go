package schedule

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/services/racetest"
)

// arrivals is a mix of prompts that come while the machine is busy with them for a share of its time: seven in ten of
// some hundred rows, two of 2000, one of 8000.
func arrivals(busy float64, n int) (rows []int, at []time.Duration) {
	random := rand.New(rand.NewPCG(21, 42))
	mean := (0.7*350 + 0.2*2000 + 0.1*8000) * float64(rowTime)
	now := 0.0
	for range n {
		size := 200 + random.IntN(300)
		switch random.IntN(10) {
		case 0:
			size = 8000
		case 1, 2:
			size = 2000
		}
		now += random.ExpFloat64() * mean / busy
		rows, at = append(rows, size), append(at, time.Duration(now))
	}
	return rows, at
}

// firstTokens returns the times from arrival to the end of the prompts of a key, sorted, beside two streams.
func firstTokens(t *testing.T, turns bool) (first []time.Duration) {
	racetest.Bubble(t, func(t *testing.T) {
		e := paced(t, Options{MaxTokenGap: 60 * time.Millisecond, turns: turns}, nil)
		ctx, cancel := context.WithCancel(t.Context())
		var streams, prompts sync.WaitGroup
		for range 2 {
			streams.Go(func() {
				decodeRows(ctx, t, e, func() time.Duration { return time.Millisecond }, func(time.Duration) {})
			})
		}
		var mu sync.Mutex
		rows, at := arrivals(0.7, 300)
		for i := range rows {
			prompts.Go(func() {
				time.Sleep(at[i])
				start := time.Now()
				if err := readPrompt(ctx, e.For(Request{Prompt: rows[i]}), rows[i]); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				first = append(first, time.Since(start))
			})
		}
		prompts.Wait()
		cancel()
		streams.Wait()
	})
	slices.Sort(first)
	return first
}

// TestPromptOrder: of the prompts of one key, the shortest rest first brings first tokens sooner than turns do, on
// average and for those that wait longest.
func TestPromptOrder(t *testing.T) {
	figures := func(turns bool) (mean, p99 time.Duration) {
		list := firstTokens(t, turns)
		for _, d := range list {
			mean += d / time.Duration(len(list))
		}
		return mean, list[len(list)*99/100]
	}
	mean, p99 := figures(false)
	turnsMean, turnsP99 := figures(true)
	t.Logf("first token: shortest first %v on average, %v at p99; in turns %v, %v", mean, p99, turnsMean, turnsP99)
	if float64(mean) > 0.85*float64(turnsMean) || p99 > turnsP99 {
		t.Error("the shortest rest first is no better than turns")
	}
}
