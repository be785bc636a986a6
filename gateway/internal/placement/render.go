package placement

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tandem-inference/tandem/services/config"
)

// Command is what is to be run on a host.
type Command struct {
	Host string   `json:"host"`
	Args []string `json:"args"` // the program's name first
}

// String writes the command for a shell.
func (c *Command) String() string {
	var words []string
	for _, a := range c.Args {
		if strings.ContainsAny(a, " \t\n'\"\\$`&|;<>()*?#~") || a == "" {
			a = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
		words = append(words, a)
	}
	return strings.Join(words, " ")
}

// Ports of workers on other hosts: stages from the first on, drafts at the other one.
const (
	stagePort    = 8210
	draftPort    = 8220
	registryPort = 8104
)

// Flags are those of tandem serve that make a layout, without the models; all devices are of the head's host.
func (p *Plan) Flags() []string {
	l, t := &p.Best.Layout, p.Task
	head := l.Stages[0].Host
	name := func(at Place) string { return p.Rig.Hosts[at.Host].Devices[at.Device].Name }
	var own []string
	for _, st := range l.Stages {
		if st.Host == head {
			own = append(own, name(st.Place))
		}
	}
	var args []string
	add := func(flag, value string) { args = append(args, flag, value) }
	if len(l.Stages) == 1 {
		add("--target-device", own[0])
	} else {
		add("--target-devices", strings.Join(own, ","))
		add("--target-layer-split", l.split())
	}
	if l.Draft != nil && l.Draft.Host == head {
		add("--draft-device", name(*l.Draft))
	}
	if l.Scorer != nil {
		add("--prefill-device", name(*l.Scorer))
	}
	add("--max-ctx", fmt.Sprint(t.Context))
	add("--lanes", fmt.Sprint(t.Lanes))
	add("--cache-type-k", l.KV)
	add("--cache-type-v", l.KV)
	if l.Draft != nil {
		add("--draft-cache-type", l.KV)
		add("--ddtree-budget", fmt.Sprint(l.TreeRows-1))
	}
	return args
}

// split writes the layers of the stages as --target-layer-split takes them.
func (l *Layout) split() string {
	var layers []string
	for _, st := range l.Stages {
		layers = append(layers, fmt.Sprint(st.Last-st.First))
	}
	return strings.Join(layers, ",")
}

// Commands make the layout: those of other hosts first.
func (p *Plan) Commands() []Command {
	l, t := &p.Best.Layout, p.Task
	head := l.Stages[0].Host
	host := func(i int) *Host { return &p.Rig.Hosts[i] }
	var out []Command
	var addresses []string
	for i, st := range l.Stages {
		if st.Host == head {
			continue
		}
		h := host(st.Host)
		address := fmt.Sprintf("%s:%d", h.Address, stagePort+i)
		addresses = append(addresses, address)
		out = append(out, Command{h.Name, []string{"worker-target", "--model", t.Target.Path, "--device",
			h.Devices[st.Device].Name, "--stage", fmt.Sprintf("%d/%d", i+1, len(l.Stages)), "--target-layer-split", l.split(),
			"--listen", address}})
	}
	serve := []string{"tandem", "serve", t.Target.Path}
	if l.Draft != nil && l.Draft.Host == head {
		serve = append(serve, "--draft", t.Draft.Path)
	}
	if l.Scorer != nil {
		serve = append(serve, "--prefill-drafter", t.Scorer.Path)
	}
	serve = append(serve, p.Flags()...)
	if len(addresses) > 0 {
		serve = append(serve, "--target-stages", strings.Join(addresses, ","))
	}
	if l.Draft != nil && l.Draft.Host != head {
		h, registry := host(l.Draft.Host), fmt.Sprintf("%s:%d", host(head).Address, registryPort)
		serve = append(serve, "--registry-listen", registry)
		out = append(out, Command{host(head).Name, serve}, Command{h.Name, []string{"worker-draft", "--model", t.Draft.Path,
			"--device", h.Devices[l.Draft.Device].Name, "--gateway", registry, "--listen",
			fmt.Sprintf("%s:%d", h.Address, draftPort), "--max-ctx", fmt.Sprint(t.Context), "--lanes", fmt.Sprint(t.Lanes),
			"--cache-type-k", l.KV, "--cache-type-v", l.KV}})
		return out
	}
	return append(out, Command{host(head).Name, serve})
}

// place names a device, with its host when there are others.
func (p *Plan) place(at Place) string {
	h := &p.Rig.Hosts[at.Host]
	if len(p.Rig.Hosts) == 1 {
		return h.Devices[at.Device].Name
	}
	return h.Name + "/" + h.Devices[at.Device].Name
}

// String says which devices run what, in a line.
func (p *Plan) describe(l *Layout) string {
	var parts []string
	for _, st := range l.Stages {
		if len(l.Stages) == 1 {
			parts = append(parts, "all layers on "+p.place(st.Place))
		} else {
			parts = append(parts, fmt.Sprintf("%s on %s", layers(st.Last-st.First), p.place(st.Place)))
		}
	}
	if l.Draft != nil {
		parts = append(parts, "draft on "+p.place(*l.Draft))
	} else if p.Task.Draft != nil {
		parts = append(parts, "no draft")
	}
	return strings.Join(parts, ", ")
}

func layers(n int) string {
	if n == 1 {
		return "1 layer"
	}
	return fmt.Sprintf("%d layers", n)
}

// Text writes the plan for people.
func (p *Plan) Text(out io.Writer) error {
	var table bytes.Buffer
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	t, l := p.Task, &p.Best.Layout
	fmt.Fprintf(w, "%s", t.Target.Name)
	if t.Draft != nil {
		fmt.Fprintf(w, ", draft %s", t.Draft.Name)
	}
	if t.Scorer != nil {
		fmt.Fprintf(w, ", scorer %s", t.Scorer.Name)
	}
	fmt.Fprintf(w, "\n%d request(s) at a time of at most %d tokens, keys and values in %s", t.Lanes, t.Context, l.KV)
	if l.Draft != nil {
		fmt.Fprintf(w, ", trees of %d rows", l.TreeRows)
	}
	fmt.Fprint(w, "\n\nDEVICE\tCARD\tRUNS\tMEMORY\tFREE\tFIGURES\n")
	s := newSearch(p.Rig, t)
	var details []string
	for _, at := range s.used(l) {
		d := s.device(at)
		for i, u := range s.uses(l, at, t.Context, false) {
			if i == 0 {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", p.place(at), d.Card, u.What, gb(u.Bytes), gb(int64(d.Free)), d.Origin)
			} else {
				fmt.Fprintf(w, "\t\t%s\t%s\t\t\n", u.What, gb(u.Bytes))
			}
			details = append(details, fmt.Sprintf("  %s of %s: %s\n", u.What, p.place(at), parts(u.Memory)))
		}
	}
	fmt.Fprintln(w)
	for _, d := range details {
		fmt.Fprint(w, d)
	}
	fmt.Fprintln(w)
	p.predictions(w)
	fmt.Fprintln(w)
	fmt.Fprintf(w, "Chosen for the shortest request of %d prompt and %d answer tokens: %s.\n", t.Prompt, t.Answer,
		seconds(p.Best.Figures.Reference))
	if l.Draft != nil {
		fmt.Fprintf(w, "Assumed: a round keeps %.3g tokens of a chain of %d rows, %.3g of these trees (--accepted).\n",
			t.Accepted, t.chainRows(), t.kept(l.TreeRows))
	}
	if len(p.Others) > 0 {
		fmt.Fprint(w, "\nINSTEAD\tREQUEST\tPLAIN, 1K\tWITH DRAFT, 1K\tFIRST TOKEN, 4K\n")
		for _, c := range p.Others {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", p.describe(&c.Layout), seconds(c.Figures.Reference),
				rate(c.Figures.Plain1K), rate(c.Figures.Spec1K), seconds(c.Figures.First4K))
		}
	}
	fmt.Fprintln(w)
	for _, note := range p.Warnings {
		fmt.Fprintf(w, "Note: %s.\n", note)
	}
	if len(p.Warnings) > 0 {
		fmt.Fprintln(w)
	}
	for _, c := range p.Commands() {
		if len(p.Rig.Hosts) > 1 {
			fmt.Fprintf(w, "On %s:\n", c.Host)
		}
		fmt.Fprintf(w, "  %s\n", &c)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for line := range strings.Lines(table.String()) {
		if _, err := fmt.Fprintln(out, strings.TrimRight(line, " \n")); err != nil {
			return err
		}
	}
	return nil
}

// predictions writes the table of rates.
func (p *Plan) predictions(w io.Writer) {
	f := &p.Best.Figures
	fmt.Fprint(w, "PREDICTED\t1K CONTEXT\t32K CONTEXT\tFIRST TOKEN OF\t4K PROMPT\t16K PROMPT\n")
	fmt.Fprintf(w, "plain, tokens/s\t%s\t%s\t\t%s\t%s\n", rate(f.Plain1K), rate(f.Plain32K), seconds(f.First4K),
		seconds(f.First16K))
	if p.Best.Layout.Draft != nil {
		fmt.Fprintf(w, "with draft, tokens/s\t%s\t%s\t\t\t\n", rate(f.Spec1K), rate(f.Spec32K))
	}
}

// parts are the largest purposes of an engine's memory.
func parts(m Memory) string {
	var out []string
	for _, part := range []struct {
		name  string
		bytes int64
	}{{"weights", m.Weights}, {"K/V", m.KV}, {"states", m.State + m.Replay}, {"features", m.Features},
		{"to work in", m.Scratch}, {"driver", m.Process}} {
		if part.bytes > 0 {
			out = append(out, fmt.Sprintf("%s %s", part.name, gb(part.bytes)))
		}
	}
	return strings.Join(out, ", ")
}

func gb(n int64) string { return config.Size(n).Human() }

func rate(r float64) string {
	switch {
	case r == 0:
		return "–"
	case r < 10:
		return fmt.Sprintf("%.2g", r)
	}
	return fmt.Sprintf("%.0f", r)
}

func seconds(s float64) string {
	switch {
	case s == 0:
		return "–"
	case s < 1:
		return fmt.Sprintf("%.0f ms", s*1000)
	case s < 100:
		return fmt.Sprintf("%.3g s", s)
	}
	return time.Duration(s * float64(time.Second)).Round(time.Second).String()
}

// planJSON is a plan for programs.
type planJSON struct {
	Target  string   `json:"target"`
	Draft   string   `json:"draft,omitempty"`
	Scorer  string   `json:"scorer,omitempty"`
	Context int64    `json:"max_ctx"`
	Lanes   int64    `json:"concurrent"`
	Assumed assumed  `json:"assumed"`
	Best    layout   `json:"best"`
	Others  []layout `json:"others,omitempty"`
	Longest int64    `json:"longest_context"`

	Warnings []string  `json:"warnings,omitempty"`
	Commands []Command `json:"commands"`
}

type assumed struct {
	Prompt   int64   `json:"prompt_tokens"`
	Answer   int64   `json:"answer_tokens"`
	Accepted float64 `json:"accepted"`
}

type layout struct {
	Stages    []stage     `json:"stages"`
	Draft     string      `json:"draft,omitempty"`
	Scorer    string      `json:"scorer,omitempty"`
	KV        string      `json:"cache_type"`
	TreeRows  int         `json:"tree_rows,omitempty"`
	Memory    []memory    `json:"memory"`
	Measured  bool        `json:"measured"` // every figure was measured, none is from the table
	Predicted predictions `json:"predicted"`
}

type stage struct {
	Device string `json:"device"`
	First  int    `json:"first_layer"`
	Last   int    `json:"last_layer"` // the one after the last
}

type memory struct {
	Device string `json:"device"`
	Taken  int64  `json:"taken_bytes"`
	Free   int64  `json:"free_bytes"`
}

type predictions struct {
	Reference float64 `json:"reference_s"`
	Plain1K   float64 `json:"plain_1k_tokens_s"`
	Plain32K  float64 `json:"plain_32k_tokens_s,omitempty"`
	Spec1K    float64 `json:"draft_1k_tokens_s,omitempty"`
	Spec32K   float64 `json:"draft_32k_tokens_s,omitempty"`
	First4K   float64 `json:"first_token_4k_s"`
	First16K  float64 `json:"first_token_16k_s,omitempty"`
}

// MarshalJSON writes the plan for programs.
func (p *Plan) MarshalJSON() ([]byte, error) {
	t := p.Task
	out := planJSON{Target: t.Target.Name, Context: t.Context, Lanes: t.Lanes, Longest: p.Longest, Warnings: p.Warnings,
		Assumed: assumed{t.Prompt, t.Answer, t.Accepted}, Best: p.layout(&p.Best), Commands: p.Commands()}
	if t.Draft != nil {
		out.Draft = t.Draft.Name
	}
	if t.Scorer != nil {
		out.Scorer = t.Scorer.Name
	}
	for i := range p.Others {
		out.Others = append(out.Others, p.layout(&p.Others[i]))
	}
	return json.Marshal(out)
}

func (p *Plan) layout(c *Candidate) layout {
	l, f := &c.Layout, &c.Figures
	s := newSearch(p.Rig, p.Task)
	out := layout{KV: l.KV, TreeRows: l.TreeRows, Predicted: predictions{f.Reference, f.Plain1K, f.Plain32K, f.Spec1K,
		f.Spec32K, f.First4K, f.First16K}}
	for _, st := range l.Stages {
		out.Stages = append(out.Stages, stage{p.place(st.Place), st.First, st.Last})
	}
	if l.Draft != nil {
		out.Draft = p.place(*l.Draft)
	}
	if l.Scorer != nil {
		out.Scorer = p.place(*l.Scorer)
	}
	used := s.used(l)
	for _, at := range used {
		out.Memory = append(out.Memory, memory{p.place(at), s.taken(l, at, p.Task.Context), int64(s.device(at).Free)})
	}
	out.Measured = !slices.ContainsFunc(used, func(at Place) bool { return s.device(at).Origin != Measured })
	return out
}
