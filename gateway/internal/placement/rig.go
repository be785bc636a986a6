package placement

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/tandem-inference/tandem/services/config"
	"github.com/tandem-inference/tandem/services/device"
)

// Origin says where figures come from.
type Origin string

// Origins of figures: measured on the device, or public specifications times the shares that native/SPEED.md states.
const (
	Measured Origin = "measured"
	Table    Origin = "table"
)

// Rig is what a model may be placed on. tandem probe writes it as JSON; people may edit it, or write one of cards that
// they do not have: a device that names a card of the table needs no figures.
type Rig struct {
	// Hosts of which the first is where the plan is made.
	Hosts []Host `json:"hosts"`
	// Links between hosts; hosts without one cannot share a layout.
	Links []Link `json:"links,omitempty"`
}

// Host is a machine.
type Host struct {
	Name string `json:"name"`
	// Address at which other hosts reach it; needed when there are others.
	Address string   `json:"address,omitempty"`
	Devices []Device `json:"devices"`
	// Border is what it costs to hand rows from one engine of the host to another. Default: the table's.
	Border *Path `json:"border,omitempty"`
	// RoundUS is the time of a round in worker and gateway, beside its engines, in microseconds. Default: the table's.
	RoundUS float64 `json:"round_us,omitempty"`
}

// Device is a processor or a card.
type Device struct {
	Name string `json:"name"` // as --device takes it: cpu, cuda:0, hip:1
	Card string `json:"card"` // what it is; figures that are missing are those of the table's card of this name
	// Memory is all that it has, Free what engines may take. Free is the table's when both are left out, and 1 GiB less
	// than Memory when it alone is.
	Memory config.Size `json:"memory,omitempty"`
	Free   config.Size `json:"free,omitempty"`
	Cost   *Cost       `json:"cost,omitempty"`
	Origin Origin      `json:"origin,omitempty"`
}

// Cost is what steps cost on a device. A step of r rows over layers with so many bytes and weights takes
//
//	step_us + layers · layer_us + bytes / read_gb_s + weights · ms_per_gweight(r) + attention
type Cost struct {
	StepUS  float64 `json:"step_us"`            // of a step, whatever its layers, in microseconds
	LayerUS float64 `json:"layer_us,omitempty"` // of each layer
	// ReadGBs is how fast a step of one row reads weights and states, in 10⁹ bytes a second.
	ReadGBs float64 `json:"read_gb_s"`
	// Rows are what steps of more rows cost beyond one of one row, ascending; between them lines are drawn.
	Rows []RowCost `json:"rows"`
	// AttentionGMACs is the rate of attention over cached positions, in 10⁹ products a second.
	AttentionGMACs float64 `json:"attention_gmac_s"`
}

// RowCost is what a step of so many rows costs beyond one of one row.
type RowCost struct {
	Rows         int     `json:"rows"`
	MSPerGWeight float64 `json:"ms_per_gweight"` // milliseconds for 10⁹ weights
}

// Path is a way for data.
type Path struct {
	RoundTripUS float64 `json:"round_trip_us"` // of an empty message there and back
	GBs         float64 `json:"gb_s"`          // 10⁹ bytes a second
	Origin      Origin  `json:"origin,omitempty"`
}

// Link is a path between two hosts. Kind names one of the table, such as 1GbE, when there are no figures.
type Link struct {
	A    string `json:"a"`
	B    string `json:"b"`
	Kind string `json:"kind,omitempty"`
	*Path
}

// ParseRig reads and completes a rig. Its errors name every field that is wrong.
func ParseRig(data []byte) (*Rig, error) {
	r := &Rig{}
	if err := decodeStrict(data, r); err != nil {
		return nil, fmt.Errorf("rig: %w", err)
	}
	if err := r.Complete(); err != nil {
		return nil, err
	}
	return r, nil
}

// ParseHost reads and completes one host of a rig.
func ParseHost(data []byte) (*Host, error) {
	h := Host{}
	if err := decodeStrict(data, &h); err != nil {
		return nil, fmt.Errorf("rig: hosts[0]: %w", err)
	}
	r := Rig{Hosts: []Host{h}}
	if err := r.Complete(); err != nil {
		return nil, err
	}
	return &r.Hosts[0], nil
}

// JSON writes the rig for people.
func (r *Rig) JSON() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(r); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// Complete fills in what the table knows and checks everything.
func (r *Rig) Complete() error {
	var errs []error
	fail := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("rig: %s: "+format, append([]any{field}, args...)...))
	}
	if len(r.Hosts) == 0 {
		fail("hosts", "there are none")
	}
	names := map[string]bool{}
	for i := range r.Hosts {
		h, at := &r.Hosts[i], fmt.Sprintf("hosts[%d]", i)
		switch {
		case h.Name == "":
			fail(at+".name", "is empty")
		case names[h.Name]:
			fail(at+".name", "%q is another host's as well", h.Name)
		}
		names[h.Name] = true
		if len(r.Hosts) > 1 && h.Address == "" {
			fail(at+".address", "is needed: there are other hosts")
		}
		if h.RoundUS == 0 {
			h.RoundUS = tableRoundUS
		}
		if !positive(h.RoundUS) {
			fail(at+".round_us", "is %v, must be more than 0", h.RoundUS)
		}
		if h.Border == nil {
			border := tableBorder
			h.Border = &border
		}
		h.Border.check(at+".border", fail)
		if len(h.Devices) == 0 {
			fail(at+".devices", "there are none")
		}
		own := map[string]bool{}
		for j := range h.Devices {
			d, at := &h.Devices[j], fmt.Sprintf("%s.devices[%d]", at, j)
			d.complete(at, fail)
			if own[d.Name] {
				fail(at+".name", "%q is another device's as well", d.Name)
			}
			own[d.Name] = true
		}
	}
	for i := range r.Links {
		l, at := &r.Links[i], fmt.Sprintf("links[%d]", i)
		for _, end := range []struct{ field, name string }{{".a", l.A}, {".b", l.B}} {
			if !names[end.name] {
				fail(at+end.field, "%q is no host of the rig", end.name)
			}
		}
		if l.A == l.B && l.A != "" {
			fail(at+".b", "%q is both ends", l.B)
		}
		if l.Path == nil {
			kind, ok := tableLinks[l.Kind]
			if !ok {
				fail(at+".kind", "%q is no link of the table (%s), and there are no figures", l.Kind, linkKinds())
				continue
			}
			l.Path = &kind
		}
		l.check(at, fail)
	}
	return errors.Join(errs...)
}

type failing func(field, format string, args ...any)

func (p *Path) check(at string, fail failing) {
	if !(p.RoundTripUS >= 0) || math.IsInf(p.RoundTripUS, 1) {
		fail(at+".round_trip_us", "is %v, must be at least 0", p.RoundTripUS)
	}
	if !positive(p.GBs) {
		fail(at+".gb_s", "is %v, must be more than 0", p.GBs)
	}
}

func positive(v float64) bool { return v > 0 && !math.IsInf(v, 1) }

// complete fills in what the table knows of a device and checks it.
func (d *Device) complete(at string, fail failing) {
	if name, err := device.Parse(d.Name); err != nil {
		fail(at+".name", "%v", err)
	} else {
		d.Name = name.String()
	}
	if d.Cost == nil || d.Memory == 0 && d.Free == 0 {
		card, ok := CardNamed(d.Card)
		switch {
		case !ok && d.Cost == nil:
			fail(at+".card", "%q is not in the table (%s), and there is no cost", d.Card, cardNames())
			return
		case !ok:
			fail(at+".free", "is needed: %q is no card of the table", d.Card)
			return
		}
		if d.Cost == nil {
			d.Cost, d.Origin = card.cost(), Table
		}
		if d.Memory == 0 && d.Free == 0 {
			d.Memory = card.Memory
		}
	}
	if d.Free == 0 {
		d.Free = max(d.Memory-1<<30, 0)
	}
	if d.Memory == 0 {
		d.Memory = d.Free
	}
	if d.Free > d.Memory {
		fail(at+".free", "is %s, more than the memory of %s", d.Free, d.Memory)
	}
	if d.Origin == "" {
		d.Origin = Measured
	}
	if d.Origin != Measured && d.Origin != Table {
		fail(at+".origin", "is %q, must be measured or table", d.Origin)
	}
	d.Cost.check(at+".cost", fail)
}

func (c *Cost) check(at string, fail failing) {
	for _, f := range []struct {
		name  string
		value float64
	}{{".step_us", c.StepUS}, {".layer_us", c.LayerUS}} {
		if !(f.value >= 0) || math.IsInf(f.value, 1) {
			fail(at+f.name, "is %v, must be at least 0", f.value)
		}
	}
	if !positive(c.ReadGBs) {
		fail(at+".read_gb_s", "is %v, must be more than 0", c.ReadGBs)
	}
	if !positive(c.AttentionGMACs) {
		fail(at+".attention_gmac_s", "is %v, must be more than 0", c.AttentionGMACs)
	}
	if len(c.Rows) == 0 {
		fail(at+".rows", "there are none")
	}
	before := RowCost{Rows: 1}
	for i, r := range c.Rows {
		switch at := fmt.Sprintf("%s.rows[%d]", at, i); {
		case r.Rows <= before.Rows:
			fail(at+".rows", "is %d, must be more than %d", r.Rows, before.Rows)
		case !(r.MSPerGWeight >= before.MSPerGWeight) || math.IsInf(r.MSPerGWeight, 1):
			fail(at+".ms_per_gweight", "is %v, must be at least %v: more rows do not cost less", r.MSPerGWeight,
				before.MSPerGWeight)
		}
		before = r
	}
}

// more is what a step of so many rows costs beyond one of one row, in seconds for each weight.
func (c *Cost) more(rows float64) float64 {
	x0, y0 := 1.0, 0.0
	for i, r := range c.Rows {
		x1, y1 := float64(r.Rows), r.MSPerGWeight
		if rows <= x1 || i == len(c.Rows)-1 {
			return max(0, y0+(y1-y0)*(rows-x0)/(x1-x0)) * 1e-12
		}
		x0, y0 = x1, y1
	}
	return 0
}

// link is the path between two hosts by their indices; the border within one. ok is false when there is none.
func (r *Rig) link(a, b int) (Path, bool) {
	if a == b {
		return *r.Hosts[a].Border, true
	}
	i := slices.IndexFunc(r.Links, func(l Link) bool {
		return l.A == r.Hosts[a].Name && l.B == r.Hosts[b].Name || l.A == r.Hosts[b].Name && l.B == r.Hosts[a].Name
	})
	if i < 0 {
		return Path{}, false
	}
	return *r.Links[i].Path, true
}

// seconds that a message of so many bytes takes there and its answer back.
func (p Path) seconds(bytes int64) float64 { return p.RoundTripUS*1e-6 + float64(bytes)/(p.GBs*1e9) }

// GMACs is the rate of products of a step with so many rows, in 10⁹ a second, weights in Q4_K.
func (c *Cost) GMACs(rows int) float64 {
	const bytes = 144.0 / 256 // of a weight
	return float64(rows) / (bytes/c.ReadGBs + c.more(float64(rows))*1e9)
}
