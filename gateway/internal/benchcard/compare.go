package benchcard

import (
	"fmt"
	"io"
	"reflect"
	"strings"
	"text/tabwriter"
)

// Compare prints how the second card relates to the first, server by server, after warnings about what makes them hard
// to compare.
func Compare(out io.Writer, a, b *Card) error {
	for _, warning := range Warnings(a, b) {
		fmt.Fprintln(out, "warning: "+warning)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\tA\tB\tB / A\t")
	for i := range min(len(a.Servers), len(b.Servers)) {
		x, y := &a.Servers[i], &b.Servers[i]
		fmt.Fprintf(w, "%s\t\t\t\t\n", title(x, y))
		other := map[string]float64{}
		for _, m := range y.measures() {
			other[m.name] = m.value
		}
		for _, m := range x.measures() {
			value, ok := other[m.name]
			if !ok || m.value == 0 || value == 0 {
				continue
			}
			ratio := value / m.value
			fmt.Fprintf(w, "  %s\t%s\t%s\t%.2f\t%s\n", m.name, number(m.value), number(value), ratio, m.judge(ratio))
		}
	}
	return w.Flush()
}

func title(a, b *Server) string {
	if a.Name == b.Name {
		return a.Name
	}
	return a.Name + " and " + b.Name
}

// measure is one number of a server.
type measure struct {
	name   string
	value  float64
	spread float64 // half of it, as a share of the value
	more   bool    // is better
}

// judge says in a word what a ratio means. What lies within the first card's spread, or within 2 %, means nothing.
func (m *measure) judge(ratio float64) string {
	switch change := ratio - 1; {
	case max(change, -change) <= max(m.spread, 0.02):
		return ""
	case (change > 0) == m.more:
		return "better"
	}
	return "worse"
}

// measures lists the numbers of a server, each under a name of its own.
func (s *Server) measures() []measure {
	var out []measure
	add := func(name string, v Spread, more bool) {
		m := measure{name: name, value: v.Median, more: more}
		if v.Median != 0 {
			m.spread = (v.Max - v.Min) / 2 / v.Median
		}
		out = append(out, m)
	}
	for _, r := range s.Rates {
		add(fmt.Sprintf("tokens/s, %s, %s", r.Class, shown(r.Mode)), r.TokensPerSec, true)
	}
	for _, t := range s.Together {
		name := fmt.Sprintf("%d at a time, %s", t.Requests, shown(t.Mode))
		add("tokens/s, "+name, t.TokensPerSec, true)
	}
	for _, p := range s.Pieces {
		add("first piece ms, "+shown(p.Mode), p.FirstMS, false)
		add("gap p50 ms, "+shown(p.Mode), Spread{Median: p.P50MS, Min: p.P50MS, Max: p.P50MS}, false)
		add("gap p99 ms, "+shown(p.Mode), Spread{Median: p.P99MS, Min: p.P99MS, Max: p.P99MS}, false)
	}
	for _, p := range s.Prompts {
		add(fmt.Sprintf("prompt of %d, tokens/s", p.Asked), p.TokensPerSec, true)
		add(fmt.Sprintf("prompt of %d, first token ms", p.Asked), p.ColdMS, false)
		add(fmt.Sprintf("prompt of %d, again ms", p.Asked), p.WarmMS, false)
	}
	return out
}

// Warnings says why two cards are hard to compare: other machines, models or plans, a busy machine, texts that differ.
func Warnings(a, b *Card) []string {
	var out []string
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	x, y := a.Machine, b.Machine
	if x.System != y.System || x.Processor != y.Processor || x.Cores != y.Cores {
		say("other machines: A %d × %s (%s), B %d × %s (%s)", x.Cores, x.Processor, x.System, y.Cores, y.Processor, y.System)
	}
	for i, c := range []*Card{a, b} {
		name := "AB"[i : i+1]
		if c.Machine.Load > busy*float64(c.Machine.Cores) {
			say("%s: the machine was busy, its load was %.1f at the start", name, c.Machine.Load)
		}
		for _, s := range c.Servers {
			if n := len(s.Texts.Different) + s.Texts.Omitted; n > 0 {
				say("%s: %d greedy answers of %s differ from one another", name, n, s.Name)
			}
		}
	}
	if !reflect.DeepEqual(a.Plan, b.Plan) {
		say("other plans: A %s, B %s", a.Plan.words(), b.Plan.words())
	}
	if len(a.Servers) != len(b.Servers) {
		say("A has %d servers, B %d: only the first are compared", len(a.Servers), len(b.Servers))
	}
	for i := range min(len(a.Servers), len(b.Servers)) {
		s, t := &a.Servers[i], &b.Servers[i]
		if m, n := s.modelWords(), t.modelWords(); m != n {
			say("other models: A %s, B %s", m, n)
		}
		if m, n := s.deviceWords(), t.deviceWords(); m != n {
			say("other devices: A %s, B %s", m, n)
		}
	}
	return out
}

// busy is the load per core from which a machine that is about to measure was not idle.
const busy = 0.5

func (p Plan) words() string {
	return fmt.Sprintf("%s (%d repeats, answers of %d tokens, %d prompts a class, %.3g s for several at a time)", p.Kind,
		p.Repeats, p.Tokens, p.PerClass, p.Seconds)
}

func (s *Server) modelWords() string {
	if len(s.Models) == 0 {
		return s.Model
	}
	var out []string
	for _, m := range s.Models {
		out = append(out, strings.TrimSpace(fmt.Sprintf("%s %s %.12s", m.Role, m.Name, m.Digest)))
	}
	return strings.Join(out, ", ")
}

func (s *Server) deviceWords() string {
	var out []string
	for _, m := range s.Models {
		out = append(out, m.Role+" on "+m.Device)
	}
	return strings.Join(out, ", ")
}
