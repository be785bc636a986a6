package httpapi

import (
	"fmt"
	"net/http"

	"github.com/tandem-inference/tandem/gateway/internal/jsontext"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/registry"
)

type healthBody struct {
	Status string `json:"status"`
	Detail string `json:"detail,omitempty"`
}

// state says how the cluster is: ok, degraded, loading, unavailable or draining.
func (s *Server) state() healthBody {
	if s.leaving != nil && s.leaving() {
		return healthBody{"draining", "the server is shutting down"}
	}
	workers := s.cluster.Workers()
	if s.targets.Ready() {
		if _, err := s.model(); err != nil {
			return healthBody{"unavailable", "the tokenizer of the model is not loaded"}
		}
		for _, w := range workers {
			if w.Registration.GetRole() == tandemv1.Role_ROLE_DRAFT && w.State != registry.StateReady && !w.Drained {
				return healthBody{"degraded", "draft worker " + w.ID + " is " + w.State}
			}
			if n := w.Heartbeat.GetOrphanedSequences(); n > 0 && w.State != registry.StateLost {
				return healthBody{"degraded", fmt.Sprintf("worker %s has %d sequences that belong to no request", w.ID, n)}
			}
			if r := w.Heartbeat.GetRefusedDrafts(); len(r) > 0 && w.State == registry.StateReady {
				return healthBody{"degraded", fmt.Sprintf("target worker %s refuses draft worker %s: %s", w.ID,
					draftAt(workers, r[0].GetAddress()), r[0].GetReason())}
			}
		}
		if s.storeAway != nil {
			if away := s.storeAway(); away != "" {
				return healthBody{"degraded", away}
			}
		}
		return healthBody{Status: "ok"}
	}
	for _, w := range workers {
		if w.Registration.GetRole() == tandemv1.Role_ROLE_TARGET && w.State == registry.StateStarting {
			return healthBody{"loading", "target worker " + w.ID + " is starting" + loaded(w.Heartbeat)}
		}
	}
	return healthBody{"unavailable", "no target worker is ready"}
}

// draftAt is the id of the draft worker with an address, the address when there is none.
func draftAt(workers []registry.Worker, address string) string {
	for _, w := range workers {
		if w.Registration.GetRole() == tandemv1.Role_ROLE_DRAFT && registry.ReachedAt(w.Registration, address) {
			return w.ID
		}
	}
	return address
}

// Serving reports whether /health answers 200.
func (s *Server) Serving() bool { return s.state().serving() }

func (b healthBody) serving() bool { return b.Status == "ok" || b.Status == "degraded" }

// loaded says how much of its weights a worker has, empty when it does not tell.
func loaded(h *tandemv1.Heartbeat) string {
	if h.GetLoadBytes() == 0 {
		return ""
	}
	const mib = 1 << 20
	return fmt.Sprintf(": %d of %d MiB are loaded", h.GetLoadedBytes()/mib, h.GetLoadBytes()/mib)
}

// health serves / and /health.
func (s *Server) health(w http.ResponseWriter, _ *http.Request) error {
	return s.writeHealth(w, s.state())
}

// ready serves /health/ready.
func (s *Server) ready(w http.ResponseWriter, _ *http.Request) error {
	return s.writeHealth(w, s.state())
}

// live serves /health/live: the process runs.
func (s *Server) live(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, http.StatusOK, healthBody{Status: "ok"})
}

func (s *Server) writeHealth(w http.ResponseWriter, b healthBody) error {
	status := http.StatusOK
	if !b.serving() {
		status = http.StatusServiceUnavailable
	}
	return writeJSON(w, status, b)
}

func writeJSON(w http.ResponseWriter, status int, v any) error {
	b, err := jsontext.Marshal(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_, err = w.Write(append(b, '\n'))
	return err
}

// scrape serves /metrics.
func (s *Server) scrape(w http.ResponseWriter, r *http.Request) error {
	s.scrapes.ServeHTTP(w, r)
	return nil
}
