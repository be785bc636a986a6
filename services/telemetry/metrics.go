package telemetry

import (
	"context"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/attribute"
	otelprom "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
)

// Metrics owns the meter provider of a process. The zero exporter form (Off) hands out no-op instruments.
type Metrics struct {
	provider metric.MeterProvider
	sdk      *sdkmetric.MeterProvider
	registry *prometheus.Registry
}

// Off returns metrics that go nowhere.
func Off() *Metrics {
	return &Metrics{provider: metricnoop.NewMeterProvider()}
}

// NewPrometheus returns metrics that Handler serves in the Prometheus text format. service is the name of the process,
// version its build. Scope and target info stay out of the output; names map as in docs/style.md.
func NewPrometheus(service, version string) (*Metrics, error) {
	reg := prometheus.NewRegistry()
	// Goroutines, heap, open files: what a soak watches.
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	exp, err := otelprom.New(otelprom.WithRegisterer(reg), otelprom.WithoutScopeInfo(), otelprom.WithoutTargetInfo())
	if err != nil {
		return nil, err
	}
	res := resource.NewSchemaless(attribute.String("service.name", service), attribute.String("service.version", version))
	sdk := sdkmetric.NewMeterProvider(sdkmetric.WithReader(exp), sdkmetric.WithResource(res), sdkmetric.WithView(rpcView))
	return &Metrics{provider: sdk, sdk: sdk, registry: reg}, nil
}

// rpcBounds reach from a call on the same host to the longest generation, in seconds.
var rpcBounds = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}

// rpcView keeps addresses out of the labels of RPCs: each start of a worker has another port or socket, and series are
// for ever. It also gives durations bounds that fit streams.
func rpcView(i sdkmetric.Instrument) (sdkmetric.Stream, bool) {
	if !strings.HasPrefix(i.Name, "rpc.") {
		return sdkmetric.Stream{}, false
	}
	out := sdkmetric.Stream{Name: i.Name, Description: i.Description, Unit: i.Unit,
		AttributeFilter: func(kv attribute.KeyValue) bool {
			return !strings.HasPrefix(string(kv.Key), "server.") && !strings.HasPrefix(string(kv.Key), "network.") &&
				!strings.HasPrefix(string(kv.Key), "client.")
		}}
	if i.Kind == sdkmetric.InstrumentKindHistogram && i.Unit == "s" {
		out.Aggregation = sdkmetric.AggregationExplicitBucketHistogram{Boundaries: rpcBounds}
	}
	return out, true
}

// MeterProvider returns the provider; it is never nil.
func (m *Metrics) MeterProvider() metric.MeterProvider { return m.provider }

// Handler serves the metrics; without an exporter it answers 404.
func (m *Metrics) Handler() http.Handler {
	if m.registry == nil {
		return http.NotFoundHandler()
	}
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// Shutdown flushes and stops the exporter.
func (m *Metrics) Shutdown(ctx context.Context) error {
	if m.sdk == nil {
		return nil
	}
	return m.sdk.Shutdown(ctx)
}
