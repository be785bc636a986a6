package telemetry

import (
	"strings"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// Providers names where telemetry of RPCs goes; nil members mean nowhere.
type Providers struct {
	Meter  metric.MeterProvider
	Tracer trace.TracerProvider
	// Only is the full name of the one method that is instrumented; empty = all.
	Only string
}

func (p Providers) options() []otelgrpc.Option {
	if p.Meter == nil {
		p.Meter = metricnoop.NewMeterProvider()
	}
	if p.Tracer == nil {
		p.Tracer = tracenoop.NewTracerProvider()
	}
	return []otelgrpc.Option{
		otelgrpc.WithMeterProvider(p.Meter),
		otelgrpc.WithTracerProvider(p.Tracer),
		otelgrpc.WithPropagators(propagation.TraceContext{}),
		otelgrpc.WithFilter(func(rpc *stats.RPCTagInfo) bool {
			return known(rpc.FullMethodName) && (p.Only == "" || p.Only == rpc.FullMethodName)
		}),
	}
}

// known reports whether a method exists in this program: callers may name any, and each would be a label of its own.
// Health checks and looks at drafts are left out, which come every few seconds, leases and watches, which last as long
// as a worker or a page, and questions about traces: they tell nothing of a request.
func known(method string) bool {
	name := strings.ReplaceAll(strings.TrimPrefix(method, "/"), "/", ".")
	for _, prefix := range []string{"grpc.health.", "tandem.v1.RegistryService.", "tandem.v1.TelemetryService.",
		"tandem.v1.DraftService.GetDraft", "tandem.v1.TargetService.WatchRounds"} {
		if strings.HasPrefix(name, prefix) {
			return false
		}
	}
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
	if err != nil {
		return false
	}
	_, ok := d.(protoreflect.MethodDescriptor)
	return ok
}

// set reports whether any telemetry is wanted: with nothing set no handler is installed, so that the per-step path
// pays nothing.
func (p Providers) set() bool { return p.Meter != nil || p.Tracer != nil }

// ServerOptions returns the stats handler of a gRPC server.
func ServerOptions(p Providers) []grpc.ServerOption {
	if !p.set() {
		return nil
	}
	return []grpc.ServerOption{grpc.StatsHandler(otelgrpc.NewServerHandler(p.options()...))}
}

// DialOptions returns the stats handler of a gRPC client connection.
func DialOptions(p Providers) []grpc.DialOption {
	if !p.set() {
		return nil
	}
	return []grpc.DialOption{grpc.WithStatsHandler(otelgrpc.NewClientHandler(p.options()...))}
}
