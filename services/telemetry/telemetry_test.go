package telemetry

import (
	"bytes"
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
)

func TestNewLogger(t *testing.T) {
	tests := []struct {
		name, level, format, wantErr string
	}{
		{"defaults", "", "", ""},
		{"console", "debug", "console", ""},
		{"text is console", "warn", "text", ""},
		{"bad level", "loud", "json", `log level "loud"`},
		{"bad format", "info", "xml", `log format "xml"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := NewLogger(tt.level, tt.format, &bytes.Buffer{})
			if (err != nil) != (tt.wantErr != "") || (err != nil && !strings.Contains(err.Error(), tt.wantErr)) {
				t.Fatalf("error = %v, want %q", err, tt.wantErr)
			}
		})
	}
}

func TestLoggerWritesJSON(t *testing.T) {
	var buf bytes.Buffer
	l, err := NewLogger("info", "json", &buf)
	if err != nil {
		t.Fatal(err)
	}
	l.Named("worker").Info("ready", zap.String(KeyRole, "target"))
	l.Debug("hidden")
	var got map[string]any
	if err := json.Unmarshal(buf.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	delete(got, "time")
	want := map[string]any{"level": "info", "logger": "worker", "msg": "ready", "role": "target"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestHCLog(t *testing.T) {
	var buf bytes.Buffer
	l, _ := NewLogger("info", "json", &buf)
	h := HCLog(l).Named("plugin").With("pid", 7)
	if h.IsDebug() || !h.IsInfo() || h.GetLevel() != hclog.Info || h.Name() != "plugin" {
		t.Error("level or name lost")
	}
	h.Debug("hidden")
	h.Warn("engine gone", "code", hclog.Fmt("%02d", 3), "odd")
	var got map[string]any
	if err := json.Unmarshal(buf.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	delete(got, "time")
	want := map[string]any{"level": "warn", "logger": "plugin", "msg": "engine gone", "pid": 7.0, "code": "03",
		hclog.MissingKey: "odd"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	buf.Reset()
	h.StandardLogger(nil).Print("one line\n")
	if !strings.Contains(buf.String(), `"msg":"one line"`) {
		t.Errorf("standard logger wrote %q", buf.String())
	}
}

func TestMetricNames(t *testing.T) {
	m, err := NewPrometheus("test", "v0")
	if err != nil {
		t.Fatal(err)
	}
	meter := m.MeterProvider().Meter("tandem")
	c, _ := meter.Int64Counter("tandem.draft.tokens", metric.WithUnit("{token}"))
	c.Add(t.Context(), 3)
	h, _ := meter.Float64Histogram("tandem.ttft", metric.WithUnit("s"))
	h.Record(t.Context(), 0.5)
	rec := httptest.NewRecorder()
	m.Handler().ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	body := rec.Body.String()
	for _, want := range []string{"tandem_draft_tokens_total 3", "tandem_ttft_seconds_count 1"} {
		if !strings.Contains(body, want) {
			t.Errorf("metrics lack %q:\n%s", want, body)
		}
	}
	if err := m.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestExemplarsOfCalls: the exemplar of a call names its trace, however long the peer's address is.
func TestExemplarsOfCalls(t *testing.T) {
	m, err := NewPrometheus("tandem-test", "v")
	if err != nil {
		t.Fatal(err)
	}
	h, err := m.MeterProvider().Meter("x").Float64Histogram("rpc.client.call.duration", metric.WithUnit("s"))
	if err != nil {
		t.Fatal(err)
	}
	id := trace.TraceID{1}
	ctx := trace.ContextWithSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: id, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled}))
	h.Record(ctx, 0.5, metric.WithAttributes(attribute.String("server.address", strings.Repeat("/socket", 20)),
		attribute.String("rpc.method", "Decode")))
	request := httptest.NewRequest("GET", "/metrics", nil)
	request.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
	rec := httptest.NewRecorder()
	m.Handler().ServeHTTP(rec, request)
	if body := rec.Body.String(); !strings.Contains(body, `trace_id="`+id.String()) || strings.Contains(body, "/socket") {
		t.Errorf("no exemplar, or one with an address:\n%s", body)
	}
}

func TestOffIsSilent(t *testing.T) {
	m := Off()
	c, err := m.MeterProvider().Meter("x").Int64Counter("tandem.nothing")
	if err != nil {
		t.Fatal(err)
	}
	c.Add(t.Context(), 1)
	rec := httptest.NewRecorder()
	m.Handler().ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	if rec.Code != 404 {
		t.Errorf("status %d, want 404", rec.Code)
	}
	if got := len(ServerOptions(Providers{})) + len(DialOptions(Providers{})); got != 0 {
		t.Errorf("%d options without providers, want none", got)
	}
	if got := len(ServerOptions(Providers{Meter: m.MeterProvider()})); got != 1 {
		t.Errorf("%d server options, want 1", got)
	}
}
