package cluster

import (
	"math/rand/v2"
	"testing"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/prefixhash"
	"github.com/tandem-inference/tandem/services/registry"
)

// readTokens runs interleaved conversations over two workers, which keep every prompt, two requests at a time, and
// returns the tokens that were read and those that were new.
func readTokens(t *testing.T, byPrefix bool) (read, fresh int) {
	random := rand.New(rand.NewPCG(1, 2))
	states := map[string][]*tandemv1.PrefixState{}
	workers := func() (list []registry.Worker) {
		for _, id := range []string{"a", "b"} {
			w := info(id, 4, 1_000_000, registry.StateReady)
			w.Heartbeat = &tandemv1.Heartbeat{Prefixes: &tandemv1.Prefixes{Version: 1, States: states[id]}}
			list = append(list, w)
		}
		return list
	}
	p := pool(t, PoolConfig{MaxQueue: 9, ByPrefix: byPrefix}, workers()...)
	conversations := make([][]int32, 8)
	var running []*Slot
	for turn := range 128 {
		i := random.IntN(len(conversations))
		before := len(conversations[i])
		conversations[i] = append(conversations[i], text(int32(1000*i+turn), 400+random.IntN(800))...)
		prompt := conversations[i]
		fresh += len(prompt) - before
		l := went(t, p, Demand{Prompt: prompt})
		all, held := prefixhash.All("", prompt), 0
		for _, s := range states[l.Worker] {
			if n := int(s.Tokens); n < len(prompt) && all[n] == s.Digest {
				held = max(held, n)
			}
		}
		read += len(prompt) - held
		l.Read(held)
		states[l.Worker] = append(states[l.Worker],
			&tandemv1.PrefixState{Digest: all[len(prompt)], Tokens: int32(len(prompt))})
		if running = append(running, l); len(running) > 1 {
			k := random.IntN(len(running))
			running[k].Release()
			running = append(running[:k], running[k+1:]...)
		}
		if turn%4 == 3 { // heartbeats are slower than turns
			set(p, workers()...)
		}
	}
	return read, fresh
}

// TestRoutingSavesReading: by prefix two workers read little more than what is new in interleaved conversations, by
// load each reads what the other has read.
func TestRoutingSavesReading(t *testing.T) {
	read, fresh := readTokens(t, true)
	without, _ := readTokens(t, false)
	t.Logf("%d new tokens: %d are read by prefix, %d by load", fresh, read, without)
	if float64(read) > 1.1*float64(fresh) || float64(without) < 1.5*float64(read) {
		t.Errorf("%d new tokens: %d are read by prefix, %d by load", fresh, read, without)
	}
}
