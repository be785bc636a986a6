package httpapi

import (
	"context"
	"net/http"

	"github.com/tandem-inference/tandem/gateway/internal/apierror"
	"github.com/tandem-inference/tandem/gateway/internal/turn"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
)

// Traces finds the spans of requests.
type Traces interface {
	// Find returns those of a request, first ones first; none when they are not kept any more.
	Find(ctx context.Context, request string) []*tandemv1.TraceSpan
}

type traceEntry struct {
	RequestID string      `json:"request_id"`
	TraceID   string      `json:"trace_id"`
	Spans     []spanEntry `json:"spans"`
}

// spanEntry is one piece of work; times are counted from the first span's start.
type spanEntry struct {
	ID         string            `json:"id"`
	Parent     string            `json:"parent,omitempty"`
	Name       string            `json:"name"`
	Service    string            `json:"service"`
	Worker     string            `json:"worker,omitempty"`
	StartMS    float64           `json:"start_ms"`
	DurationMS float64           `json:"duration_ms"`
	Error      string            `json:"error,omitempty"`
	Attributes map[string]string `json:"attributes,omitempty"`
}

// trace shows where the time of a request went.
func (s *Server) trace(w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	var spans []*tandemv1.TraceSpan
	if s.traces != nil {
		spans = s.traces.Find(r.Context(), id)
	}
	if len(spans) == 0 {
		return apierror.NotFound("the trace of request " + id)
	}
	out := traceEntry{RequestID: id, TraceID: spans[0].GetTraceId()}
	for _, m := range spans {
		out.Spans = append(out.Spans, spanEntry{
			ID: m.GetSpanId(), Parent: m.GetParentId(), Name: m.GetName(), Service: m.GetService(), Worker: m.GetWorker(),
			StartMS:    float64((m.GetStartUnixNanos()-spans[0].GetStartUnixNanos())/1000) / 1000,
			DurationMS: float64(m.GetDurationNanos()/1000) / 1000, Error: m.GetError(), Attributes: m.GetAttributes(),
		})
	}
	return turn.WriteJSON(w, out)
}
