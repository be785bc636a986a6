package placement

import (
	"maps"
	"slices"
	"strings"

	"github.com/tandem-inference/tandem/services/config"
)

// Card is a row of the table: public figures of a card, and shares of them that steps reach. docs/speed-log/
// predictions.md derives the shares; of all cards H100 alone was ever measured, so every plan marks these figures.
type Card struct {
	Name   string
	Memory config.Size
	// copyGBs is the bandwidth that copies reach, share what steps reach of it; 0.92 of the nominal where unknown.
	copyGBs, share float64
	// tflops of 16-bit matrices with sums of 32 bits; steps of 512 rows reach promptShare of it.
	tflops, promptShare float64
	// attentionShare of tflops, with 32K positions.
	attentionShare float64
	// nodeUS is the cost of an operation of a step, ten of which a layer has.
	nodeUS float64
	// small are the costs of 16, 23 and 32 rows beyond one, in milliseconds for 10⁹ weights.
	small [3]float64
}

// Costs of few rows, by kind of card, from the steps that docs/speed-log/predictions.md lists: 25.6 · 10⁹ weights.
var (
	smallAmpere = [3]float64{0.05, 0.07, 0.086}
	smallAda    = [3]float64{0.027, 0.035, 0.043} // and later
	smallRadeon = [3]float64{0.08, 0.30, 0.38}
	smallHopper = [3]float64{0.018, 0.045, 0.07}
)

const (
	promptShare = 0.40 // of the matrix rate: an H200 reaches 0.49 (native/SPEED.md), others were not measured
	gib         = 1 << 30
)

// cards of the table. Bandwidths are nominal times 0.92 but where predictions.md has a figure.
var cards = []Card{
	{"RTX 3060", 12 * gib, 331, 0.89, 25.5, promptShare, 0.5, 1.5, smallAmpere},
	{"RTX 3090", 24 * gib, 861, 0.89, 71, promptShare, 0.5, 1.3, smallAmpere},
	{"RTX 4070", 12 * gib, 464, 0.89, 58, promptShare, 0.5, 1.2, smallAda},
	{"RTX 4090", 24 * gib, 927, 0.89, 165, promptShare, 0.4, 1.2, smallAda},
	{"RTX 5090", 32 * gib, 1631, 0.87, 209, promptShare, 0.4, 1.2, smallAda},
	{"RX 7900 XTX", 24 * gib, 864, 0.82, 123, 0.3, 0.2, 3.9, smallRadeon},
	{"RX 9070 XT", 16 * gib, 589, 0.82, 195, 0.3, 0.2, 3.9, smallRadeon},
	{"Strix Halo", 96 * gib, 215, 0.85, 59, 0.3, 0.2, 3.9, [3]float64{0.08, 0.12, 0.16}},
	{"H100", 80 * gib, 3000, 0.80, 989, 0.41, 0.16, 0.9, smallHopper},
	// Eight or more cores of a desktop with AVX-512 or AVX-VNNI.
	{"CPU, dual-channel DDR5", 64 * gib, 65, 0.85, 0, 0, 0, 0.5, [3]float64{}},
}

// cpuGMACs is the rate of products of the table's processor, in 10⁹ a second: twice what two virtual cores of a server
// reach (docs/speed-log/cpu.md).
const cpuGMACs = 1000

// tableRoundUS is the time of a round in worker and gateway beside the engines: docs/speed-log/rounds.md.
const tableRoundUS = 300

// tableBorder is a border between two engines of one host: rows that both map, copied from and to cards by PCIe.
var tableBorder = Path{RoundTripUS: 100, GBs: 6, Origin: Table}

// tableLinks are nominal rates less what protocols take, and round trips of a small gRPC message through a switch.
var tableLinks = map[string]Path{
	"1GbE":   {RoundTripUS: 350, GBs: 0.117, Origin: Table},
	"2.5GbE": {RoundTripUS: 300, GBs: 0.29, Origin: Table},
	"10GbE":  {RoundTripUS: 200, GBs: 1.1, Origin: Table},
}

func linkKinds() string { return strings.Join(slices.Sorted(maps.Keys(tableLinks)), ", ") }

func cardNames() string {
	var names []string
	for _, c := range cards {
		names = append(names, c.Name)
	}
	return strings.Join(names, "; ")
}

// CardNamed finds a card of the table by its name, or by what a driver calls it.
func CardNamed(name string) (Card, bool) {
	fold := strings.ToLower(name)
	if fold == "" {
		return Card{}, false
	}
	for _, c := range cards {
		if strings.EqualFold(c.Name, name) {
			return c, true
		}
	}
	for _, c := range cards {
		// "NVIDIA GeForce RTX 3090", but not "… 3090 Ti".
		rest, found := strings.CutPrefix(fold[max(0, strings.Index(fold, strings.ToLower(c.Name))):], strings.ToLower(c.Name))
		if found && !strings.HasPrefix(rest, " ti") && !strings.HasPrefix(rest, " super") {
			return c, true
		}
	}
	return Card{}, false
}

// cost are the figures of a card as those of a device.
func (c *Card) cost() *Cost {
	out := &Cost{StepUS: 9 * c.nodeUS, LayerUS: 10 * c.nodeUS, ReadGBs: c.copyGBs * c.share}
	if c.tflops == 0 {
		out.AttentionGMACs = cpuGMACs / 4
		for _, rows := range []int{4, 64, 512} {
			out.Rows = append(out.Rows, RowCost{rows, 1000 * float64(rows-1) / cpuGMACs})
		}
		return out
	}
	out.AttentionGMACs = c.tflops / 2 * 1000 * c.attentionShare
	// Products of 512 rows are bound by arithmetic; what a step of one row takes to read the weights, 0.63 bytes each in
	// Q4_K_M, is part of their time.
	const prompt, bytes = 512, 0.63
	all := prompt * 1000 / (c.tflops / 2 * 1000 * c.promptShare)
	beyond := max(all-bytes*1000/out.ReadGBs, 10*c.small[2])
	for i, rows := range []int{16, 23, 32} {
		out.Rows = append(out.Rows, RowCost{rows, c.small[i]})
	}
	out.Rows = append(out.Rows, RowCost{64, min(3*c.small[2], beyond)}, RowCost{prompt, beyond})
	return out
}
