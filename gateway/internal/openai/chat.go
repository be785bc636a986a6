package openai

import (
	"net/http"

	"github.com/tandem-inference/tandem/gateway/internal/generate"
	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	"github.com/tandem-inference/tandem/gateway/internal/reqjson"
	"github.com/tandem-inference/tandem/gateway/internal/sse"
	"github.com/tandem-inference/tandem/gateway/internal/turn"
)

// Chat serves POST /v1/chat/completions.
func (s *Service) Chat(w http.ResponseWriter, r *http.Request) error {
	o, m, name, err := s.turn.Read(r)
	if err != nil {
		return err
	}
	req, legacy, err := s.parse(r, o, m)
	if err != nil {
		return err
	}
	if err := s.chatFields(o, req); err != nil {
		return err
	}
	opts, err := parseStreamOptions(o, s.cfg.StreamUsageDefault)
	if err != nil {
		return err
	}
	p, err := s.turn.Prepare(m, req)
	if err != nil {
		return err
	}
	if req.Stream {
		env := newEnvelope(turn.ResponseID(r.Context(), "chatcmpl-"), "chat.completion.chunk", name, m.Fingerprint, opts)
		return s.turn.Stream(w, r, p, func(out *sse.Writer) turn.Stream {
			return &chatStream{closing: closing{env}, w: out, tok: m.Tokenizer, n: req.N, legacy: legacy,
				custom: map[int]*customText{}}
		})
	}
	sink := newChatWhole(m.Tokenizer, req.N, req.TopLogprobs != generate.NoLogprobs)
	sink.legacy = legacy
	env := newEnvelope(turn.ResponseID(r.Context(), "chatcmpl-"), "chat.completion", name, m.Fingerprint, opts)
	return s.turn.Whole(w, r, p, sink, func(u *generate.Usage) any { return sink.answer(env, u) })
}

// chatFields reads what only chat has.
func (s *Service) chatFields(o reqjson.Object, req *turn.Request) error {
	format, err := turn.ParseFormat(o, "response_format")
	if err != nil {
		return err
	}
	if format.Kind != turn.FormatText {
		req.Format = format
	}
	if err := checkModalities(o); err != nil {
		return err
	}
	if req.TopLogprobs, err = parseChatLogprobs(o); err != nil {
		return err
	}
	req.ReasoningInContent, err = parseReasoningFormat(o)
	if err == nil && req.ReasoningInContent && req.TopLogprobs != generate.NoLogprobs {
		return reqerr.Unsupported("reasoning_format", "none cannot be combined with logprobs, which cover the answer only")
	}
	return err
}

// parseReasoningFormat reads where reasoning goes: into reasoning_content, or none of it out of the content.
func parseReasoningFormat(o reqjson.Object) (inContent bool, err error) {
	format, given, err := o.String("reasoning_format")
	if err != nil || !given {
		return false, err
	}
	switch format {
	case "none":
		return true, nil
	case "auto", "deepseek":
		return false, nil
	}
	return false, reqerr.InvalidValue("reasoning_format", "must be auto, deepseek or none, got %q", format)
}
