package auto

import (
	"math"
	"math/bits"
	"time"

	"github.com/tandem-inference/tandem/services/ddtree"
)

// MaxBlock is the largest block, in rows with the anchor, that plans use: more cannot be verified in one step. A draft with larger
// blocks is used up to it.
const MaxBlock = ddtree.MaxNodes + 1

// rowBins are the row counts at which verify times are kept; between them times are interpolated.
var rowBins = [...]int{1, 2, 4, 8, 16, 24, 32, 48, 64, 128}

const (
	contexts = 6 // context buckets: below 1K, 2K, 8K, 32K, 128K positions and above
	// learn is the weight of a new measurement of a step or a draft: 1/8 follows a changed clock within some 20 steps.
	learn = 0.125
	// A measurement may change an estimate by this factor at most: schedulers and page faults make rare huge outliers.
	outlier = 3
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

// costs are the times of this machine in seconds. Guarded by Model.mu.
type costs struct {
	verify [contexts][len(rowBins)]float64 // 0 = nothing known for this context
	drafts [MaxBlock + 1]float64           // by block size, 0 = not measured
	// plain steps of requests that do not draft at the moment. On a machine that both models share, a step right after the
	// draft's is slower than one among plain steps; the table knows only the former while a request drafts.
	plain [contexts]float64
	hop   float64 // what a step costs beyond the engine's own time: the way there and back
	// others is the running mean of the rows that other requests had in the same step: what rows cost is what they add to those.
	others float64
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
func (c *costs) table(length int) *[len(rowBins)]float64 {
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
	p := &c.plain[bucket(length)]
	if *p == 0 {
		*p = seconds
		return
	}
	*p *= 1 + learn*(clamp(seconds / *p, 1.0/outlier, outlier)-1)
}

// plainRound is what a round of plain decoding costs, 0 when no step was ever seen.
func (c *costs) plainRound(length int) float64 {
	s := c.step(1+c.company(), length)
	if p := c.plain[bucket(length)]; p > 0 && c.company() == 0 {
		s = min(s, p)
	}
	if s == 0 {
		return 0
	}
	return s + c.hop
}

// observeHop follows the smallest difference between wall time and engine time: larger ones are waits for other requests.
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

// company is the number of rows of others that a step is expected to have.
func (c *costs) company() int { return int(c.others + 0.5) }

// observeCompany follows the number of rows of others.
func (c *costs) observeCompany(rows int) { c.others += learn * (float64(rows) - c.others) }

// round is the expected time of a verify step as the loop sees it, 0 when no step was ever seen.
func (c *costs) round(rows, length int) float64 {
	if s := c.step(rows+c.company(), length); s > 0 {
		return s + c.hop
	}
	return 0
}

// step is the expected time of a verify step in the engine, 0 when no step was ever seen.
func (c *costs) step(rows, length int) float64 {
	t := c.table(length)
	if t == nil {
		return 0
	}
	lo, hi, f := neighbours(rows)
	return t[lo]*(1-f) + t[hi]*f
}

// observeStep corrects the table by one measured step: the bins around rows move towards it most.
func (c *costs) observeStep(rows, length int, seconds float64) {
	if seconds <= 0 {
		return
	}
	t := &c.verify[bucket(length)]
	if t[0] == 0 {
		near := c.table(length)
		if near == nil { // the first step ever: assume that rows are free until shown otherwise
			for i := range t {
				t[i] = seconds
			}
			return
		}
		*t = *near
	}
	lo, hi, f := neighbours(rows)
	model := t[lo]*(1-f) + t[hi]*f
	ratio := clamp(seconds/model, 1.0/outlier, outlier)
	// Half of the correction is taken for the machine's speed and moves the whole table: otherwise the widths that are not
	// in use now, plain steps above all, would keep the price of a busier or slower hour.
	whole, own := 1+learn/2*(ratio-1), learn/2*(ratio-1)
	for i := range t {
		t[i] *= whole
	}
	t[lo] *= 1 + own*(1-f)
	if hi != lo {
		t[hi] *= 1 + own*f
	}
}

// set writes a calibrated time; larger bins without one of their own follow in proportion to the rows.
func (c *costs) set(rows int, seconds float64) {
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

// draft is the expected time from asking for a proposal to its arrival; 0 when none ever came. Any block is allowed: sizes without a
// measurement have the time of the nearest one.
func (c *costs) draft(block int) float64 {
	block = min(max(block, 1), MaxBlock)
	for d := range len(c.drafts) {
		if b := block + d; b < len(c.drafts) && c.drafts[b] > 0 {
			return c.drafts[b]
		}
		if b := block - d; b > 0 && c.drafts[b] > 0 {
			return c.drafts[b]
		}
	}
	return 0
}

func (c *costs) observeDraft(block int, seconds float64) {
	if block <= 0 || block >= len(c.drafts) {
		return
	}
	if c.drafts[block] == 0 {
		c.drafts[block] = max(seconds, 1e-9)
		return
	}
	ratio := clamp(seconds/c.drafts[block], 1.0/outlier, outlier)
	c.drafts[block] *= 1 + learn*(ratio-1)
}

func clamp(x, lo, hi float64) float64 {
	if math.IsNaN(x) {
		return lo
	}
	return min(max(x, lo), hi)
}

// Deadline is how long to wait for a proposal of block rows: four times the expected time, at least floor (first proposals
// are not known and get ceiling), at most ceiling.
func (m *Model) Deadline(block int, floor, ceiling time.Duration) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	expected := time.Duration(m.costs.draft(block) * float64(time.Second))
	if expected == 0 {
		return ceiling
	}
	return min(max(4*expected, floor), ceiling)
}
