package telemetry

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"time"
)

// TraceFlags are the settings of traces and exported metrics, alike in all programs. The standard OTEL_* variables hold
// where they leave something open.
type TraceFlags struct {
	OTLPEndpoint string   `name:"otlp-endpoint" placeholder:"URL" help:"Collector that gets traces and metrics over OTLP, for example http://127.0.0.1:4317; OTEL_EXPORTER_OTLP_PROTOCOL says how: grpc (the default) or http/protobuf. Default: OTEL_EXPORTER_OTLP_ENDPOINT, else none."`
	TraceRatio   *float64 `name:"trace-ratio" placeholder:"SHARE" help:"Share of the requests that are traced, 0 to 1; those that their client traces always are. Default: what OTEL_TRACES_SAMPLER says, else 1."`
	TraceSlowMS  int      `name:"trace-slow-ms" default:"0" help:"Export the traces of requests that were not sampled, too, if they took longer than so many milliseconds or failed; 0 = never."`
}

// Validate reports every setting that cannot work.
func (f *TraceFlags) Validate() error {
	var errs []error
	if err := checkEndpoint(f.OTLPEndpoint); err != nil {
		errs = append(errs, fmt.Errorf("--otlp-endpoint: %w", err))
	}
	if r := f.TraceRatio; r != nil && !(*r >= 0 && *r <= 1) {
		errs = append(errs, fmt.Errorf("--trace-ratio: %g is not in [0, 1]", *r))
	}
	if f.TraceSlowMS < 0 {
		errs = append(errs, fmt.Errorf("--trace-slow-ms: %d is negative", f.TraceSlowMS))
	}
	return errors.Join(errs...)
}

// Arguments are the flags for another program that is to do the same.
func (f *TraceFlags) Arguments() []string {
	var args []string
	if f.OTLPEndpoint != "" {
		args = append(args, "--otlp-endpoint", f.OTLPEndpoint)
	}
	if f.TraceRatio != nil {
		args = append(args, "--trace-ratio", strconv.FormatFloat(*f.TraceRatio, 'g', -1, 64))
	}
	if f.TraceSlowMS > 0 {
		args = append(args, "--trace-slow-ms", strconv.Itoa(f.TraceSlowMS))
	}
	return args
}

// Slow is the time from which a request's trace is exported although it was not sampled; 0 = none is.
func (f *TraceFlags) Slow() time.Duration { return time.Duration(f.TraceSlowMS) * time.Millisecond }

func checkEndpoint(endpoint string) error {
	if endpoint == "" {
		return nil
	}
	if u, err := url.Parse(endpoint); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("%q is not http://HOST:PORT or https://HOST:PORT", endpoint)
	}
	return nil
}

// Protocols of OTEL_EXPORTER_OTLP_PROTOCOL.
const (
	protocolGRPC = "grpc"
	protocolHTTP = "http/protobuf"
)

// export says where one kind of telemetry goes.
type export struct {
	on       bool
	endpoint string // empty = as the exporter reads it from the environment
	http     bool
}

// exportOf reads the variables of one kind, TRACES or METRICS. A given endpoint is stronger than they are.
func exportOf(kind, endpoint string) (e export, err error) {
	if disabled() {
		return export{}, nil
	}
	if err := checkEndpoint(endpoint); err != nil {
		return export{}, err
	}
	e.endpoint = endpoint
	variable := "OTEL_EXPORTER_OTLP_" + kind + "_PROTOCOL"
	protocol := cmp.Or(os.Getenv(variable), os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL"), protocolGRPC)
	if e.http = protocol == protocolHTTP; !e.http && protocol != protocolGRPC {
		return export{}, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL: %q is not %s or %s", protocol, protocolGRPC, protocolHTTP)
	}
	switch name := os.Getenv("OTEL_" + kind + "_EXPORTER"); name {
	case "none":
		e.on = endpoint != ""
	case "otlp":
		e.on = true
	case "":
		e.on = cmp.Or(endpoint, os.Getenv("OTEL_EXPORTER_OTLP_"+kind+"_ENDPOINT"),
			os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT")) != ""
	default:
		return export{}, fmt.Errorf("OTEL_%s_EXPORTER: %q is not otlp or none", kind, name)
	}
	return e, nil
}

// disabled reports whether the environment turns all telemetry by OpenTelemetry off.
func disabled() bool {
	off, _ := strconv.ParseBool(os.Getenv("OTEL_SDK_DISABLED"))
	return off
}

// url is the endpoint for one kind over HTTP, whose path tells it from others.
func (e *export) url(path string) (string, error) { return url.JoinPath(e.endpoint, path) }
