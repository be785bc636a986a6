package httpapi

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/emit"
	"github.com/tandem-inference/tandem/gateway/internal/model"
	"github.com/tandem-inference/tandem/gateway/internal/modelcard"
	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
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
	return modelEntry{ID: m.Name, Object: "model", OwnedBy: "tandem", Created: m.Created, ContextLength: n,
		MaxContextLength: n, MaxModelLen: n}
}

// Context is the context length that requests get: the workers', else the model's own.
func (s *Server) Context(m *model.Model) int {
	return m.Limit(s.targets.MaxContext())
}

// models serves /v1/models in the shape that the client knows: Codex names its version in the query, clients of
// Anthropic's dialect in a header. Without a model the list is empty.
func (s *Server) models(w http.ResponseWriter, r *http.Request) error {
	m, err := s.model()
	if err != nil {
		m = nil
	}
	switch {
	case r.URL.Query().Has("client_version"):
		return writeJSON(w, http.StatusOK, s.codexModels(m))
	case anthropicClient(r):
		return writeJSON(w, http.StatusOK, anthropicModels(m))
	}
	list := modelList{Object: "list", Data: []modelEntry{}}
	if m != nil {
		list.Data = append(list.Data, s.entry(m))
	}
	return writeJSON(w, http.StatusOK, list)
}

// oneModel serves /v1/models/{id}.
func (s *Server) oneModel(w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	m, err := s.model()
	if err != nil || m.Name != id {
		return reqerr.UnknownModel(id)
	}
	if anthropicClient(r) {
		return writeJSON(w, http.StatusOK, newAnthropicModel(m))
	}
	return writeJSON(w, http.StatusOK, s.entry(m))
}

// anthropicModel is a model in Anthropic's shape.
type anthropicModel struct {
	Type        string `json:"type"`
	ID          string `json:"id"`
	DisplayName string `json:"display_name"`
	CreatedAt   string `json:"created_at"`
}

type anthropicList struct {
	Data    []anthropicModel `json:"data"`
	HasMore bool             `json:"has_more"`
	FirstID *string          `json:"first_id"`
	LastID  *string          `json:"last_id"`
}

func newAnthropicModel(m *model.Model) anthropicModel {
	return anthropicModel{Type: "model", ID: m.Name, DisplayName: m.Name,
		CreatedAt: time.Unix(m.Created, 0).UTC().Format(time.RFC3339)}
}

func anthropicModels(m *model.Model) anthropicList {
	list := anthropicList{Data: []anthropicModel{}}
	if m != nil {
		list.Data = append(list.Data, newAnthropicModel(m))
		list.FirstID, list.LastID = &m.Name, &m.Name
	}
	return list
}

// codexModel is a model in the shape of Codex.
type codexModel struct {
	Slug                       string       `json:"slug"`
	DisplayName                string       `json:"display_name"`
	Description                string       `json:"description"`
	DefaultReasoningLevel      string       `json:"default_reasoning_level"`
	SupportedReasoningLevels   []codexLevel `json:"supported_reasoning_levels"`
	ShellType                  string       `json:"shell_type"`
	Visibility                 string       `json:"visibility"`
	SupportedInAPI             bool         `json:"supported_in_api"`
	Priority                   int          `json:"priority"`
	ContextWindow              int          `json:"context_window"`
	SupportsReasoningSummaries bool         `json:"supports_reasoning_summaries"`
	SupportsParallelToolCalls  bool         `json:"supports_parallel_tool_calls"`
}

type codexLevel struct {
	Effort      string `json:"effort"`
	Description string `json:"description"`
}

type codexList struct {
	Models []codexModel `json:"models"`
}

func (s *Server) codexModels(m *model.Model) codexList {
	list := codexList{Models: []codexModel{}}
	if m == nil {
		return list
	}
	c := codexModel{
		Slug: m.Name, DisplayName: m.Name, Description: "served by Tandem", DefaultReasoningLevel: "low",
		SupportedReasoningLevels: []codexLevel{}, ShellType: "shell_command", Visibility: "list",
		SupportedInAPI: true, Priority: 1, ContextWindow: s.Context(m), SupportsParallelToolCalls: true,
	}
	if m.ThinkClose != emit.None {
		e := s.envelope(m)
		for i, name := range modelcard.Efforts {
			c.SupportedReasoningLevels = append(c.SupportedReasoningLevels, codexLevel{
				Effort:      strings.ReplaceAll(name, "-", ""), // Codex knows this level without a hyphen
				Description: fmt.Sprintf("up to %d tokens of reasoning", e.Tiers[i]),
			})
		}
	}
	list.Models = append(list.Models, c)
	return list
}
