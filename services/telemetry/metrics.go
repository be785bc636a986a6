package telemetry

import (
	"context"
	"net/http"
	"runtime"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	otelprom "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/exemplar"
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

// NewPrometheus returns metrics that Handler serves in the Prometheus text format, and that go nowhere else.
func NewPrometheus(service, version string) (*Metrics, error) {
	return openMetrics(context.Background(), Process{Service: service, Version: version}, export{})
}

// OpenMetrics returns metrics that Handler serves in the Prometheus text format, and that are sent to a collector where
// flags or environment name one.
func OpenMetrics(ctx context.Context, p Process, flags *TraceFlags) (*Metrics, error) {
	e, err := exportOf("METRICS", flags.OTLPEndpoint)
	if err != nil {
		return nil, err
	}
	return openMetrics(ctx, p, e)
}

// openMetrics keeps scope and target info out of the text format; names map as in docs/style.md.
func openMetrics(ctx context.Context, p Process, e export) (*Metrics, error) {
	reg := prometheus.NewRegistry()
	// Goroutines, heap, open files: what a soak watches.
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tandem_build_info",
			Help:        "1, with the version of the program and of Go.",
			ConstLabels: prometheus.Labels{"version": p.Version, "goversion": runtime.Version()},
		}, func() float64 { return 1 }))
	page, err := otelprom.New(otelprom.WithRegisterer(reg), otelprom.WithoutScopeInfo(), otelprom.WithoutTargetInfo())
	if err != nil {
		return nil, err
	}
	res, err := p.resource(ctx)
	if err != nil {
		return nil, err
	}
	options := []sdkmetric.Option{sdkmetric.WithReader(page), sdkmetric.WithResource(res), sdkmetric.WithView(rpcView)}
	if e.on {
		exporter, err := metricExporter(ctx, &e)
		if err != nil {
			return nil, err
		}
		complain(p.Warn)
		options = append(options, sdkmetric.WithReader(sdkmetric.NewPeriodicReader(exporter)))
	}
	sdk := sdkmetric.NewMeterProvider(options...)
	return &Metrics{provider: sdk, sdk: sdk, registry: reg}, nil
}

func metricExporter(ctx context.Context, e *export) (sdkmetric.Exporter, error) {
	switch {
	case e.http && e.endpoint != "":
		at, err := e.url("v1/metrics")
		if err != nil {
			return nil, err
		}
		return otlpmetrichttp.New(ctx, otlpmetrichttp.WithEndpointURL(at))
	case e.http:
		return otlpmetrichttp.New(ctx)
	case e.endpoint != "":
		return otlpmetricgrpc.New(ctx, otlpmetricgrpc.WithEndpointURL(e.endpoint))
	}
	return otlpmetricgrpc.New(ctx)
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
		},
		ExemplarReservoirProviderSelector: traceExemplars}
	if i.Kind == sdkmetric.InstrumentKindHistogram && i.Unit == "s" {
		out.Aggregation = sdkmetric.AggregationExplicitBucketHistogram{Boundaries: rpcBounds}
	}
	return out, true
}

// traceExemplars keeps what a view's filter leaves out of exemplars, too: a socket's path alone can be longer than the
// 128 characters that OpenMetrics allows their labels, and the page then has no exemplar.
func traceExemplars(a sdkmetric.Aggregation) exemplar.ReservoirProvider {
	provider := sdkmetric.DefaultExemplarReservoirProviderSelector(a)
	return func(set attribute.Set) exemplar.Reservoir { return traceReservoir{provider(set)} }
}

type traceReservoir struct{ exemplar.Reservoir }

// Offer implements exemplar.Reservoir.
func (r traceReservoir) Offer(ctx context.Context, t time.Time, v exemplar.Value, _ []attribute.KeyValue) {
	r.Reservoir.Offer(ctx, t, v, nil)
}

// MeterProvider returns the provider; it is never nil.
func (m *Metrics) MeterProvider() metric.MeterProvider { return m.provider }

// Handler serves the metrics; without an exporter it answers 404.
func (m *Metrics) Handler() http.Handler {
	if m.registry == nil {
		return http.NotFoundHandler()
	}
	// Exemplars exist in OpenMetrics only, which a scraper asks for.
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{EnableOpenMetrics: true})
}

// Shutdown flushes and stops the exporter.
func (m *Metrics) Shutdown(ctx context.Context) error {
	if m.sdk == nil {
		return nil
	}
	return m.sdk.Shutdown(ctx)
}
