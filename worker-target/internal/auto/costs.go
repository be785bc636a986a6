package auto

import (
	"math"
	"math/bits"
	"time"

	"github.com/tandem-inference/tandem/services/ddtree"
)

// MaxBlock is the largest block, in rows with the anchor, that plans use: more cannot be verified in one step. A draft
// with larger blocks is used up to it.
const MaxBlock = ddtree.MaxNodes + 1

// rowBins are the row counts at which verify times are kept; between them times are interpolated. More rows than the
// last cost in proportion.
var rowBins = [...]int{1, 2, 4, 8, 16, 24, 32, 48, 64, 128, 256, 512}

const (
	contexts = 6 // context buckets: below 1K, 2K, 8K, 32K, 128K positions and above
	// learn is the weight of a new measurement of a step or a draft: 1/8 follows a changed clock within some 20 steps.
	learn = 0.125
	// A measurement may change an estimate by this factor at most: schedulers and page faults make rare huge outliers.
	outlier = 3
	// settled is how many measurements make an estimate one that moves by learn; before, it is the mean of what was
	// seen. Times from the start count little: other programs that start then make them too long.
	settled = 1/learn - 1
	// halfLife is the time of steps, in seconds, after which measurements count half. Raising it trusts old
	// times longer.
	halfLife = 60
	// doubt is the count of measurements below which a time is measured again when it is cheap to.
	doubt = 0.5
	// A proposal that was measured less than `sure` times is assumed to take at most `longest` wide steps.
	sure, longest = 1.5, 4
	// A measurement that is shorter than an estimate by this factor replaces it where few were made: other programs
	// make steps longer, never shorter.
	disturbance = 1.5
)

// bucket maps a context length to its table.
func bucket(length int) int {
	switch n := bits.Len(uint(length) >> 10); { // length in units of 1K
	case n == 0:
		return 0
	case n == 1:
		return 1
	default:
		return min(contexts-1, 2+(n-2)/2)
	}
}

// times are seconds of steps by rows and context.
type times struct {
	clock    float64                         // seconds of steps that were observed
	verify   [contexts][len(rowBins)]float64 // 0 = nothing known for this context
	verified [contexts][len(rowBins)]trust   // how well those times are known: measurements while serving
}

// costs are the times of this machine in seconds. Guarded by Model.mu.
type costs struct {
	times
	drafts  [MaxBlock + 1]float64 // by block size, 0 = not measured
	drafted [MaxBlock + 1]trust
	// plain steps of requests that do not draft at the moment. On a machine that both models share, a step right after the
	// draft's is slower than one among plain steps; the table has only the former while a request drafts.
	plain [contexts]float64
	hop   float64 // time of a step beyond the engine's own: the round trip to it
	// others is the running mean of the rows that other requests had in the same step; the cost of rows is what they
	// add to those. otherRequests is the running mean of the number of these requests: all wait for the added time.
	others, otherRequests float64
}

// trust counts measurements, which fade.
type trust struct {
	count float64
	at    float64 // costs.clock when count was true
}

// now is the count at a time of the clock.
func (t *trust) now(clock float64) float64 { return t.count * math.Exp2((t.at-clock)/halfLife) }

// add counts a share of a measurement.
func (t *trust) add(clock, share float64) { t.count, t.at = min(t.now(clock)+share, settled+1), clock }

// corrected returns an estimate after a measurement, of which share belongs to it, where count were made before.
func corrected(estimate, measured, count, share float64) float64 {
	ratio := measured / estimate
	if count < settled/2 && ratio < 1/disturbance {
		return estimate * (1 + share*(ratio-1))
	}
	return estimate * (1 + share*max(learn, 1/(count+2))*(clamp(ratio, 1.0/outlier, outlier)-1))
}

// neighbours returns the bins around rows and how far rows is from the lower one, 0..1.
func neighbours(rows int) (lo, hi int, f float64) {
	for hi < len(rowBins)-1 && rowBins[hi] < rows {
		hi++
	}
	if hi == 0 || rowBins[hi] <= rows {
		return hi, hi, 0
	}
	lo = hi - 1
	return lo, hi, float64(rows-rowBins[lo]) / float64(rowBins[hi]-rowBins[lo])
}

// table returns the times for a context: its own, or those of the nearest context that has any.
func (c *times) table(length int) *[len(rowBins)]float64 {
	b := bucket(length)
	for d := range contexts {
		if b-d >= 0 && c.verify[b-d][0] > 0 {
			return &c.verify[b-d]
		}
		if b+d < contexts && c.verify[b+d][0] > 0 {
			return &c.verify[b+d]
		}
	}
	return nil
}

// observePlain learns from a step of one row that followed another of its kind.
func (c *costs) observePlain(length int, seconds float64) {
	if c.table(length) == nil { // nothing was timed at start
		c.observeStep(1, length, seconds)
	}
	c.clock += seconds
	b := bucket(length)
	p := &c.plain[b]
	if *p == 0 {
		*p = seconds
	} else {
		*p *= 1 + learn*(clamp(seconds / *p, 1.0/outlier, outlier)-1)
	}
	// A step beside a draft is somewhat slower, but not as slow as a disturbed measurement at the start shows.
	if t := &c.verify[b]; c.verified[b][0].now(c.clock) < doubt && t[0] > disturbance**p {
		t[0] = disturbance * *p
	}
}

// plainRound is the time of a round of plain decoding, 0 when no step was ever seen.
func (c *costs) plainRound(length int) float64 {
	s := c.step(1+c.otherRows(), length)
	if p := c.plain[bucket(length)]; p > 0 && c.otherRows() == 0 {
		s = min(s, p)
	}
	if s == 0 {
		return 0
	}
	return s + c.hop
}

// observeHop follows the smallest difference between wall time and engine time: larger ones are waits for
// other requests.
func (c *costs) observeHop(seconds float64) {
	if seconds <= 0 {
		return
	}
	if c.hop == 0 || seconds < c.hop {
		c.hop = seconds
		return
	}
	c.hop *= 1 + 0.01*(min(seconds/c.hop, 2)-1)
}

// otherRows is the number of rows of other requests that a step is expected to have.
func (c *costs) otherRows() int { return int(c.others + 0.5) }

// observeOthers follows the number of other requests in the same step, and of their rows.
func (c *costs) observeOthers(requests, rows int) {
	c.otherRequests += learn * (float64(requests) - c.otherRequests)
	c.others += learn * (float64(rows) - c.others)
}

// round is the expected time of a verify step as the loop sees it, 0 when no step was ever seen.
func (c *costs) round(rows, length int) float64 {
	if s := c.step(rows+c.otherRows(), length); s > 0 {
		return s + c.hop
	}
	return 0
}

// step is the expected time of a verify step in the engine, 0 when no step was ever seen.
func (c *times) step(rows, length int) float64 {
	t := c.table(length)
	if t == nil {
		return 0
	}
	lo, hi, f := neighbours(rows)
	return beyond(rows) * (t[lo]*(1-f) + t[hi]*f)
}

// beyond is how many times the last bin's rows a step has, 1 for those within the bins.
func beyond(rows int) float64 { return max(1, float64(rows)/float64(rowBins[len(rowBins)-1])) }

// observeStep corrects the table by one measured step: the bins around rows move towards it most. wrong reports that
// the time from the start was far too long.
func (c *times) observeStep(rows, length int, seconds float64) (wrong bool) {
	if seconds <= 0 {
		return false
	}
	t := &c.verify[bucket(length)]
	if t[0] == 0 {
		near := c.table(length)
		if near == nil { // the first step ever: assume that rows are free until shown otherwise
			for i := range t {
				t[i] = seconds
			}
			return false
		}
		*t = *near
	}
	c.clock += seconds
	seconds /= beyond(rows)
	lo, hi, f := neighbours(rows)
	known := &c.verified[bucket(length)]
	model := t[lo]*(1-f) + t[hi]*f
	ratio := seconds / model
	count := known[lo].now(c.clock)*(1-f) + known[hi].now(c.clock)*f
	if count >= settled/2 {
		// Half of the correction is taken for the machine's speed and moves the whole table: otherwise the widths that are
		// not in use now, plain steps above all, would keep the times of a busier or slower hour.
		ratio = clamp(ratio, 1.0/outlier, outlier)
		whole, own := 1+learn/2*(ratio-1), learn/2*(ratio-1)
		for i := range t {
			t[i] *= whole
		}
		t[lo] *= 1 + own*(1-f)
		if hi != lo {
			t[hi] *= 1 + own*f
		}
	} else {
		wrong = count < doubt && ratio < 1/disturbance
		t[lo] = corrected(t[lo], t[lo]*ratio, count, 1-f)
		if hi != lo {
			t[hi] = corrected(t[hi], t[hi]*ratio, count, f)
		}
	}
	known[lo].add(c.clock, 1-f)
	if hi != lo {
		known[hi].add(c.clock, f)
	}
	// Widths that were not measured: a step is not dearer than a wider one, nor than as many narrower ones as hold
	// its rows.
	for i := range t {
		switch {
		case known[i].now(c.clock) >= doubt:
		case i < lo:
			t[i] = min(t[i], t[lo])
		case i > hi:
			t[i] = min(t[i], t[hi]*float64(rowBins[i])/float64(rowBins[hi]))
		}
	}
	return wrong
}

// doubtful reports whether the time of a step of so many rows is hardly known: not measured while serving, or long ago.
func (c *times) doubtful(rows, length int) bool {
	lo, hi, f := neighbours(rows)
	known := &c.verified[bucket(length)]
	return known[lo].now(c.clock)*(1-f)+known[hi].now(c.clock)*f < doubt
}

// set writes a calibrated time; larger bins without one of their own follow in proportion to the rows.
func (c *times) set(rows int, seconds float64) {
	t := &c.verify[0]
	for i, r := range rowBins {
		switch {
		case r == rows:
			t[i] = seconds
		case r > rows:
			t[i] = seconds * float64(r) / float64(rows)
		case t[i] == 0:
			t[i] = seconds
		}
	}
}

// draft is the expected time from asking for a proposal to its arrival; 0 when none ever came. Any block is allowed:
// sizes without a measurement have the time of the nearest one.
func (c *costs) draft(block int) float64 {
	block = min(max(block, 1), MaxBlock)
	for d := range len(c.drafts) {
		if b := block + d; b < len(c.drafts) && c.drafts[b] > 0 {
			return c.trusted(b)
		}
		if b := block - d; b > 0 && c.drafts[b] > 0 {
			return c.trusted(b)
		}
	}
	return 0
}

// trusted is the time of a proposal, bounded while it was not measured often enough: one that hung while programs
// started must not set the time of all that follow.
func (c *costs) trusted(block int) float64 {
	if step := c.step(block, 0); c.drafted[block].now(c.clock) < sure && step > 0 {
		return min(c.drafts[block], longest*step)
	}
	return c.drafts[block]
}

// observeDraft learns from the time of a proposal; wrong as in observeStep.
func (c *costs) observeDraft(block int, seconds float64) (wrong bool) {
	if block <= 0 || block >= len(c.drafts) {
		return false
	}
	seconds = max(seconds, 1e-9)
	d, known := &c.drafts[block], &c.drafted[block]
	if *d == 0 {
		*d = seconds
	} else {
		count := known.now(c.clock)
		wrong = count < settled/2 && seconds < *d/disturbance
		*d = corrected(*d, seconds, count, 1)
	}
	known.add(c.clock, 1)
	return wrong
}

// doubtfulDraft is doubtful for a proposal of a block; one that was never asked for is not.
func (c *costs) doubtfulDraft(block int) bool {
	if block <= 0 || block >= len(c.drafts) || c.drafts[block] == 0 {
		return false
	}
	return c.drafted[block].now(c.clock) < doubt || c.trusted(block) < c.drafts[block]
}

func clamp(x, lo, hi float64) float64 {
	if math.IsNaN(x) {
		return lo
	}
	return min(max(x, lo), hi)
}

// Deadline is how long to wait for a proposal of block rows: four times the expected time, at least floor (first
// proposals are not known and get ceiling), at most ceiling.
func (m *Model) Deadline(block int, floor, ceiling time.Duration) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	expected := time.Duration(m.costs.draft(block) * float64(time.Second))
	if expected == 0 {
		return ceiling
	}
	return min(max(4*expected, floor), ceiling)
}
