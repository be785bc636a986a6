package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/tandem-inference/tandem/tests/cluster"
	"github.com/tandem-inference/tandem/tests/collector"
	"github.com/tandem-inference/tandem/tests/observability"
)

// measuring returns a folder of programs whose workers serve their metrics at a free port.
func measuring(t *testing.T) string {
	t.Helper()
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range cluster.Programs {
		program := filepath.Join(root, "bin", name)
		var text []byte
		switch {
		case strings.HasPrefix(name, "worker-"): // which finds its engine beside the real program
			text = fmt.Appendf(nil, "#!/bin/sh\nTANDEM_METRICS_LISTEN=127.0.0.1:0 exec '%s' \"$@\"\n", program)
		case name == "tandem": // a copy, since it looks for workers beside what a link leads to
			if text, err = os.ReadFile(program); err != nil {
				t.Fatal(err)
			}
		default:
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// scrape returns a page; openMetrics asks for the format that has exemplars.
func scrape(t *testing.T, url string, openMetrics bool) []byte {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if openMetrics {
		request.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	page, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatal(response.Status, err)
	}
	return page
}

// TestMetricPages: the pages of all kinds of processes are as Prometheus' linter asks, their labels are bounded, their
// exemplars lead to traces, a collector gets the same by OTLP, and boards and alerts name nothing that no page has.
func TestMetricPages(t *testing.T) {
	needPrograms(t)
	c := collector.Start(t)
	var log recorded
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cl, err := cluster.Start(ctx, cluster.Options{Log: &log, Programs: measuring(t),
		Env: []string{"OTEL_METRIC_EXPORT_INTERVAL=200", "TANDEM_MODELS_DIR=" + filepath.Join(root(t), "models")},
		Args: []string{"--demo", "--otlp-endpoint", c.GRPC, "--log-level",
			"info", "--log-format", "json", "--kv-cache-dir", t.TempDir()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	id, traceparent := newTrace()
	for range 2 { // the second finds the first one's state
		if err := posted(t.Context(), cl.HTTP+"/v1/chat/completions", traceparent, "r", fmt.Sprintf(
			`{"messages":[{"role":"user","content":%q}],"pflash":{"mode":"always","keep_ratio":0.3},`+
				`"speculation":{"mode":"tree"},"max_tokens":40,"temperature":0}`, question), nil); err != nil {
			t.Fatal(err)
		}
	}
	pages := map[string]string{}
	for job, address := range metricPages(t, cl, &log) {
		pages[job] = "http://" + address + "/metrics"
	}
	// Counters of workers come to the gateway with their next heartbeats.
	eventually(t, "the gateway has the workers' counters", func() bool {
		page := string(scrape(t, pages["tandem-gateway"], false))
		return strings.Contains(page, "tandem_worker_scored_tokens_total{") &&
			regexp.MustCompile(`tandem_worker_verify_steps_total\{[^}]*\} [1-9]`).MatchString(page)
	})
	families := map[string]map[string]bool{"up": {"job": true, "instance": true}} // labels by name
	for name, url := range pages {
		page := scrape(t, url, false)
		lint(t, name, page)
		parser := expfmt.NewTextParser(model.LegacyValidation)
		parsed, err := parser.TextToMetricFamilies(bytes.NewReader(page))
		if err != nil {
			t.Fatal(err)
		}
		for family, f := range parsed {
			checkLabels(t, name, f)
			if families[family] == nil {
				families[family] = map[string]bool{"job": true, "instance": true}
			}
			for _, m := range f.GetMetric() {
				for _, l := range m.GetLabel() {
					families[family][l.GetName()] = true
				}
			}
			if f.GetType() == dto.MetricType_HISTOGRAM {
				families[family]["le"] = true
			}
		}
	}
	for name, histogram := range map[string]string{"tandem-gateway": "tandem_ttft_seconds",
		"tandem-target": "tandem_target_round_seconds", "tandem-draft": "tandem_draft_propose_seconds",
		"tandem-prefill": "tandem_prefill_score_seconds"} {
		page := string(scrape(t, pages[name], true))
		if !regexp.MustCompile(histogram + `_bucket\{[^\n]*trace_id="` + id).MatchString(page) {
			t.Errorf("%s: no bucket of %s leads to the trace", name, histogram)
		}
		service := strings.Replace(name, "tandem-", "tandem-worker-", 1)
		if name == "tandem-gateway" {
			service = name
		}
		otlp := strings.ReplaceAll(strings.TrimSuffix(histogram, "_seconds"), "_", ".")
		eventually(t, "the collector gets "+otlp, func() bool { return c.Metric(service, otlp) })
	}
	if strings.Contains(log.String(), "exemplar labels") {
		t.Error("exemplars are too long for their format")
	}
	selectors, err := observability.Selectors(root(t))
	if err != nil {
		t.Fatal(err)
	}
	// Histograms have series of three names, and these come only with what does not happen here.
	seldom := []string{"tandem_retries_total"}
	for _, s := range selectors {
		family := s.Metric
		for _, suffix := range []string{"_bucket", "_count", "_sum"} {
			if families[strings.TrimSuffix(family, suffix)] != nil {
				family = strings.TrimSuffix(family, suffix)
			}
		}
		labels := families[family]
		if labels == nil {
			if !slices.Contains(seldom, family) {
				t.Errorf("%s: no process exports %s", s.Place, s.Metric)
			}
			continue
		}
		for _, l := range s.Labels {
			if !labels[l] {
				t.Errorf("%s: %s has no label %s but %v", s.Place, s.Metric, l, slices.Sorted(maps.Keys(labels)))
			}
		}
	}
}

// lint holds a page against Prometheus' linter; PROMTOOL names the program that does the same.
func lint(t *testing.T, name string, page []byte) {
	t.Helper()
	problems, err := promlint.New(bytes.NewReader(page)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s: %s", name, p.Metric, p.Text)
	}
	if tool := os.Getenv("PROMTOOL"); tool != "" {
		check := exec.CommandContext(t.Context(), tool, "check", "metrics")
		check.Stdin = bytes.NewReader(page)
		if out, err := check.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: promtool check metrics: %v\n%s", name, err, out)
		}
	}
}

// mostSeries bounds the series of one family of a cluster of four processes; a histogram is one.
const mostSeries = 40

// checkLabels looks for labels without a bound: ids, addresses, and more values than there can be.
func checkLabels(t *testing.T, name string, f *dto.MetricFamily) {
	t.Helper()
	if len(f.GetMetric()) > mostSeries {
		t.Errorf("%s: %s has %d series", name, f.GetName(), len(f.GetMetric()))
	}
	for _, m := range f.GetMetric() {
		for _, l := range m.GetLabel() {
			value := l.GetValue()
			if strings.HasPrefix(f.GetName(), "tandem_") && (strings.Contains(value, "127.0.0.1") ||
				strings.Contains(value, "unix:") || regexp.MustCompile(`[0-9a-f]{16}`).MatchString(value)) {
				t.Errorf("%s: %s has the label %s=%q", name, f.GetName(), l.GetName(), value)
			}
		}
	}
}

func root(t *testing.T) string {
	t.Helper()
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	return root
}
