package benchcard

import (
	"encoding/xml"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/tandem-inference/tandem/services/wholefile"
)

// Measures of the picture, in pixels.
const (
	svgWidth  = 760
	labelEnd  = 150 // where bars begin
	barsEnd   = 640 // where the longest ends; its number follows
	barHeight = 14
	barStep   = 18
	groupGap  = 10
	textSize  = 12
)

// palette are the colours of bars, which are told apart on white and on black. Names stand beside the bars, so nothing
// depends on seeing colours.
var palette = []string{"#7a869a", "#3b82c4", "#2a9d6f", "#d0802c", "#a55cc9", "#c94f5c"}

// style follows the viewer's choice of light or dark.
const style = `text{font:12px system-ui,sans-serif;fill:#1d2430}.t{font-size:16px;font-weight:600}.h{font-weight:600}` +
	`.q{fill:#5b6675}.b{fill:#fff}@media(prefers-color-scheme:dark){text{fill:#e6e9ee}.q{fill:#9aa5b4}.b{fill:#14181f}}`

// bar of a chart.
type bar struct {
	label  string
	value  float64
	text   string
	colour int
}

// group of bars under one name.
type group struct {
	name string
	bars []bar
}

// WriteSVG draws the card into a file that needs nothing else.
func (c *Card) WriteSVG(path string) error {
	var b strings.Builder
	c.draw(&b)
	return wholefile.Write(path, []byte(b.String()))
}

// drawing collects elements from top to bottom.
type drawing struct {
	body strings.Builder
	y    int
}

func (d *drawing) text(x, y int, class, anchor, text string) {
	fmt.Fprintf(&d.body, `<text x="%d" y="%d" class="%s" text-anchor="%s">`, x, y, class, anchor)
	_ = xml.EscapeText(&d.body, []byte(text)) // a builder takes everything
	d.body.WriteString("</text>\n")
}

func (d *drawing) line(class, text string) {
	d.y += barStep
	d.text(16, d.y, class, "start", text)
}

// chart draws groups on one scale.
func (d *drawing) chart(title string, groups []group) {
	longest := 0.0
	for _, g := range groups {
		for _, b := range g.bars {
			longest = max(longest, b.value)
		}
	}
	if longest == 0 {
		return
	}
	d.y += 14
	d.line("h", title)
	for _, g := range groups {
		d.y += groupGap
		for i, b := range g.bars {
			if i == 0 {
				d.text(16, d.y+textSize, "", "start", g.name)
			}
			d.text(labelEnd-6, d.y+textSize, "q", "end", b.label)
			width := max(1, int(b.value/longest*(barsEnd-labelEnd)))
			fmt.Fprintf(&d.body, `<rect x="%d" y="%d" width="%d" height="%d" rx="2" fill="%s"/>`+"\n", labelEnd, d.y,
				width, barHeight, palette[b.colour%len(palette)])
			d.text(labelEnd+width+6, d.y+textSize, "", "start", b.text)
			d.y += barStep
		}
	}
}

// draw writes the picture.
func (c *Card) draw(out io.Writer) {
	d := &drawing{y: 10}
	d.line("t", "tandem bench")
	for _, s := range c.Servers {
		d.line("", fmt.Sprintf("%s: %s, %s", s.Name, s.Model, s.Version))
		for _, m := range s.Models {
			d.line("q", fmt.Sprintf("%s: %s on %s", m.Role, m.Name, m.Device))
		}
	}
	d.line("q", fmt.Sprintf("client: %d × %s, load %.1f; %s, %s", c.Machine.Cores, c.Machine.Processor, c.Machine.Load,
		c.Plan.Kind, c.Taken))

	columns := c.columns()
	var rates, together, prompts []group
	for _, class := range c.classNames() {
		g := group{name: class}
		for i, col := range columns {
			if r := col.rate(class); r != nil {
				g.bars = append(g.bars, bar{col.title(), r.TokensPerSec.Median, r.TokensPerSec.String(), i})
			}
		}
		rates = append(rates, g)
	}
	for _, n := range c.Plan.Requests {
		g := group{name: fmt.Sprint(n)}
		for i, col := range columns {
			if t := col.together(n); t != nil {
				g.bars = append(g.bars, bar{col.title(), t.TokensPerSec.Median, t.TokensPerSec.String(), i})
			}
		}
		together = append(together, g)
	}
	for _, s := range c.Servers {
		for _, p := range s.Prompts {
			prompts = append(prompts, group{name: fmt.Sprintf("%d, %s", p.Tokens, s.Name), bars: []bar{
				{"cold", p.ColdMS.Median, p.ColdMS.String() + " ms", 0},
				{"again", p.WarmMS.Median, p.WarmMS.String() + " ms", 2},
			}})
		}
	}
	d.chart("Tokens a second, one request at a time", rates)
	d.chart("Tokens a second of all, by requests at a time", together)
	d.chart("First token after long prompts, by tokens", prompts)
	d.y += 10
	for i := range c.Servers {
		for _, note := range c.Servers[i].notes() {
			d.line("q", note)
		}
	}
	height := d.y + 20
	titles := []string{}
	for _, s := range c.Servers {
		titles = append(titles, s.Model)
	}
	fmt.Fprintf(out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%[1]d" height="%[2]d" role="img">`+
		"\n<title>", svgWidth, height)
	_ = xml.EscapeText(out, []byte("tandem bench: "+strings.Join(slices.Compact(titles), ", "))) // see text
	fmt.Fprintf(out, "</title>\n<style>%s</style>\n<rect class=\"b\" width=\"100%%\" height=\"100%%\"/>\n%s</svg>\n", style,
		d.body.String())
}
