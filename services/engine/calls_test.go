package engine

import (
	"context"
	"testing"
	"time"
)

// TestClockAllocates: the clock of a guard is on the path of every step.
func TestClockAllocates(t *testing.T) {
	c := callClock{floor: time.Minute}
	if n := testing.AllocsPerRun(100, func() {
		a, b := c.begin(callStep, 1), c.begin(callPrefill, 512)
		c.end(a, nil)
		c.end(b, context.Canceled)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
	if c.worst[callStep] == 0 || c.worst[callPrefill] != 0 {
		t.Errorf("measured %v: only calls that succeeded tell how long calls take", c.worst)
	}
}
