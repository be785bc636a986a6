package httpapi

import (
	"net/http"

	"github.com/tandem-inference/tandem/gateway/internal/apierror"
	"github.com/tandem-inference/tandem/gateway/internal/model"
)

type modelEntry struct {
	ID               string `json:"id"`
	Object           string `json:"object"`
	OwnedBy          string `json:"owned_by"`
	Created          int64  `json:"created"`
	ContextLength    int    `json:"context_length"`
	MaxContextLength int    `json:"max_context_length"`
	MaxModelLen      int    `json:"max_model_len"`
}

type modelList struct {
	Object string       `json:"object"`
	Data   []modelEntry `json:"data"`
}

func (s *Server) entry(m *model.Model) modelEntry {
	n := s.Context(m)
	return modelEntry{ID: m.Name, Object: "model", OwnedBy: "tandem", Created: m.Created, ContextLength: n, MaxContextLength: n, MaxModelLen: n}
}

// Context is the context length that requests get: the workers', else the model's own.
func (s *Server) Context(m *model.Model) int {
	if n := s.Cluster.Targets.MaxContext(); n > 0 {
		return n
	}
	return m.Context
}

// models serves /v1/models. Without a model the list is empty.
func (s *Server) models(w http.ResponseWriter, _ *http.Request) error {
	list := modelList{Object: "list", Data: []modelEntry{}}
	if m, err := s.Model(); err == nil {
		list.Data = append(list.Data, s.entry(m))
	}
	return writeJSON(w, http.StatusOK, list)
}

// oneModel serves /v1/models/{id}.
func (s *Server) oneModel(w http.ResponseWriter, _ *http.Request, id string) error {
	m, err := s.Model()
	if err != nil || m.Name != id {
		return apierror.ModelNotFound(id)
	}
	return writeJSON(w, http.StatusOK, s.entry(m))
}
