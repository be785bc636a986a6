// Package racetest helps tests that also run under the race detector.
package racetest

import (
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
)

// bubbles that run now, and the processors that the program had before the first of them.
var bubbles struct {
	mu         sync.Mutex
	running    int
	processors int
}

// Bubble is synctest.Test. Under the race detector the program has one processor meanwhile: timers of a bubble share
// one context of the detector, which fails a check of its own and ends the program when two processors run such timers
// at once (golang/go#78156). The detector goes by the order that the program asks for, whatever really ran side
// by side.
func Bubble(t *testing.T, f func(*testing.T)) {
	t.Helper()
	if Enabled {
		enter()
		defer leave()
	}
	synctest.Test(t, f)
}

func enter() {
	bubbles.mu.Lock()
	defer bubbles.mu.Unlock()
	if bubbles.running == 0 {
		bubbles.processors = runtime.GOMAXPROCS(1)
	}
	bubbles.running++
}

func leave() {
	bubbles.mu.Lock()
	defer bubbles.mu.Unlock()
	bubbles.running--
	if bubbles.running == 0 {
		runtime.GOMAXPROCS(bubbles.processors)
	}
}
