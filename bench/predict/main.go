// Command predict prints the predicted steps of cards that were not measured, as the tables of
// docs/speed-log/predictions.md: 27B in Q4_K_M, from counts of bytes, instructions, matrix operations and launches.
package main

import (
	"fmt"
	"math"
	"os"
	"strings"
)

func main() {
	_, _ = fmt.Fprint(os.Stdout, tables())
}

// Counts of the 27B, which no card changes.
const (
	weightGB      = 16.00                           // read once a step
	stateGB       = 0.302                           // DeltaNet's states, read and written
	rowOps        = 51.2e9                          // of products, a row
	attentionOps  = 16 * 24 * 4 * 256               // of all layers, a row and cached position
	kvHeads       = 16 * 4                          // of all layers
	queriesAHead  = 6                               // query heads of a key head
	halfPosition  = kvHeads * 2 * 256 * 2           // bytes of a position in F16
	codesPosition = kvHeads * 2 * (256 + 8*2)       // in Q8_0
	unpackPerItem = 7.0 / 4 / 32                    // instructions of a warp a value of Q8_0
	launches      = 649                             // of a step, one an operation: 10 a layer and 9 beside them
	chunk         = 512                             // rows of a prompt's piece
	slab          = 128                             // rows of a pass over the weights on AMD's cards
	tiles         = (17.4e9 + 4.0e9 + 4.2e9) / 4096 // of 16 outputs x 256 inputs
)

// Warp instructions of all products of a step, by columns: docs/speed-log/predictions.md, "Instructions".
var issued = []struct {
	columns int
	count   float64
}{{8, 1.75e9}, {16, 2.21e9}, {24, 2.73e9}, {32, 3.22e9}, {64, 5.08e9}}

// Cycles of a SIMD for a tile of 16 x 256, by columns: 16 counted by the simulator, 32 by the compile probe for gfx1100
// with the simulator's excess over it at 16, a slab of 128 by the simulator for the types' shares
// (docs/speed-log/gpu-matmul.md).
const cycles16, cycles32, cyclesSlab = 1050, 1780 * 1050 / 862, 5861

// What is measured on an H200 beside products, ms at 16 and at 23 rows; its clock, processors x clock and bandwidth.
var (
	deltaMS, attendMS, smallMS = map[int]float64{16: 0.25, 23: 0.44}, 0.21, map[int]float64{16: 0.12, 23: 0.22}
)

const (
	commitMS             = 0.10
	statesMS             = 48 * 0.081 // of the delta rule, a prompt's piece
	h200Clock, h200Work  = 1.94, 256.0
	h200GBs              = 3810.0
	attentionShare       = 0.5  // of a matrix rate that attention of a step reaches
	attentionMemoryShare = 0.66 // of bandwidth: one row at 32K on the H200
	promptShare          = 0.5  // of the bound that products of prompts reach
	promptAttentionShare = 0.14 // of the matrix rate, as on the H200 by mma.sync
)

type card struct {
	name        string
	amd         bool
	gbs         float64 // achievable
	share       float64 // of it that products reach
	nodeUS      float64
	issue       float64 // instructions of warps a second; AMD: cycles of SIMDs
	int8, half  float64 // operations a second of matrix instructions
	clock, work float64 // GHz, processors x GHz
	treeQueries int     // of a block of attention
	decides     string
}

var cards = []card{
	{"RTX 3090", false, 861, 0.90, 1.3, 558e9, 284e12, 71e12, 1.70, 139, 48,
		"two super-blocks a warp in flight suffice with two blocks a processor"},
	{"RTX 4090", false, 927, 0.90, 1.2, 1290e9, 660e12, 165e12, 2.52, 322, 48, "memory alone"},
	{"RTX 5090", false, 1631, 0.88, 1.2, 1640e9, 838e12, 210e12, 2.41, 410, 48,
		"the rate of `mma.sync` for bytes on sm_120 is as listed; ends of small matrices weigh twice"},
	{"7900 XTX", true, 864, 0.82, 3.9, 461e9, 122.8e12, 122.8e12, 2.4, 230, 96,
		"matrix and vector instructions of different waves do not overlap; 82 % of bandwidth is to be had"},
	{"Strix Halo", true, 215, 0.85, 3.9, 232e9, 61.8e12, 61.8e12, 2.9, 116, 96,
		"215 GB/s of the memory that it shares with the processor; prompts: as the 7900 XTX"},
}

// products returns ms of all products of a step.
func (c card) products(rows int) float64 {
	memory := weightGB / (c.gbs * c.share) * 1e3
	if c.amd {
		cycles := float64(cycles16)
		if rows > 16 {
			cycles = cycles32
		}
		return math.Max(memory, cycles*tiles/c.issue*1e3)
	}
	for _, i := range issued {
		if rows <= i.columns {
			return math.Max(memory, i.count/c.issue*1e3)
		}
	}
	panic("rows of a step")
}

// attention returns ms of attention over `context` cached positions, of all layers.
func (c card) attention(rows, context int, codes bool) float64 {
	queries := rows * queriesAHead
	padded := (queries + 15) / 16 * 16
	passes := 1
	if rows > 1 {
		passes = (queries + c.treeQueries - 1) / c.treeQueries
	}
	bytes, unpack := float64(halfPosition), 0.0
	if codes {
		bytes = codesPosition
		unpack = unpackPerItem * kvHeads * 2 * 256 * float64(passes*context) / c.issue * 1e3
	}
	// The first pass comes from memory, the others from caches.
	memory := bytes * float64(context) / (c.gbs * 1e9 * attentionMemoryShare) * 1e3
	matrix := attentionOps * float64(padded) / queriesAHead * float64(context) / (c.half * attentionShare) * 1e3
	return math.Max(memory, matrix+unpack)
}

// nodes returns the launches of a step. On AMD's cards some also run the operation after them: of 48 layers of DeltaNet
// and 16 of attention, 5 and 6 nodes are left at one row, 7 and 8 up to 16, 9 and 10 up to 24; at one row, the norm
// before the first layer follows no product (native/tests/gpu_followed_test.cpp counts them).
func (c card) nodes(rows int) float64 {
	switch {
	case c.amd && rows == 1:
		return 48*5 + 16*6 + 9 + 1
	case c.amd && rows <= 16:
		return 48*7 + 16*8 + 9
	case c.amd && rows <= 24:
		return 48*9 + 16*10 + 9
	}
	return launches
}

func (c card) step(rows, context int, codes bool) float64 {
	ms := c.products(rows) + stateGB/c.gbs*1e3 + c.nodes(rows)*c.nodeUS/1e3 + c.attention(rows, context, codes)
	if rows == 1 {
		return ms
	}
	measured := 16
	if rows > 16 {
		measured = 23
	}
	part := float64(rows) / float64(measured)
	ms += part * deltaMS[measured] * h200Clock / c.clock
	ms += part * (attendMS + smallMS[measured]) * h200Work / c.work
	return ms + part*commitMS*h200GBs/c.gbs
}

// prefill returns ms of a prompt.
func (c card) prefill(tokens int) float64 {
	pieces := float64(tokens) / chunk
	var products float64
	if c.amd {
		products = chunk / slab * math.Max(weightGB/(c.gbs*c.share)*1e3, cyclesSlab*tiles/c.issue*1e3)
	} else {
		issue := chunk / 64 * issued[len(issued)-1].count / c.issue
		products = math.Max(issue, chunk*rowOps/c.int8) / promptShare * 1e3
	}
	attention := attentionOps * float64(tokens) * float64(tokens) / 2 / (c.half * promptAttentionShare) * 1e3
	return pieces*(products+statesMS*h200Work/c.work+launches*c.nodeUS/1e3) + attention
}

// tables returns all tables in Markdown.
func tables() string {
	var b strings.Builder
	rows := []int{1, 8, 16, 23}
	for _, t := range []struct {
		context int
		codes   bool
		title   string
	}{{1024, false, "1K in F16"}, {32768, false, "32K in F16"}, {32768, true, "32K in Q8_0"}} {
		fmt.Fprintf(&b, "| Step, ms, context %s | 1 row | 8 | 16 | 23 |\n|---|---|---|---|---|\n", t.title)
		for _, c := range cards {
			fmt.Fprintf(&b, "| %s |", c.name)
			for _, n := range rows {
				fmt.Fprintf(&b, " %.1f |", c.step(n, t.context, t.codes))
			}
			b.WriteString("\n")
		}
		b.WriteString("\n")
	}
	b.WriteString("| Prompt, ms | 512 tokens | 8,192 | What decides steps and prompts |\n|---|---|---|---|\n")
	for _, c := range cards {
		fmt.Fprintf(&b, "| %s | %.0f | %.0f | %s |\n", c.name, c.prefill(chunk), c.prefill(8192), c.decides)
	}
	return b.String()
}
