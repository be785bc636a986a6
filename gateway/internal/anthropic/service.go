package anthropic

import (
	"net/http"

	"github.com/tandem-inference/tandem/gateway/internal/generate"
	"github.com/tandem-inference/tandem/gateway/internal/model"
	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	"github.com/tandem-inference/tandem/gateway/internal/reqjson"
	"github.com/tandem-inference/tandem/gateway/internal/seal"
	"github.com/tandem-inference/tandem/gateway/internal/sse"
	"github.com/tandem-inference/tandem/gateway/internal/turn"
	"github.com/tandem-inference/tandem/services/telemetry"
	"go.uber.org/zap"
)

// Config of the dialect.
type Config struct {
	// InputTotal makes input_tokens of usage the whole prompt.
	InputTotal bool
	// Key signs thinking blocks.
	Key seal.Key
}

// Deps of the dialect.
type Deps struct {
	Turn   *turn.Service
	Logger *zap.Logger
}

// Service answers requests of the dialect.
type Service struct {
	cfg    Config
	turn   *turn.Service
	log    *zap.Logger
	signer *seal.Sealer
}

// New returns the dialect's handlers.
func New(cfg Config, deps Deps) *Service {
	if deps.Logger == nil {
		deps.Logger = zap.NewNop()
	}
	return &Service{cfg: cfg, turn: deps.Turn, log: deps.Logger, signer: seal.New(cfg.Key, "messages.thinking")}
}

// Messages serves POST /v1/messages.
func (s *Service) Messages(w http.ResponseWriter, r *http.Request) error {
	o, m, name, err := s.turn.Read(r)
	if err != nil {
		return err
	}
	req, err := s.parse(r, o, m)
	if err != nil {
		return err
	}
	p, err := s.turn.Prepare(m, req)
	if err != nil {
		return err
	}
	display, err := thinkingDisplay(o)
	if err != nil {
		return err
	}
	a := &answer{
		output:  output{sign: s.signer.Sign, events: req.Stream},
		message: message{ID: turn.ResponseID(r.Context(), "msg_"), Type: "message", Role: "assistant", Model: name},
		total:   s.cfg.InputTotal,
	}
	if display == displayOmitted {
		a.seal = s.signer.Seal
	}
	if req.Stream {
		return s.turn.Stream(w, r, p, func(out *sse.Writer) turn.Stream {
			return &stream{answer: a, w: out, requestID: req.ID, prompt: p.PromptTokens}
		})
	}
	return s.turn.Whole(w, r, p, a, func(u *generate.Usage) any { return a.complete(u) })
}

// displayOmitted is the thinking.display that asks for blocks without their text.
const displayOmitted = "omitted"

// thinkingDisplay reads thinking.display. Clients send values of their own too, which show the text.
func thinkingDisplay(o reqjson.Object) (string, error) {
	thinking, ok, err := o.Object("thinking")
	if err != nil || !ok {
		return "", err
	}
	display, _, err := thinking.String("display")
	return display, err
}

// CountTokens serves POST /v1/messages/count_tokens: the prompt of the same body, before compression.
func (s *Service) CountTokens(w http.ResponseWriter, r *http.Request) error {
	o, m, _, err := s.turn.Read(r)
	if err != nil {
		return err
	}
	req, err := s.parse(r, o, m)
	if err != nil {
		return err
	}
	rendered, err := s.turn.Render(m, req)
	if err != nil {
		return err
	}
	s.turn.Warn(w.Header(), req)
	return turn.WriteJSON(w, map[string]int{"input_tokens": len(rendered.Tokens)})
}

func (s *Service) parse(r *http.Request, o reqjson.Object, m *model.Model) (*turn.Request, error) {
	req, err := s.turn.Parse(r, o, m)
	if err != nil {
		return nil, err
	}
	req.ReturnsReasoning = true
	if err := req.OneChoice(); err != nil {
		return nil, err
	}
	// The dialect has no log-probabilities.
	req.TopLogprobs = generate.NoLogprobs
	req.NewCallID = func() string { return turn.NewID("toolu_") }
	if raw, _, ok := o.Peek("output_config"); ok && reqjson.Kind(raw) == 'o' {
		config, _, err := o.Object("output_config")
		if err != nil {
			return nil, err
		}
		format, err := turn.ParseFormat(config, "format")
		if err != nil {
			return nil, err
		}
		if format.Kind != turn.FormatText {
			format.Lenient = false // this API promises that the schema is held
			req.Format = format
		}
	}
	if _, err := thinkingDisplay(o); err != nil {
		return nil, err
	}
	// The form of earlier clients.
	format, err := turn.ParseFormat(o, "output_format")
	if err != nil {
		return nil, err
	}
	if format.Kind != turn.FormatText {
		req.Format = format
	}
	if o.Has("thread") {
		return nil, reqerr.Unsupported("thread", "is not supported: send the whole conversation")
	}
	in := &reader{omit: s.turn.Omit(req), open: s.signer.Open, tools: req.Tools}
	if err := in.system(o); err != nil {
		return nil, err
	}
	if err := in.messages(o); err != nil {
		return nil, err
	}
	req.Messages, req.SkippedItems = in.msgs, in.skipped
	if len(in.skipped) > 0 {
		s.log.Debug("content blocks were left out",
			zap.String(telemetry.KeyRequestID, req.ID), zap.Strings("types", in.skipped))
	}
	return req, nil
}
