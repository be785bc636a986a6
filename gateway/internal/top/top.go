// Package top shows what the workers of a cluster do, as a table of rates between two looks at a gateway.
package top

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Worker is one of /cluster.
type Worker struct {
	ID, Role, Device, State, Model string
	Empty                          bool
	Lanes                          int
	LanesBusy                      int `json:"lanes_busy"`
	Restarts                       int `json:"engine_restarts"`
	Counters                       map[string]float64
	LoadedBytes                    float64 `json:"loaded_bytes"`
	LoadBytes                      float64 `json:"load_bytes"`
	// pages of keys and values, in tokens; unknown without /metrics.
	used, capacity float64
}

// Sample is one look at a gateway.
type Sample struct {
	At      time.Time
	Workers []Worker
	Queue   float64 // requests that wait, -1 when it is not known
}

// Look asks a gateway. ask gets a path and returns its body.
func Look(ctx context.Context, now time.Time, ask func(ctx context.Context, path string) (io.ReadCloser,
	error)) (Sample, error) {
	s := Sample{At: now, Queue: -1}
	body, err := ask(ctx, "/cluster")
	if err != nil {
		return s, err
	}
	defer body.Close()
	if err := json.NewDecoder(io.LimitReader(body, 64<<20)).Decode(&s); err != nil {
		return s, fmt.Errorf("/cluster: %w", err)
	}
	metrics, err := ask(ctx, "/metrics")
	if err != nil {
		return s, err
	}
	defer metrics.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(io.LimitReader(metrics, 64<<20))
	if err != nil {
		return s, fmt.Errorf("/metrics: %w", err)
	}
	if queue := families["tandem_queue_depth"]; queue != nil {
		s.Queue = 0
		for _, m := range queue.Metric {
			s.Queue += m.GetGauge().GetValue()
		}
	}
	for i := range s.Workers {
		w := &s.Workers[i]
		for _, m := range families["tandem_kv_tokens"].GetMetric() {
			if label(m, "worker") != w.ID {
				continue
			}
			v := m.GetGauge().GetValue()
			w.capacity += v
			if label(m, "state") == "used" {
				w.used = v
			}
		}
	}
	return s, nil
}

func label(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

// Asker returns an ask of Look for a gateway at base.
func Asker(client *http.Client, base, key string) func(ctx context.Context, path string) (io.ReadCloser, error) {
	return func(ctx context.Context, path string) (io.ReadCloser, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, base+path, nil)
		if err != nil {
			return nil, err
		}
		if key != "" {
			request.Header.Set("Authorization", "Bearer "+key)
		}
		response, err := client.Do(request)
		if err != nil {
			return nil, err
		}
		if response.StatusCode != http.StatusOK {
			response.Body.Close()
			hint := ""
			if response.StatusCode == http.StatusUnauthorized {
				hint = ": give --api-key"
			}
			return nil, fmt.Errorf("%s: the gateway answers %s%s", path, response.Status, hint)
		}
		return response.Body, nil
	}
}

// Orders are the ways to sort, the first is the default.
var Orders = []string{"worker", "tokens", "slots"}

// column of the table; a narrow terminal leaves out those of the highest rank.
type column struct {
	title string
	rank  int
	right bool
	cell  func(row) string
}

// row is a worker between two samples.
type row struct {
	Worker
	before  map[string]float64
	seconds float64
}

// rate is by how much a counter grew in a second, 0 after a restart of the worker.
func (r row) rate(name string) float64 {
	if r.seconds <= 0 || r.before == nil {
		return 0
	}
	return max(0, r.Counters[name]-r.before[name]) / r.seconds
}

// share is that of two rates, as a whole number of percent.
func (r row) share(part, whole string) string {
	if r.rate(whole) == 0 {
		return "–"
	}
	return fmt.Sprintf("%.0f%%", 100*r.rate(part)/r.rate(whole))
}

func (r row) number(name, format string) string {
	if _, ok := r.Counters[name]; !ok {
		return "–"
	}
	return fmt.Sprintf(format, r.rate(name))
}

func (r row) state() string {
	if r.LoadBytes > 0 && r.LoadedBytes < r.LoadBytes {
		return fmt.Sprintf("%s %.0f%%", r.State, 100*r.LoadedBytes/r.LoadBytes)
	}
	if r.Empty {
		return "drained"
	}
	return r.State
}

func columns() []column {
	return []column{
		{"WORKER", 0, false, func(r row) string { return r.ID }},
		{"ROLE", 3, false, func(r row) string { return r.Role }},
		{"DEVICE", 4, false, func(r row) string { return r.Device }},
		{"STATE", 0, false, row.state},
		{"SLOTS", 2, true, func(r row) string { return fmt.Sprintf("%d/%d", r.LanesBusy, r.Lanes) }},
		{"TOK/S", 1, true, func(r row) string { return r.number("generated_tokens", "%.1f") }},
		{"PROMPT/S", 5, true, func(r row) string { return r.number("prompt_tokens", "%.0f") }},
		{"ACCEPTED", 3, true, func(r row) string { return r.share("accepted_tokens", "drafted_tokens") }},
		{"DRAFT WAIT", 8, true, func(r row) string { return r.share("draft_wait_seconds", "decode_seconds") }},
		{"PAGES", 4, true, func(r row) string {
			if r.capacity == 0 {
				return "–"
			}
			return fmt.Sprintf("%.0f%%", 100*r.used/r.capacity)
		}},
		{"CACHE HITS", 6, true, func(r row) string { return r.share("prefix_cache_hits", "prefix_cache_lookups") }},
		{"RESTARTS", 7, true, func(r row) string { return fmt.Sprint(r.Restarts) }},
		{"MODEL", 9, false, func(r row) string { return r.Model }},
	}
}

// Lines are the screen for a terminal of a width: a summary and a table with the rates from before to now.
func Lines(before, now Sample, title, order string, width int) []string {
	rows := make([]row, 0, len(now.Workers))
	var tokens, drafted, accepted float64
	for _, w := range now.Workers {
		r := row{Worker: w, seconds: now.At.Sub(before.At).Seconds()}
		for _, old := range before.Workers {
			if old.ID == w.ID {
				r.before = old.Counters
			}
		}
		tokens += r.rate("generated_tokens")
		drafted += r.rate("drafted_tokens")
		accepted += r.rate("accepted_tokens")
		rows = append(rows, r)
	}
	slices.SortStableFunc(rows, func(a, b row) int {
		by := 0
		switch order {
		case "tokens":
			by = cmp.Compare(b.rate("generated_tokens"), a.rate("generated_tokens"))
		case "slots":
			by = cmp.Compare(b.LanesBusy, a.LanesBusy)
		}
		return cmp.Or(by, cmp.Compare(a.ID, b.ID))
	})
	summary := fmt.Sprintf("%s  %s  %d workers  %.1f tokens/s", title, now.At.Format(time.TimeOnly), len(rows), tokens)
	if now.Queue >= 0 {
		summary += fmt.Sprintf("  queue %.0f", now.Queue)
	}
	if drafted > 0 {
		summary += fmt.Sprintf("  %.0f%% of drafts accepted", 100*accepted/drafted)
	}
	return append([]string{cut(summary, width), ""}, table(rows, width)...)
}

// table lays out as many columns as fit.
func table(rows []row, width int) []string {
	shown := columns()
	for {
		widths := make([]int, len(shown))
		total := 0
		cells := make([][]string, len(rows))
		for i, c := range shown {
			widths[i] = utf8.RuneCountInString(c.title)
			for j, r := range rows {
				cell := printable(c.cell(r))
				cells[j] = append(cells[j], cell)
				widths[i] = max(widths[i], utf8.RuneCountInString(cell))
			}
			total += widths[i] + 2
		}
		last := slices.IndexFunc(shown, func(c column) bool {
			return c.rank > 0 && c.rank == slices.MaxFunc(shown, func(a, b column) int {
				return cmp.Compare(a.rank,
					b.rank)
			}).rank
		})
		if total-2 > width && last >= 0 {
			shown = slices.Delete(shown, last, last+1)
			continue
		}
		line := func(cell func(i int) string) string {
			var b strings.Builder
			for i, c := range shown {
				pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell(i)))
				if c.right {
					b.WriteString(pad + cell(i) + "  ")
				} else {
					b.WriteString(cell(i) + pad + "  ")
				}
			}
			return cut(strings.TrimRight(b.String(), " "), width)
		}
		lines := []string{line(func(i int) string { return shown[i].title })}
		for j := range rows {
			lines = append(lines, line(func(i int) string { return cells[j][i] }))
		}
		return lines
	}
}

// cut shortens a line to a number of columns.
func cut(line string, width int) string {
	if utf8.RuneCountInString(line) <= width {
		return line
	}
	return string([]rune(line)[:max(width, 0)])
}

// printable leaves out what would move the cursor: names come from workers.
func printable(s string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f || c >= 0x80 && c < 0xa0 {
			return -1
		}
		return c
	}, s)
}
