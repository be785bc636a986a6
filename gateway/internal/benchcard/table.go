package benchcard

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/tandem-inference/tandem/services/config"
)

// shownModes are the names of modes in tables.
var shownModes = map[string]string{ModePlain: "plain"}

func shown(mode string) string {
	if name, ok := shownModes[mode]; ok {
		return name
	}
	return mode
}

// number with three significant digits or so.
func number(v float64) string {
	switch a := math.Abs(v); {
	case v == 0:
		return "–"
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// String is the median and half of the spread in percent.
func (s Spread) String() string {
	if s.N < 2 || s.Median == 0 {
		return number(s.Median)
	}
	return fmt.Sprintf("%s ±%.0f%%", number(s.Median), 50*math.Abs((s.Max-s.Min)/s.Median))
}

// column of a table is a mode of a server.
type column struct {
	server *Server
	mode   string
}

// columns lists the modes of all servers.
func (c *Card) columns() []column {
	var out []column
	for i := range c.Servers {
		for _, mode := range c.Servers[i].Modes {
			out = append(out, column{&c.Servers[i], mode})
		}
	}
	return out
}

// title of a column: the mode, the name of a server that has only one.
func (c column) title() string {
	if c.mode == ModeDefault {
		return c.server.Name
	}
	return shown(c.mode)
}

func (c column) rate(class string) *Rate {
	for i, r := range c.server.Rates {
		if r.Mode == c.mode && r.Class == class {
			return &c.server.Rates[i]
		}
	}
	return nil
}

// steps reports whether a rate is of the column and has steps of several tokens.
func (c column) steps(r Rate) bool {
	return r.Mode == c.mode && c.mode != ModePlain && r.TokensPerStep > 0
}

func (c column) together(requests int) *Together {
	for i, t := range c.server.Together {
		if t.Mode == c.mode && t.Requests == requests {
			return &c.server.Together[i]
		}
	}
	return nil
}

// classNames are those of all servers, in the card's order.
func (c *Card) classNames() []string {
	var out []string
	for _, s := range c.Servers {
		for _, r := range s.Rates {
			if !slices.Contains(out, r.Class) {
				out = append(out, r.Class)
			}
		}
	}
	return out
}

// Write prints the card for people.
func (c *Card) Write(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(cells ...string) { fmt.Fprintln(w, strings.Join(cells, "\t")) }
	c.head(line)
	c.speeds(line)
	c.times(line)
	if err := w.Flush(); err != nil {
		return err
	}
	for i := range c.Servers {
		for _, note := range c.Servers[i].notes() {
			fmt.Fprintln(out, note)
		}
	}
	return nil
}

func (c *Card) head(line func(...string)) {
	line(fmt.Sprintf("tandem bench, %s, %s, version %s", c.Plan.Kind, c.Taken, c.Version))
	line("")
	memory := ""
	if c.Machine.MemoryBytes > 0 {
		memory = ", " + config.Size(c.Machine.MemoryBytes).Human()
	}
	line("client", fmt.Sprintf("%d × %s%s, load %.1f at the start", c.Machine.Cores, c.Machine.Processor, memory,
		c.Machine.Load))
	for _, s := range c.Servers {
		version := ""
		if s.Version != "" {
			version = ", version " + s.Version
		}
		line(s.Name, fmt.Sprintf("%s%s, model %s", s.Address, version, s.Model))
		for _, m := range s.Models {
			line("  "+m.Role, fmt.Sprintf("%s on %s, %.12s", m.Name, m.Device, m.Digest))
		}
	}
}

// speeds are the tables of tokens a second.
func (c *Card) speeds(line func(...string)) {
	columns := c.columns()
	titles, stepTitles := []string{"answers to"}, []string{}
	for _, col := range columns {
		titles = append(titles, col.title())
		if slices.ContainsFunc(col.server.Rates, col.steps) {
			stepTitles = append(stepTitles, col.title())
		}
	}
	line("")
	line("Tokens a second, one request at a time, without the first token (median, half the spread)")
	if len(stepTitles) > 0 {
		titles = append(titles, "tokens a step: "+strings.Join(stepTitles, " / "))
	}
	line(titles...)
	for _, class := range c.classNames() {
		row, steps := []string{class}, []string{}
		for _, col := range columns {
			r := col.rate(class)
			if r == nil {
				row = append(row, "–")
				continue
			}
			row = append(row, r.TokensPerSec.String())
			if col.steps(*r) {
				steps = append(steps, number(r.TokensPerStep))
			}
		}
		line(append(row, strings.Join(steps, " / "))...)
	}

	line("")
	line("Tokens a second of all, several requests at a time; in brackets p99 of the gaps between pieces, ms")
	titles = []string{"requests"}
	var measured []column
	for _, col := range columns {
		if slices.ContainsFunc(col.server.Together, func(t Together) bool { return t.Mode == col.mode }) {
			measured, titles = append(measured, col), append(titles, col.title())
		}
	}
	line(titles...)
	for _, n := range c.Plan.Requests {
		row := []string{fmt.Sprint(n)}
		for _, col := range measured {
			if t := col.together(n); t != nil {
				row = append(row, fmt.Sprintf("%s (%s)", t.TokensPerSec, number(t.P99MS)))
			} else {
				row = append(row, "–")
			}
		}
		line(row...)
	}
}

// times are the tables of milliseconds.
func (c *Card) times(line func(...string)) {
	line("")
	line("Pieces of text as they come, ms; a piece may hold several tokens, the first is of a prompt asked before")
	line("", "first", "gap p50", "gap p99")
	for _, col := range c.columns() {
		for _, p := range col.server.Pieces {
			if p.Mode == col.mode {
				line(col.title(), p.FirstMS.String(), number(p.P50MS), number(p.P99MS))
			}
		}
	}
	line("")
	line("Long prompts: first token cold and again")
	line("", "tokens", "tokens/s", "cold ms", "again ms", "not read again")
	for _, s := range c.Servers {
		for _, p := range s.Prompts {
			line(s.Name, number(float64(p.Tokens)), p.TokensPerSec.String(), p.ColdMS.String(), p.WarmMS.String(),
				number(float64(p.Cached)))
		}
	}
	line("")
}

// notes are sentences about what the tables do not show.
func (s *Server) notes() []string {
	var out []string
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(s.Name+": "+format, args...)) }
	different := len(s.Texts.Different) + s.Texts.Omitted
	against := "the plain ones, alone"
	if slices.Equal(s.Modes, []string{ModeDefault}) {
		against = "the first ones"
	}
	if different == 0 {
		say("%d greedy answers were compared with %s: all equal", s.Texts.Compared, against)
	} else {
		say("%d of %d greedy answers DIFFER from %s", different, s.Texts.Compared, against)
		for _, d := range s.Texts.Different {
			out = append(out, fmt.Sprintf("  %s %d, %s, %d at a time: from byte %d on", d.Class, d.Prompt+1, shown(d.Mode),
				d.Requests, d.Byte))
		}
		if s.Texts.Omitted > 0 {
			out = append(out, fmt.Sprintf("  and %d more", s.Texts.Omitted))
		}
	}
	if s.OverheadMS != nil {
		say("a request takes %s ms longer at the client than the server reports: HTTP, network, reading the stream",
			number(s.OverheadMS.Median))
	}
	if s.Counted {
		say("the server reports no usage: pieces of text count as tokens")
	}
	return out
}
