package probe

import (
	"github.com/tandem-inference/tandem/gateway/internal/placement"
)

// Times are the measured steps of a device.
type Times struct {
	Model       *placement.Model
	Half, Whole int // layers of the two engines; the second has the head when these are all
	Rows        []RowTimes
	Context     int // positions cached when Attended was measured, 0 = it was not
	// Attended are the seconds of a step of the second engine with 64 rows at Context.
	Attended float64
}

// RowTimes are usual times of steps with so many rows, in seconds.
type RowTimes struct {
	Rows        int
	Half, Whole float64
}

// leastShare of the time of a step is that of its layers: what is left for the step itself would be noise beyond.
const leastShare = 0.2

// Cost fits what placement predicts with: the second engine's steps exactly, but for those between the measured rows.
func (t *Times) Cost() *placement.Cost {
	halfRead, _ := t.Model.StepBytes(0, t.Half)
	wholeRead, macs := t.Model.StepBytes(0, t.Whole)
	headRead, headMACs := t.Model.HeadBytes()
	if t.Whole < len(t.Model.Layers) {
		headRead, headMACs = 0, 0
	}
	wholeRead += headRead
	one := t.Rows[0]
	perByte := (one.Whole - one.Half) / float64(wholeRead-halfRead)
	perByte = min(max(perByte, leastShare*one.Whole/float64(wholeRead)), one.Whole/float64(wholeRead))
	c := &placement.Cost{StepUS: max(one.Whole-perByte*float64(wholeRead), 0) * 1e6, ReadGBs: 1e-9 / perByte}
	before := 0.0
	for _, r := range t.Rows[1:] {
		weights, read := float64(macs), float64(wholeRead)
		if r.Rows <= pending {
			weights += float64(headMACs)
		} else {
			read -= float64(headRead) // rows of a prompt want no token
		}
		more := (r.Whole - c.StepUS*1e-6 - read*perByte) / weights * 1e12
		before = max(more, before)
		c.Rows = append(c.Rows, placement.RowCost{Rows: r.Rows, MSPerGWeight: before})
	}
	c.AttentionGMACs = t.attention(c)
	return c
}

// attention is the rate at which steps of many rows read a context, in 10⁹ products a second.
func (t *Times) attention(c *placement.Cost) float64 {
	kv, macs := t.Model.AttentionBytes(0, t.Whole)
	fast := c.ReadGBs * 50 // of a model without attention: never the bound
	if t.Context == 0 || macs == 0 {
		return fast
	}
	empty := 0.0
	for _, r := range t.Rows {
		if r.Rows == pending {
			empty = r.Whole
		}
	}
	context := float64(t.Context)
	extra := t.Attended - empty - context*float64(kv)/(c.ReadGBs*1e9)
	if least := t.Attended * 0.01; extra < least {
		extra = least
	}
	return min(pending*context*float64(macs)/extra/1e9, fast)
}
