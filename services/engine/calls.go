package engine

import (
	"sync"
	"time"
)

// callKind groups calls whose times can be compared.
type callKind int

const (
	callStep callKind = iota
	callPrefill
	callPropose
	callScore
	callControl // everything else
	callKinds
)

const (
	// slowFactor is how many times the slowest measured time a call may take before the engine counts as stuck.
	slowFactor = 30
	// firstLimit is the limit of a kind of call that was never measured: it may load files or compile kernels.
	firstLimit = 30 * time.Minute
	// contextUnit is the context in positions that makes a row cost as much again.
	contextUnit = 2048
	// forget is the share of the slowest time that is kept when a faster call is measured.
	forget = 0.98
)

// callClock finds an engine whose calls do not come back although its process lives: a device that hangs, a step
// without end. The limit of a call is the larger of floor and slowFactor times what a call of its kind, rows and
// context took so far. Calls wait for each other in the engine, so what is limited is the time since the engine last
// finished one, as observed by ticks: see procwatch.
type callClock struct {
	floor time.Duration // 0 = never stuck

	mu    sync.Mutex // guards the fields below
	calls []call
	free  []int // indices of calls that are over
	// worst is the slowest time of each kind by unit of work, slowly forgotten; 0 = not measured.
	worst [callKinds]time.Duration
	// still is the observed time since a call was over, or since the first began.
	still time.Duration
}

type call struct {
	kind  callKind
	units float64
	start time.Time // zero: over
}

// units of work of so many rows on a context.
func units(rows, context int) float64 {
	return float64(max(rows, 1)) * (1 + float64(max(context, 0))/contextUnit)
}

// begin notes a call and returns its index.
func (c *callClock) begin(kind callKind, units float64) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.calls) == len(c.free) {
		c.still = 0
	}
	n := call{kind, units, time.Now()}
	if last := len(c.free) - 1; last >= 0 {
		i := c.free[last]
		c.free = c.free[:last]
		c.calls[i] = n
		return i
	}
	c.calls = append(c.calls, n)
	return len(c.calls) - 1
}

// end notes that a call is over; only good ones tell how long calls take.
func (c *callClock) end(i int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	done := c.calls[i]
	c.calls[i] = call{}
	c.free = append(c.free, i)
	c.still = 0
	if err != nil {
		return
	}
	took := time.Duration(float64(time.Since(done.start)) / done.units)
	w := &c.worst[done.kind]
	*w = max(took, time.Duration(float64(*w)*forget), 1)
}

// limit of a call; the caller holds mu.
func (c *callClock) limit(n call) time.Duration {
	w := c.worst[n.kind]
	if w == 0 {
		return max(c.floor, firstLimit)
	}
	return max(c.floor, time.Duration(slowFactor*float64(w)*n.units))
}

// tick adds observed time. It returns for how long the engine has finished nothing when that is more than any call may
// take, else 0.
func (c *callClock) tick(passed time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.floor <= 0 || len(c.calls) == len(c.free) {
		return 0
	}
	c.still += passed
	limit := time.Duration(0)
	for _, n := range c.calls {
		if !n.start.IsZero() {
			limit = max(limit, c.limit(n))
		}
	}
	if c.still <= limit {
		return 0
	}
	return c.still
}
