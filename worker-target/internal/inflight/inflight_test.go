package inflight

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"github.com/tandem-inference/tandem/services/racetest"
	"github.com/tandem-inference/tandem/worker-target/internal/piece"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// numbers is a prompt of n tokens that differs from others after the first same ones.
func numbers(n, same int, seed int32, promptRows int) Prompt {
	p := Prompt{PromptRows: promptRows}
	for i := range n {
		token := int32(i)
		if i >= same {
			token += 10_000 * seed
		}
		p.Tokens = append(p.Tokens, token)
	}
	p.Cuts = piece.Markers{}.Cut(p.Tokens, piece.Cuts{})
	return p
}

// TestShared: a state is shared at a cut that both prompts have, and a token is left to read.
func TestShared(t *testing.T) {
	for name, c := range map[string]struct {
		a, b       Prompt
		want, same int
	}{
		"one contract":                   {a: numbers(700, 300, 1, 0), b: numbers(900, 300, 2, 0), want: 300},
		"one contract, equal":            {a: numbers(700, 700, 1, 0), b: numbers(700, 700, 1, 0), want: 699},
		"one contract, longer":           {a: numbers(700, 700, 1, 0), b: numbers(900, 700, 2, 0), want: 700},
		"last border":                    {a: numbers(2000, 1500, 1, 64), b: numbers(2000, 1500, 2, 64), want: 1024},
		"no border":                      {a: numbers(700, 300, 1, 64), b: numbers(900, 300, 2, 64), want: 0},
		"equal, a long piece at the end": {a: numbers(2000, 2000, 1, 64), b: numbers(2000, 2000, 1, 64), want: 1984},
		"equal, a whole number of units": {a: numbers(1984, 1984, 1, 64), b: numbers(1984, 1984, 1, 64), want: 1920},
		"equal, a short piece at the end": {
			a: numbers(1024+60, 5000, 1, 64), b: numbers(1024+60, 5000, 1, 64), want: 1024 + 59,
		},
		"a longer last piece": {a: numbers(1024+60, 5000, 1, 64), b: numbers(1024+70, 5000, 1, 64), want: 1024},
		"nothing":             {a: numbers(700, 0, 1, 0), b: numbers(900, 0, 2, 0), want: 0},
	} {
		t.Run(name, func(t *testing.T) {
			if got := c.a.shared(&c.b); got != c.want {
				t.Errorf("%d tokens, want %d", got, c.want)
			}
		})
	}
}

// read reads a prompt in steps of at most rows and returns where they ended.
func read(r *Reading, from, length, rows int) (ends []int) {
	for at := from; at < length; {
		at = r.Stop(at, min(at+rows, length))
		ends = append(ends, at)
		synctest.Wait()
		if r.Wanted(at) {
			r.Stored(at)
		}
	}
	return ends
}

// TestWait: later ones wait for the reader, which stops where they want, and who shares too little or nothing, or
// comes too late, does not wait.
func TestWait(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		table := New()
		stored := 0
		begin := func(p Prompt) (*Reading, <-chan int) {
			r, c := table.Begin(p), make(chan int, 1)
			go func() {
				n, err := r.Wait(t.Context(), func() int { return stored })
				if err != nil {
					t.Error(err)
				}
				c <- n
			}()
			synctest.Wait()
			return r, c
		}
		leader, first := begin(numbers(2000, 2000, 1, 0))
		if n := <-first; n != 0 {
			t.Errorf("the first waits for %d", n)
		}
		same, equal := begin(numbers(2000, 2000, 1, 0))
		part, shares := begin(numbers(900, 300, 2, 0))
		short, little := begin(numbers(900, Least-1, 3, 0))
		apart := numbers(2000, 2000, 1, 0)
		apart.Space = "another"
		other, alone := begin(apart)
		urgent := numbers(2000, 2000, 1, 0)
		urgent.Priority = 1
		high, first := begin(urgent)
		if n, m, k := <-little, <-alone, <-first; n != 0 || m != 0 || k != 0 {
			t.Errorf("waited for %d, %d and %d", n, m, k)
		}
		if len(equal)+len(shares) > 0 {
			t.Fatal("they did not wait")
		}
		leader.Started(0)
		if ends := read(leader, 0, 2000, 512); !slices.Equal(ends, []int{300, 812, 1324, 1836, 1999, 2000}) {
			t.Errorf("steps ended at %v", ends)
		}
		if n, m := <-equal, <-shares; n != 1999 || m != 300 {
			t.Errorf("waited for %d and %d", n, m)
		}
		stored = 1990
		late, none := begin(numbers(2000, 2000, 1, 0))
		if n := <-none; n != 0 {
			t.Errorf("waited for %d with %d stored", n, stored)
		}
		for _, r := range []*Reading{leader, same, part, short, other, late, high} {
			r.End()
			r.End()
		}
		if len(table.spaces) != 0 {
			t.Errorf("%d namespaces are left", len(table.spaces))
		}
	})
}

// TestLeaderLeaves: when the reader ends, the next reads and the others wait for that one; a wait ends with its
// context.
func TestLeaderLeaves(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		table := New()
		leader := table.Begin(numbers(2000, 2000, 1, 64))
		var readings [3]*Reading
		waits := make(chan int, len(readings))
		for i := range readings {
			readings[i] = table.Begin(numbers(2000, 2000, 1, 64))
			go func() {
				n, err := readings[i].Wait(t.Context(), func() int { return 0 })
				if err != nil || n != 0 && n != 1984 {
					t.Errorf("%d, %v", n, err)
				}
				waits <- i
			}()
			synctest.Wait()
		}
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan error, 1)
		last := table.Begin(numbers(2000, 2000, 1, 64))
		go func() {
			_, err := last.Wait(ctx, func() int { return 0 })
			gone <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-gone; !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		last.End()
		leader.Stop(0, 512)
		leader.End()
		synctest.Wait()
		if i := <-waits; i != 0 || len(waits) != 0 {
			t.Fatalf("reading %d goes on, %d others do", i, len(waits))
		}
		readings[0].Started(0)
		read(readings[0], 0, 2000, 512)
		synctest.Wait()
		if len(waits) != 2 {
			t.Errorf("%d go on once it is stored, want 2", len(waits))
		}
		// One whose reader has restored the state waits for nothing.
		a, b := table.Begin(numbers(900, 0, 9, 0)), table.Begin(numbers(900, 0, 9, 0))
		done := make(chan int, 1)
		go func() {
			n, _ := b.Wait(t.Context(), func() int { return 0 })
			done <- n
		}()
		synctest.Wait()
		a.Started(899)
		a.Stop(899, 900)
		if n := <-done; n != 899 {
			t.Errorf("%d", n)
		}
		for _, r := range append(readings[:], a, b) {
			r.End()
		}
		var none *Reading
		if n, err := none.Wait(t.Context(), nil); n != 0 || err != nil || none.Stop(1, 5) != 5 || none.Wanted(5) {
			t.Error("without a table something is shared")
		}
	})
}
