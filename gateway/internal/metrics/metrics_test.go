package metrics

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/services/registry"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
)

// recorder is a provider that notes the names under which Prometheus shows what is made.
type recorder struct {
	noop.MeterProvider
	names map[string]bool
}

func (r recorder) Meter(string, ...metric.MeterOption) metric.Meter { return meter{names: r.names} }

type meter struct {
	noop.Meter
	names map[string]bool
}

func (m meter) note(name, unit string, total bool) {
	name = strings.ReplaceAll(name, ".", "_")
	if unit == "s" {
		name += "_seconds"
	}
	if total {
		name += "_total"
	}
	m.names[name] = true
}

func (m meter) Int64Counter(name string, o ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	m.note(name, metric.NewInt64CounterConfig(o...).Unit(), true)
	return m.Meter.Int64Counter(name, o...)
}

func (m meter) Int64UpDownCounter(name string, o ...metric.Int64UpDownCounterOption) (metric.Int64UpDownCounter,
	error) {
	m.note(name, "", false)
	return m.Meter.Int64UpDownCounter(name, o...)
}

func (m meter) Float64Histogram(name string, o ...metric.Float64HistogramOption) (metric.Float64Histogram, error) {
	m.note(name, metric.NewFloat64HistogramConfig(o...).Unit(), false)
	return m.Meter.Float64Histogram(name, o...)
}

func (m meter) Int64ObservableGauge(name string, o ...metric.Int64ObservableGaugeOption) (metric.Int64ObservableGauge,
	error) {
	m.note(name, "", false)
	return m.Meter.Int64ObservableGauge(name, o...)
}

func (m meter) Int64ObservableCounter(name string,
	o ...metric.Int64ObservableCounterOption) (metric.Int64ObservableCounter, error) {
	m.note(name, "", true)
	return m.Meter.Int64ObservableCounter(name, o...)
}

func (m meter) Float64ObservableCounter(name string,
	o ...metric.Float64ObservableCounterOption) (metric.Float64ObservableCounter, error) {
	m.note(name, "", true)
	return m.Meter.Float64ObservableCounter(name, o...)
}

func (m meter) Float64ObservableGauge(name string,
	o ...metric.Float64ObservableGaugeOption) (metric.Float64ObservableGauge, error) {
	m.note(name, "", false)
	return m.Meter.Float64ObservableGauge(name, o...)
}

// TestSpecificationListsMetrics: chapter 15.4 of the specification names what the gateway makes, and nothing else.
func TestSpecificationListsMetrics(t *testing.T) {
	made := recorder{names: map[string]bool{}}
	if _, err := New(made, Sources{}); err != nil {
		t.Fatal(err)
	}
	for name := range registry.Counters {
		if name = strings.ReplaceAll(registry.MetricName(name), ".", "_") + "_total"; !made.names[name] {
			t.Errorf("%s is not made", name)
		}
		delete(made.names, name) // the chapter refers to the list
	}
	data, err := os.ReadFile("../../../docs/spec/http-api.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok1 := strings.Cut(string(data), "\n15.4 `/metrics`")
	chapter, _, ok2 := strings.Cut(rest, "\n15.5 ")
	if !ok1 || !ok2 {
		t.Fatal("chapter 15.4 is not there")
	}
	listed := map[string]bool{}
	for _, m := range regexp.MustCompile("`([a-z_]+)(?:\\{[^`]*\\})?`").FindAllStringSubmatch(chapter, -1) {
		switch name := m[1]; {
		case strings.HasSuffix(name, "_") || !strings.Contains(name, "_") && name != "lanes":
		case strings.HasPrefix(name, "gen_ai_"):
			listed[name] = true
		default:
			listed["tandem_"+name] = true
		}
	}
	if !maps.Equal(listed, made.names) {
		for _, name := range slices.Sorted(maps.Keys(made.names)) {
			if !listed[name] {
				t.Errorf("the specification lacks %s", name)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(listed)) {
			if !made.names[name] {
				t.Errorf("the specification lists %s, which is not made", name)
			}
		}
	}
}
