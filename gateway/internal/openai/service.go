// Package openai serves the OpenAI dialect: chat completions and legacy completions, streamed or whole.
package openai

import (
	"net/http"

	"github.com/tandem-inference/tandem/gateway/internal/model"
	"github.com/tandem-inference/tandem/gateway/internal/reqjson"
	"github.com/tandem-inference/tandem/gateway/internal/turn"
)

// Config of the dialect.
type Config struct {
	StreamUsageDefault bool
}

// Deps of the dialect.
type Deps struct {
	Turn *turn.Service
}

// Service answers requests of the dialect.
type Service struct {
	cfg  Config
	turn *turn.Service
}

// New returns the dialect's handlers.
func New(cfg Config, deps Deps) *Service { return &Service{cfg: cfg, turn: deps.Turn} }

// parse reads a chat request; legacy reports that it has functions instead of tools.
func (s *Service) parse(r *http.Request, o reqjson.Object, m *model.Model) (req *turn.Request, legacy bool, err error) {
	if req, err = s.turn.Parse(r, o, m); err != nil {
		return nil, false, err
	}
	if legacy, err = parseFunctions(o, req); err != nil {
		return nil, false, err
	}
	req.Messages, err = parseMessages(o, s.turn.Omit(req))
	return req, legacy, err
}

// Rendered gives the prompt of a chat request, for /apply-template and /tokenize, and puts what was left out of it into
// h. All fields of the request are checked.
func (s *Service) Rendered(h http.Header, r *http.Request, o reqjson.Object, m *model.Model) (*model.Rendered, error) {
	req, _, err := s.parse(r, o, m)
	if err != nil {
		return nil, err
	}
	if err := s.chatFields(o, req); err != nil {
		return nil, err
	}
	if _, err := parseStreamOptions(o, s.cfg.StreamUsageDefault); err != nil {
		return nil, err
	}
	rendered, err := s.turn.Render(m, req)
	if err != nil {
		return nil, err
	}
	s.turn.Warn(h, req)
	return rendered, nil
}
