package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tandem-inference/tandem/services/config"
)

// TraceCmd is tandem trace: where the time of one request went.
type TraceCmd struct {
	Request string        `arg:"" help:"Id of the request: the X-Request-Id of its answer, request_id in logs."`
	Server  string        `default:"${gateway}" help:"HTTP address of the gateway."`
	APIKey  config.Secret `name:"api-key" placeholder:"KEY" help:"Key for --server."`
	All     bool          `env:"-" help:"Show every span, also of many of one kind."`
	Timeout time.Duration `default:"5s" env:"-" help:"Longest wait for an answer."`
	TrustFlags
}

// tracePage is what GET /trace/{id} of a gateway answers.
type tracePage struct {
	TraceID string `json:"trace_id"`
	Spans   []traceSpan
}

type traceSpan struct {
	ID, Parent, Name string
	Service, Worker  string
	Error            string
	StartMS          float64 `json:"start_ms"`
	DurationMS       float64 `json:"duration_ms"`
	Attributes       map[string]string
}

// Run asks the gateway and prints a tree of spans with bars on one axis of time.
func (c *TraceCmd) Run(e *env) error {
	page, err := c.ask(e.ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(e.out, "request %s · trace %s\n", c.Request, page.TraceID)
	w := tabwriter.NewWriter(e.out, 0, 0, 2, ' ', 0)
	drawTrace(w, page.Spans, c.All)
	return w.Flush()
}

// mostTracePage bounds the answer, in bytes.
const mostTracePage = 64 << 20

func (c *TraceCmd) ask(ctx context.Context) (*tracePage, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	client, err := c.client(c.Server)
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()
	status, body, err := get(ctx, client, baseURL(c.Server)+"/trace/"+url.PathEscape(c.Request), c.APIKey.Reveal(),
		mostTracePage)
	if err != nil {
		return nil, reached(c.Server, err)
	}
	switch status {
	case http.StatusOK:
	case http.StatusNotFound:
		return nil, fmt.Errorf("the gateway keeps no trace of request %s: it keeps those of the newest requests only", c.Request)
	case http.StatusUnauthorized:
		return nil, errors.New("--api-key: the gateway asks for a key")
	default:
		return nil, fmt.Errorf("the gateway answers %d %s", status, http.StatusText(status))
	}
	page := &tracePage{}
	if err := json.Unmarshal(body, page); err != nil {
		return nil, fmt.Errorf("the gateway's answer: %w", err)
	}
	return page, nil
}

const (
	// barWidth is the width of the axis of time, in columns.
	barWidth = 40
	// alike is how many spans of one name below one parent are shown unless all are asked for.
	alike = 4
)

// drawTrace writes one line a span, children below their parents. Times of other hosts are by their clocks.
func drawTrace(w io.Writer, spans []traceSpan, all bool) {
	known := map[string]bool{}
	end := 0.0
	for _, s := range spans {
		known[s.ID] = true
		end = max(end, s.StartMS+s.DurationMS)
	}
	children := map[string][]traceSpan{}
	for _, s := range spans {
		parent := s.Parent
		if !known[parent] {
			parent = "" // the client's span, or one that is lost
		}
		children[parent] = append(children[parent], s)
	}
	var draw func(parent string, depth int)
	draw = func(parent string, depth int) {
		shown, hidden := map[string]int{}, map[string]int{}
		list := children[parent]
		for i, s := range list {
			if shown[s.Name]++; !all && shown[s.Name] > alike {
				hidden[s.Name]++
			} else {
				fmt.Fprintf(w, "%s%s\t%s\t%.1f ms\t%s\t%s\n", strings.Repeat("  ", depth), s.Name, process(&s), s.DurationMS,
					bar(s.StartMS, s.DurationMS, end), details(&s))
				draw(s.ID, depth+1)
			}
			if n := hidden[s.Name]; n > 0 && (i+1 == len(list) || list[i+1].Name != s.Name) {
				fmt.Fprintf(w, "%s… %d more %s\t\t\t\t--all shows them\n", strings.Repeat("  ", depth), n, s.Name)
				delete(hidden, s.Name)
			}
		}
	}
	draw("", 0)
}

// process names where a span was made.
func process(s *traceSpan) string {
	service := strings.TrimPrefix(s.Service, "tandem-")
	if s.Worker == "" || s.Worker == service {
		return service
	}
	return service + " " + s.Worker
}

// bar shows a span's place on an axis of barWidth columns that ends at end.
func bar(start, duration, end float64) string {
	if end <= 0 {
		return ""
	}
	from := min(int(start/end*barWidth), barWidth-1)
	to := min(max(int((start+duration)/end*barWidth), from+1), barWidth)
	return strings.Repeat("·", from) + strings.Repeat("█", to-from) + strings.Repeat("·", barWidth-to)
}

// detailed are the attributes that a line shows, with their short names.
var detailed = []struct{ key, short string }{
	{"tandem.outcome", ""}, {"tandem.proposer", ""}, {"tandem.tokens", "tokens"}, {"gen_ai.usage.output_tokens", "tokens"},
	{"tandem.cached_tokens", "cached"}, {"tandem.rows", "rows"}, {"tandem.accepted_tokens", "accepted"},
	{"tandem.draft_wait_ms", "ms draft wait"}, {"tandem.verify_ms", "ms verify"}, {"tandem.engine_ms", "ms engine"},
}

func details(s *traceSpan) string {
	var out []string
	if s.Error != "" {
		out = append(out, "FAILED: "+s.Error)
	}
	for _, d := range detailed {
		if v := s.Attributes[d.key]; v != "" && v != "0" && v != "ok" && v != "none" {
			out = append(out, strings.TrimSpace(v+" "+d.short))
		}
	}
	return strings.Join(out, ", ")
}
