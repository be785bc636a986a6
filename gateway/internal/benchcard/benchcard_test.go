package benchcard

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-inference/tandem/services/racetest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var update = flag.Bool("update", false, "rewrite the goldens in testdata")

// golden compares with a file of testdata. They are made by go test ./gateway/internal/benchcard -update.
func golden(t *testing.T, name string, have []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, have, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(have)); diff != "" {
		t.Errorf("%s is not up to date: %s", name, diff)
	}
}

// sample is a card of a gateway and of another server.
func sample() *Card {
	plan := Quick()
	s := func(v float64) Spread { return Spread{v, v * 0.9, v * 1.1, 3} }
	overhead := Spread{0.4, 0.2, 1.5, 60}
	return &Card{
		Schema: Schema, Version: "v1.2.3", Commit: "0123456789abcdef", Taken: "2026-11-28T12:00:00Z", Plan: plan,
		Machine: Machine{System: "linux/amd64", Processor: "AMD <Test> & Co", Cores: 2, MemoryBytes: 8 << 30, Load: 0.2},
		Servers: []Server{{
			Name: "tandem", Address: "http://127.0.0.1:8000", Version: "v1.2.3", Model: "tiny", Modes: []string{"off", "auto"},
			Models: []Model{{Role: "target", Name: "Tiny", Digest: "fa6c08fb77681234", Device: "cpu", Backend: "cpu"}},
			Rates: []Rate{
				{Mode: "off", Class: "code", TokensPerSec: s(100)},
				{Mode: "auto", Class: "code", TokensPerSec: s(250), TokensPerStep: 3.5, Drafted: 100, Accepted: 70},
			},
			Pieces: []Pieces{{"off", s(5), 10, 12, 99}, {"auto", s(6), 14, 30, 44}},
			Together: []Together{{"off", 1, s(90), 10, 11}, {"auto", 1, s(200), 10, 14}, {"off", 4, s(300), 12, 20},
				{"auto", 4, s(400), 13, 25}},
			Prompts:    []Prompt{{512, 498, 490, s(100), s(4), s(4980)}},
			Texts:      Texts{Compared: 40, Different: []Different{{"auto", 4, "code", 0, 17}}},
			OverheadMS: &overhead,
		}, {
			Name: "other", Address: "http://127.0.0.1:9", Model: "m", Modes: []string{ModeDefault},
			Rates:    []Rate{{Mode: ModeDefault, Class: "code", TokensPerSec: s(80)}},
			Pieces:   []Pieces{{ModeDefault, s(7), 12, 15, 63}},
			Together: []Together{{ModeDefault, 1, s(70), 12, 15}, {ModeDefault, 4, s(110), 30, 40}},
			Prompts:  []Prompt{{Asked: 512, ColdMS: s(200), WarmMS: s(190)}},
			Texts:    Texts{Compared: 20}, Counted: true,
		}},
	}
}

func TestCardIsWritten(t *testing.T) {
	c := sample()
	path := filepath.Join(t.TempDir(), "card.json")
	if err := c.WriteJSON(path); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "card.json", data)
	again, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(c, again); diff != "" {
		t.Error(diff)
	}
	var table bytes.Buffer
	if err := c.Write(&table); err != nil {
		t.Fatal(err)
	}
	golden(t, "card.txt", table.Bytes())
	if err := c.Err(); !errors.Is(err, ErrTexts) {
		t.Errorf("%v, though an answer differs", err)
	}
	c.Servers[0].Texts.Different, c.Servers[1].Texts.Different = nil, []Different{{Mode: ModeDefault}}
	if err := c.Err(); err != nil {
		t.Errorf("%v, but only the other server's answers differ", err)
	}
}

func TestPictureIsXML(t *testing.T) {
	path := filepath.Join(t.TempDir(), "card.svg")
	if err := sample().WriteSVG(path); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	bars, texts := 0, ""
	for d := xml.NewDecoder(bytes.NewReader(data)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch x := token.(type) {
		case xml.StartElement:
			if x.Name.Local == "rect" {
				bars++
			}
			for _, a := range x.Attr {
				if strings.Contains(a.Value, "http") && a.Name.Local != "xmlns" {
					t.Errorf("needs %s", a.Value)
				}
			}
		case xml.CharData:
			texts += string(x) + "\n"
		}
	}
	if bars != 1+3+6+4 {
		t.Errorf("%d rectangles", bars)
	}
	for _, want := range []string{"AMD <Test> & Co", "250 ±10%", "prefers-color-scheme:dark", "498, tandem"} {
		if !strings.Contains(texts, want) {
			t.Errorf("lacks %q", want)
		}
	}
}

func TestCompare(t *testing.T) {
	a, b := sample(), sample()
	b.Servers[0].Rates[0].TokensPerSec = Spread{Median: 150}
	b.Servers[0].Rates[1].TokensPerSec = Spread{Median: 240} // within the spread
	b.Servers[0].Prompts[0].ColdMS = Spread{Median: 130}
	b.Servers[1].Pieces[0].P99MS = 7.5
	b.Servers = append(b.Servers, Server{Name: "third"})
	b.Machine = Machine{System: "linux/arm64", Processor: "Other", Cores: 4, Load: 3}
	b.Servers[0].Models[0].Digest, b.Servers[0].Models[0].Device = "0000", "cuda:0"
	b.Plan.Tokens = 128
	var out bytes.Buffer
	if err := Compare(&out, a, b); err != nil {
		t.Fatal(err)
	}
	golden(t, "compare.txt", out.Bytes())
	if w := Warnings(a, a); len(w) != 2 { // its answers that differ, in both
		t.Errorf("a card and itself: %q", w)
	}
}

func TestReadRefuses(t *testing.T) {
	for text, want := range map[string]string{
		`{`: "unexpected", `{"schema":"tandem-bench/9","servers":[{}]}`: `schema is "tandem-bench/9"`,
		`{"schema":"` + Schema + `"}`: "has no server", strings.Repeat(" ", mostCard+1): "has more than",
	} {
		path := filepath.Join(t.TempDir(), "card.json")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(path); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if _, err := Read(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a file that is not there was read")
	}
}

// scripted answers after the same times always: the first piece after 100 ms, nine more at 50 ms each.
type scripted struct {
	mu    sync.Mutex
	asked []Question
	say   func(Question) (string, error)
	usage bool
}

func (s *scripted) ask(ctx context.Context, q Question) (Reply, error) {
	s.mu.Lock()
	s.asked = append(s.asked, q)
	s.mu.Unlock()
	text, err := "an answer", ctx.Err()
	if s.say != nil && err == nil {
		text, err = s.say(q)
	}
	r := Reply{Text: text, Total: 600 * time.Millisecond}
	for i := range 10 {
		r.Pieces = append(r.Pieces, time.Duration(100+50*i)*time.Millisecond)
	}
	if s.usage {
		r.PromptTokens, r.Tokens, r.CachedTokens, r.ServerMS = 400, 19, 390, 598
		if q.Mode == "auto" {
			r.Steps, r.Drafted, r.Accepted = 10, 20, 9
		}
	}
	return r, err
}

func (s *scripted) endpoint(context int, modes ...string) Endpoint {
	return Endpoint{Name: "s", Address: "there", Ask: s.ask, Describe: describedAs(context, modes)}
}

func describedAs(limit int, modes []string) func(context.Context, *Server) (Limits, error) {
	return func(_ context.Context, s *Server) (Limits, error) {
		if modes != nil {
			s.Modes = modes
		}
		return Limits{limit}, nil
	}
}

var small = Plan{Kind: "test", Repeats: 2, BudgetS: 60, Tokens: 8, PerClass: 2, Requests: []int{1, 3},
	PromptTokens: []int{400, 4000}}

func TestRun(t *testing.T) {
	s := &scripted{usage: true}
	servers, err := Run(t.Context(), small, []Endpoint{s.endpoint(1000, "off", "tree", "auto")}, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	have := servers[0]
	for _, r := range have.Rates {
		// 18 tokens follow the first within 450 ms.
		if diff := cmp.Diff(Spread{40, 40, 40, 2}, r.TokensPerSec); diff != "" {
			t.Errorf("%s, %s: %s", r.Mode, r.Class, diff)
		}
		if r.Mode == "auto" && (r.TokensPerStep != 1.9 || 2*r.Accepted >= r.Drafted) {
			t.Errorf("%+v", r)
		}
	}
	if len(have.Rates) != 3*6 || len(have.Together) != 2*2 || len(have.Pieces) != 3 {
		t.Errorf("%d rates, %d at a time, %d pieces", len(have.Rates), len(have.Together), len(have.Pieces))
	}
	if p := have.Pieces[0]; p.P50MS != 50 || p.P99MS != 50 || p.FirstMS.Median != 100 || p.Gaps != 2*5*2*9 {
		t.Errorf("%+v", p)
	}
	// One that does not fit the context is left out.
	want := []Prompt{{400, 400, 390, Spread{100, 100, 100, 2}, Spread{100, 100, 100, 2}, Spread{4000, 4000, 4000, 2}}}
	if diff := cmp.Diff(want, have.Prompts); diff != "" {
		t.Error(diff)
	}
	if have.OverheadMS == nil || have.OverheadMS.Median < 1.99 || have.OverheadMS.Median > 2.01 || have.Counted {
		t.Errorf("overhead %v, counted %v", have.OverheadMS, have.Counted)
	}
	// Of the warm-up the plain answers are not compared with anything.
	single := 5 * 2 * 3
	if have.Texts.Different != nil || have.Texts.Compared < 5*2*2+2*single {
		t.Errorf("%+v", have.Texts)
	}
	cold := map[string]int{}
	for _, q := range s.asked {
		if q.MaxTokens == 1 {
			cold[q.Prompt]++
		}
	}
	if len(cold) != 1+2 {
		t.Errorf("%d long prompts, want one to calibrate with and one a repeat", len(cold))
	}
}

// TestBudget: after it nothing is repeated, but everything is measured once.
func TestBudget(t *testing.T) {
	plan := small
	plan.BudgetS = 0
	s := &scripted{}
	servers, err := Run(t.Context(), plan, []Endpoint{s.endpoint(0)}, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	have := servers[0]
	if have.Rates[0].TokensPerSec.N != 1 || have.Prompts[1].ColdMS.N != 1 || have.Together[1].TokensPerSec.N != 1 {
		t.Errorf("%+v", have)
	}
	// Without usage pieces are tokens: 9 follow the first within 450 ms.
	if !have.Counted || have.Rates[0].TokensPerSec.Median != 20 || have.OverheadMS != nil {
		t.Errorf("%+v", have)
	}
}

// TestBudgetOfSlowServers: with answers of a second each the whole run, warm-up included, keeps to its budget, and uses
// what there is.
func TestBudgetOfSlowServers(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		plan := small
		plan.Repeats = 5
		s := &scripted{}
		e := s.endpoint(0)
		e.Ask = func(ctx context.Context, q Question) (Reply, error) {
			time.Sleep(time.Second)
			return s.ask(ctx, q)
		}
		began := time.Now()
		servers, err := Run(t.Context(), plan, []Endpoint{e}, func(string) {})
		if err != nil {
			t.Fatal(err)
		}
		// 11 s of warm-up leave 49: 24.5 for passes of 10 s, 14.7 for those of 2 s, 9.8 for those of 4 s.
		have := servers[0]
		if took := time.Since(began); took.Seconds() > plan.BudgetS || have.Rates[0].TokensPerSec.N != 2 ||
			have.Together[0].TokensPerSec.N != 5 || have.Prompts[0].ColdMS.N != 2 {
			t.Errorf("%v: %d, %d and %d repeats", took, have.Rates[0].TokensPerSec.N, have.Together[0].TokensPerSec.N,
				have.Prompts[0].ColdMS.N)
		}
	})
}

func TestTextsThatDiffer(t *testing.T) {
	s := &scripted{say: func(q Question) (string, error) {
		if q.Mode == "auto" && strings.HasPrefix(q.Prompt, "Answer with JSON only: an") {
			return "an other", nil
		}
		return "an answer", nil
	}}
	servers, err := Run(t.Context(), small, []Endpoint{s.endpoint(0, "off", "auto")}, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	texts := servers[0].Texts
	if len(texts.Different) == 0 {
		t.Fatal("nothing was found")
	}
	want := Different{Mode: "auto", Requests: 1, Class: "json", Prompt: 0, Byte: 3}
	if diff := cmp.Diff(want, texts.Different[0]); diff != "" {
		t.Error(diff)
	}
	if len(texts.Different)+texts.Omitted > texts.Compared/2 {
		t.Errorf("%d of %d differ", len(texts.Different)+texts.Omitted, texts.Compared)
	}
	many := &scripted{say: func(q Question) (string, error) { return q.Mode, nil }}
	if servers, err = Run(t.Context(), small, []Endpoint{many.endpoint(0, "off", "auto")}, func(string) {}); err != nil {
		t.Fatal(err)
	}
	if texts := servers[0].Texts; len(texts.Different) != mostDifferent || texts.Omitted == 0 {
		t.Errorf("%d are listed, %d not", len(texts.Different), texts.Omitted)
	}
}

// TestFailure: the reason is that of the request that failed, not that others were given up for it.
func TestFailure(t *testing.T) {
	full := errors.New("the queue is full")
	var mu sync.Mutex
	running := 0
	plan := small
	plan.Requests = []int{3}
	s := &scripted{}
	s.say = func(q Question) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		if running++; running > 1+5*2+2*5*2+1 { // the second of those at a time
			return "", full
		}
		return "an answer", nil
	}
	if _, err := Run(t.Context(), plan, []Endpoint{s.endpoint(0)}, func(string) {}); !errors.Is(err, full) ||
		!strings.Contains(err.Error(), "several requests at a time") {
		t.Errorf("%v", err)
	}
	running = 100
	if _, err := Run(t.Context(), plan, []Endpoint{s.endpoint(0)}, func(string) {}); !errors.Is(err, full) ||
		!strings.Contains(err.Error(), "there") {
		t.Errorf("%v", err)
	}
}

func TestModes(t *testing.T) {
	for sources, want := range map[string]string{
		"": "off", "lookup": "off lookup auto", "draft lookup": "off chain tree auto",
	} {
		if have := strings.Join(modesOf(strings.Fields(sources)), " "); have != want {
			t.Errorf("%q: %s, want %s", sources, have, want)
		}
	}
}

func TestPromptsAreThere(t *testing.T) {
	list, err := classes(Full().PerClass)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, c := range list {
		if len(c.Prompts) != Full().PerClass {
			t.Errorf("%s has %d prompts", c.Name, len(c.Prompts))
		}
		for _, p := range c.Prompts {
			if seen[p] {
				t.Errorf("%s: %q is there twice", c.Name, p)
			}
			seen[p] = true
		}
	}
	if a, b := filler(50, 1), filler(50, 2); a == b || strings.HasPrefix(a, b[:16]) {
		t.Error("two fillers begin alike")
	}
}
