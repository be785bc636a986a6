package placement

import (
	"bytes"
	"errors"
	"flag"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/tandem-inference/tandem/services/config"
	"github.com/tandem-inference/tandem/services/racetest"
)

var update = flag.Bool("update", false, "write the golden files")

func rig(t *testing.T, name string) *Rig {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "rigs", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := ParseRig(data)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// big is the 27B with its draft, for a request of 32K.
func big(t *testing.T) *Task {
	t.Helper()
	return &Task{Target: described(t, "qwen-27b-q4_k_m"), Draft: described(t, "dflash-27b-q8_0"), Context: 32768, Lanes: 1,
		Prompt: 4096, Answer: 512, Accepted: 4}
}

// TestPlans compares plans of described rigs with files: go test ./gateway/internal/placement -update writes them.
func TestPlans(t *testing.T) {
	if racetest.Enabled {
		t.Skip("takes a minute under the race detector, and has one goroutine")
	}
	for _, tt := range []struct {
		name, rig string
		change    func(*Task)
	}{
		{"3090-and-7900xtx", "3090-and-7900xtx", func(*Task) {}},
		{"two-3090", "two-3090", func(*Task) {}},
		{"two-3090-eight-requests", "two-3090", func(k *Task) { k.Lanes = 8 }},
		{"3090-and-cpu", "3090-and-cpu", func(k *Task) { k.Scorer = described(t, "qwen3-0.6b-bf16") }},
		{"3090-and-cpu-131072", "3090-and-cpu", func(k *Task) { k.Context = 131072 }},
		{"laptop-and-box", "laptop-and-box", func(*Task) {}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			task := big(t)
			tt.change(task)
			p, err := Search(rig(t, tt.rig), task)
			if err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			if err := p.Text(&got); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("testdata", "plans", tt.name+".txt")
			if *update {
				if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), got.String()); d != "" {
				t.Error(d)
			}
		})
	}
}

// TestPredictionsAreThoseOfThePage: docs/speed-log/predictions.md has the steps of the 27B with 2K of context.
func TestPredictionsAreThoseOfThePage(t *testing.T) {
	target, draft := described(t, "qwen-27b-q4_k_m"), described(t, "dflash-27b-q8_0")
	for _, tt := range []struct {
		card                 string
		one, sixteen, others float64 // ms; others: 32 rows
		draft                float64
	}{
		{"RTX 3090", 22.1, 23.4, 24.3, 3.9}, {"RTX 4090", 20.4, 21.2, 21.6, 3.6}, {"RTX 5090", 12.1, 12.7, 13.1, 2.1},
		{"RX 7900 XTX", 25.9, 28, 35.5, 4.6}, {"Strix Halo", 92, 94, 96, 15.8},
	} {
		card, ok := CardNamed(tt.card)
		if !ok {
			t.Fatalf("%s is not in the table", tt.card)
		}
		c, s := card.cost(), target.sums()
		near := func(what string, got, want float64) {
			t.Helper()
			if math.Abs(got*1000/want-1) > 0.12 {
				t.Errorf("%s: %s takes %.1f ms, the page says %.1f", tt.card, what, got*1000, want)
			}
		}
		for rows, want := range map[float64]float64{1: tt.one, 16: tt.sixteen, 32: tt.others} {
			near("a step", c.seconds(target, &s, 0, 64, work{requests: 1, rows: rows, context: 1024, head: rows}), want)
		}
		p := newPredictor(&Rig{}, &Task{Target: target, Draft: draft})
		near("the draft", c.seconds(&p.draftTables, &p.draft, 0, 5, work{requests: 1, rows: 16, context: 1024, head: 16}),
			tt.draft)
	}
}

func TestNoFitSaysWhatWould(t *testing.T) {
	task := big(t)
	small := &Rig{Hosts: []Host{{Name: "box", Devices: []Device{{Name: "cuda:0", Card: "RTX 4070"}}}}}
	if err := small.Complete(); err != nil {
		t.Fatal(err)
	}
	_, err := Search(small, task)
	if !errors.Is(err, ErrNoFit) || !strings.Contains(err.Error(), "fewer bits a weight") {
		t.Errorf("a card of 12 GiB: %v", err)
	}
	one := &Rig{Hosts: []Host{{Name: "box", Devices: []Device{{Name: "cuda:0", Card: "RTX 3090"}}}}}
	if err := one.Complete(); err != nil {
		t.Fatal(err)
	}
	task.Lanes = 32
	if _, err = Search(one, task); !errors.Is(err, ErrNoFit) ||
		!strings.Contains(err.Error(), "one request at a time would fit") {
		t.Errorf("32 requests: %v", err)
	}
	task.Lanes, task.Context = 1, 262144
	task.Fixed.KV = "f16"
	if _, err = Search(one, task); !errors.Is(err, ErrNoFit) ||
		!strings.Contains(err.Error(), "a context of 65536 would fit") ||
		!strings.Contains(err.Error(), "another type of cached keys and values would fit") {
		t.Errorf("262144 positions in f16: %v", err)
	}
}

func TestBadRigs(t *testing.T) {
	for name, tt := range map[string]struct{ rig, want string }{
		"no JSON":     {`{`, "rig: unexpected EOF"},
		"unknown key": {`{"hosts":[],"colour":1}`, `unknown field "colour"`},
		"no hosts":    {`{}`, "rig: hosts: there are none"},
		"no name":     {`{"hosts":[{"devices":[{"name":"cpu","card":"H100"}]}]}`, "rig: hosts[0].name: is empty"},
		"no devices":  {`{"hosts":[{"name":"a"}]}`, "rig: hosts[0].devices: there are none"},
		"no device":   {`{"hosts":[{"name":"a","devices":[{"name":"gpu","card":"H100"}]}]}`, "rig: hosts[0].devices[0].name:"},
		"twice": {`{"hosts":[{"name":"a","devices":[{"name":"cpu","card":"H100"},{"name":"cpu","card":"H100"}]}]}`,
			`rig: hosts[0].devices[1].name: "cpu" is another device's as well`},
		"no card": {`{"hosts":[{"name":"a","devices":[{"name":"cpu","card":"abacus"}]}]}`,
			`rig: hosts[0].devices[0].card: "abacus" is not in the table (RTX 3060;`},
		"no memory": {`{"hosts":[{"name":"a","devices":[{"name":"cpu","card":"abacus","cost":{"step_us":1,"read_gb_s":1,
			"attention_gmac_s":1,"rows":[{"rows":512,"ms_per_gweight":1}]}}]}]}`,
			`rig: hosts[0].devices[0].free: is needed: "abacus" is no card of the table`},
		"more free": {`{"hosts":[{"name":"a","devices":[{"name":"cpu","card":"H100","memory":"1GiB","free":"2GiB"}]}]}`,
			"rig: hosts[0].devices[0].free: is 2GiB, more than the memory of 1GiB"},
		"costs": {`{"hosts":[{"name":"a","devices":[{"name":"cpu","card":"x","free":"1GiB","cost":{"step_us":-1,"read_gb_s":0,
			"attention_gmac_s":0,"rows":[{"rows":8,"ms_per_gweight":2},{"rows":8,"ms_per_gweight":2},{"rows":9,
			"ms_per_gweight":1}]}}]}]}`, "cost.step_us: is -1|cost.read_gb_s: is 0|cost.attention_gmac_s: is 0|" +
			"cost.rows[1].rows: is 8, must be more than 8|cost.rows[2].ms_per_gweight: is 1, must be at least 2"},
		"origin": {`{"hosts":[{"name":"a","devices":[{"name":"cpu","card":"H100","origin":"hearsay"}]}]}`, ""},
		"address": {`{"hosts":[{"name":"a","devices":[{"name":"cpu","card":"H100"}]},{"name":"b","address":"b","devices":[
			{"name":"cpu","card":"H100"}]}],"links":[{"a":"a","b":"c","kind":"string"}]}`,
			`hosts[0].address: is needed|links[0].b: "c" is no host|links[0].kind: "string" is no link of the table (10GbE, 1GbE, 2.5GbE)`},
		"link": {`{"hosts":[{"name":"a","address":"a","devices":[{"name":"cpu","card":"H100"}]}],
			"links":[{"a":"a","b":"a","round_trip_us":-1,"gb_s":0}]}`,
			`links[0].b: "a" is both ends|links[0].round_trip_us: is -1|links[0].gb_s: is 0`},
		"border": {`{"hosts":[{"name":"a","round_us":-2,"border":{"round_trip_us":1,"gb_s":0},"devices":[{"name":"cpu",
			"card":"H100"}]}]}`, "hosts[0].round_us: is -2|hosts[0].border.gb_s: is 0"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseRig([]byte(tt.rig))
			if tt.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			for _, want := range strings.Split(tt.want, "|") {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error %v, want %q", err, want)
				}
			}
		})
	}
}

func TestBadTasks(t *testing.T) {
	r := rig(t, "two-3090")
	for want, change := range map[string]func(*Task){
		"context: is 0":                        func(k *Task) { k.Context = 0 },
		"concurrent: is 0":                     func(k *Task) { k.Lanes = 0 },
		"accepted: is 17":                      func(k *Task) { k.Accepted = 17 },
		"is no draft of":                       func(k *Task) { k.Draft = k.Target },
		"split: has 3 layers, the model 64":    func(k *Task) { k.Fixed = Fixed{Stages: []Place{{}}, Split: []int{3}} },
		"split: has 2 numbers for 1 devices":   func(k *Task) { k.Fixed = Fixed{Stages: []Place{{}}, Split: []int{3, 61}} },
		"prompt: is -1, must be 1..16777216\n": func(k *Task) { k.Prompt, k.Answer = -1, 0 },
	} {
		task := big(t)
		change(task)
		if _, err := Search(r, task); err == nil || !strings.Contains(err.Error()+"\n", want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// small is a model of few layers, so that many plans are made quickly.
func small() (target, draft *Model) {
	shape := Shape{Name: "small", Arch: "qwen35", Mix: "Q4_K_M", Layers: 5, Hidden: 2048, FFN: 6144, Heads: 8, KVHeads: 2,
		HeadDim: 256, RopeDims: 64, Vocab: 65536, Context: 65536, AttentionEvery: 4,
		Delta: &DeltaShape{KeyHeads: 16, ValueHeads: 16, HeadDim: 128, ConvKernel: 4}}
	target, err := shape.Model()
	if err != nil {
		panic(err)
	}
	shape.AttentionEvery, shape.Delta, shape.Layers, shape.Vocab, shape.Block, shape.Captured = 0, nil, 2, 0, 16, 3
	if draft, err = shape.Model(); err != nil {
		panic(err)
	}
	return target, draft
}

// drawRig makes a rig of one or two hosts with up to three devices of the table.
func drawRig(t *rapid.T) *Rig {
	r := &Rig{}
	names := []string{"cuda:0", "hip:0", "cpu"}
	for h := range rapid.IntRange(1, 2).Draw(t, "hosts") {
		host := Host{Name: string(rune('a' + h)), Address: "h" + string(rune('a'+h))}
		for d := range rapid.IntRange(1, 2).Draw(t, "devices") {
			card := rapid.SampledFrom(cards).Draw(t, "card")
			free := config.Size(rapid.IntRange(64, 3000).Draw(t, "MiB")) << 20
			host.Devices = append(host.Devices, Device{Name: names[d], Card: card.Name, Memory: free, Free: free,
				Cost: card.cost(), Origin: Table})
		}
		r.Hosts = append(r.Hosts, host)
	}
	if len(r.Hosts) == 2 {
		r.Links = []Link{{A: "a", B: "b", Path: &Path{RoundTripUS: rapid.Float64Range(1, 1000).Draw(t, "µs"),
			GBs: rapid.Float64Range(0.01, 20).Draw(t, "GB/s")}}}
	}
	if err := r.Complete(); err != nil {
		t.Fatal(err)
	}
	return r
}

// TestPlanProperties: every layer is placed once and nothing is above its memory; more memory or a faster link never
// gives a slower plan.
func TestPlanProperties(t *testing.T) {
	target, draft := small()
	rapid.Check(t, func(t *rapid.T) {
		r := drawRig(t)
		task := &Task{Target: target, Context: rapid.Int64Range(512, 65536).Draw(t, "context"),
			Lanes: rapid.Int64Range(1, 4).Draw(t, "lanes"), Prompt: 2048, Answer: 256, Accepted: 4}
		if rapid.Bool().Draw(t, "draft") {
			task.Draft = draft
		}
		p, err := Search(r, task)
		if err != nil && !errors.Is(err, ErrNoFit) {
			t.Fatal(err)
		}
		before := math.Inf(1)
		if err == nil {
			before = p.Best.Figures.Reference
			check(t, p)
		}
		h := rapid.IntRange(0, len(r.Hosts)-1).Draw(t, "host")
		d := rapid.IntRange(0, len(r.Hosts[h].Devices)-1).Draw(t, "device")
		more := r.Hosts[h].Devices[d].Free
		r.Hosts[h].Devices[d].Free += more
		r.Hosts[h].Devices[d].Memory += more
		again := func(what string) {
			p, err := Search(r, task)
			switch {
			case err != nil && !math.IsInf(before, 1):
				t.Fatalf("with %s nothing fits any more: %v", what, err)
			case err == nil && p.Best.Figures.Reference > before*(1+1e-12):
				t.Fatalf("with %s the request takes %v s, before %v", what, p.Best.Figures.Reference, before)
			case err == nil:
				before = p.Best.Figures.Reference
			}
		}
		again("more memory")
		if len(r.Links) > 0 {
			r.Links[0].RoundTripUS /= 2
			r.Links[0].GBs *= 3
			again("a faster link")
		}
	})
}

func check(t *rapid.T, p *Plan) {
	for _, c := range append([]Candidate{p.Best}, p.Others...) {
		at := 0
		for _, st := range c.Layout.Stages {
			if st.First != at || st.Last <= st.First {
				t.Fatalf("stages %v", c.Layout.Stages)
			}
			at = st.Last
		}
		if at != len(p.Task.Target.Layers) {
			t.Fatalf("stages end at layer %d: %v", at, c.Layout.Stages)
		}
		s := newSearch(p.Rig, p.Task)
		for _, place := range s.places() {
			if taken := s.taken(&c.Layout, place, p.Task.Context); taken > int64(s.device(place).Free) {
				t.Fatalf("%d bytes on a device of %d", taken, s.device(place).Free)
			}
		}
	}
}
