package openai

import (
	"errors"
	"net/http"

	"github.com/tandem-inference/tandem/gateway/internal/apierror"
	"github.com/tandem-inference/tandem/gateway/internal/chat"
	"github.com/tandem-inference/tandem/gateway/internal/compress"
	"github.com/tandem-inference/tandem/gateway/internal/generate"
	"github.com/tandem-inference/tandem/gateway/internal/model"
	"github.com/tandem-inference/tandem/gateway/internal/reqjson"
	"github.com/tandem-inference/tandem/gateway/internal/sse"
	"github.com/tandem-inference/tandem/services/chattemplate"
)

// Conversation reads what the template needs of a chat body: messages, tools, thinking. It also returns the types of tools
// that were left out.
func (s *Service) Conversation(o reqjson.Object) (*chat.Conversation, []string, error) {
	msgs, err := parseMessages(o)
	if err != nil {
		return nil, nil, err
	}
	tools, err := parseTools(o)
	if err != nil {
		return nil, nil, err
	}
	if err := checkToolChoice(o, tools); err != nil {
		return nil, nil, err
	}
	conv := &chat.Conversation{Messages: msgs, Tools: tools.list}
	conv.Thinking, conv.Kwargs, err = parseThinking(o, s.cfg.DefaultThinking)
	return conv, tools.skipped, err
}

// Render renders a conversation; template errors are answers.
func Render(m *model.Model, conv *chat.Conversation) (*model.Rendered, error) {
	r, err := m.Render(conv)
	var te *chattemplate.Error
	if errors.As(err, &te) {
		return nil, apierror.Template(err)
	}
	return r, err
}

// Chat serves POST /v1/chat/completions.
func (s *Service) Chat(w http.ResponseWriter, r *http.Request) error {
	o, m, name, err := s.read(r)
	if err != nil {
		return err
	}
	req, so, err := s.request(r, o, m, 1)
	if err != nil {
		return err
	}
	if err := checkFormat(o); err != nil {
		return err
	}
	if err := checkModalities(o); err != nil {
		return err
	}
	if req.TopLogprobs, err = parseChatLogprobs(o); err != nil {
		return err
	}
	conv, skipped, err := s.Conversation(o)
	if err != nil {
		return err
	}
	rendered, err := Render(m, conv)
	if err != nil {
		return err
	}
	req.SplitReasoning = true
	prompt := generate.Prompt{Tokens: rendered.Tokens, Thinking: rendered.Thinking}
	if prompt.Compress, err = s.compression(o, m, conv, len(rendered.Tokens), req.ID); err != nil {
		return err
	}
	req.Prompts = []generate.Prompt{prompt}
	warnTools(w, skipped)
	wantLogprobs := req.TopLogprobs != generate.NoLogprobs
	if so.stream {
		env := newEnvelope(newID("chatcmpl-"), "chat.completion.chunk", name, m.Fingerprint, so)
		return s.stream(w, r, req, env, func(out *sse.Writer) streamSink {
			return &chatStream{env: env, w: out, tok: m.Tokenizer, n: req.N}
		})
	}
	sink := newChatWhole(m.Tokenizer, req.N, wantLogprobs)
	env := newEnvelope(newID("chatcmpl-"), "chat.completion", name, m.Fingerprint, so)
	return s.whole(w, r, req, sink, func(u *generate.Usage) any { return sink.answer(env, u) })
}

// compression decides whether the prompt is to be compressed and how.
func (s *Service) compression(o reqjson.Object, m *model.Model, conv *chat.Conversation, tokens int, id string) (compress.Func, error) {
	want, err := parsePflash(o)
	if err != nil {
		return nil, err
	}
	if s.Compressor == nil {
		if want.Mode == compress.ModeAuto || want.Mode == compress.ModeAlways {
			return nil, apierror.Unsupported("pflash", "needs a scorer, which this server does not have")
		}
		return nil, nil
	}
	return s.Compressor.Plan(want, m, conv, tokens, id)
}

// parsePflash reads the request's wishes about compression.
func parsePflash(o reqjson.Object) (want compress.Wish, err error) {
	p, ok, err := o.Object("pflash")
	if err != nil || !ok {
		return want, err
	}
	mode, given, err := p.String("mode")
	if err != nil {
		return want, err
	}
	if given {
		switch mode {
		case compress.ModeOff, compress.ModeAuto, compress.ModeAlways:
			want.Mode = mode
		default:
			return want, apierror.InvalidValue("pflash.mode", "must be off, auto or always, got %q", mode)
		}
	}
	n, _, err := p.Int(reqjson.Between(1, 1<<31-1), "threshold")
	if err != nil {
		return want, err
	}
	want.Threshold = int(n)
	if want.KeepRatio, _, err = p.Float(reqjson.Above(0, 1), "keep_ratio"); err != nil {
		return want, err
	}
	n, want.MinChunksGiven, err = p.Int(reqjson.Between(0, 1<<20), "min_chunks")
	want.MinChunks = int(n)
	if err != nil {
		return want, err
	}
	_, _, err = p.Float(reqjson.Between(0, 1), "code_floor")
	return want, err
}
