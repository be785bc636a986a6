package openai

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"

	"github.com/tandem-inference/tandem/gateway/internal/generate"
	"github.com/tandem-inference/tandem/gateway/internal/jsontext"
	"github.com/tandem-inference/tandem/gateway/internal/model"
	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	"github.com/tandem-inference/tandem/gateway/internal/reqjson"
	"github.com/tandem-inference/tandem/gateway/internal/sse"
	"github.com/tandem-inference/tandem/gateway/internal/turn"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/bounds"
	"github.com/tandem-inference/tandem/services/tokenizer"
)

// Limits and defaults of legacy completions.
const (
	defaultCompletionTokens = 16
	maxCompletions          = 32
)

// Completions serves POST /v1/completions.
func (s *Service) Completions(w http.ResponseWriter, r *http.Request) error {
	o, m, name, err := s.turn.Read(r)
	if err != nil {
		return err
	}
	req, err := s.turn.Base(r, o, m, 0)
	if err != nil {
		return err
	}
	opts, err := parseStreamOptions(o, s.cfg.StreamUsageDefault)
	if err != nil {
		return err
	}
	if err := s.turn.Check(); err != nil {
		return err
	}
	fill, err := parseSuffix(o, m)
	if err != nil {
		return err
	}
	prompts, err := s.parsePrompts(o, m, fill)
	if err != nil {
		return err
	}
	if n := len(prompts) * req.N; n > maxCompletions {
		return reqerr.InvalidValue("n", "gives %d choices, at most %d are allowed", n, maxCompletions)
	}
	echo, err := s.completionFields(o, req)
	if err != nil {
		return err
	}
	p := s.turn.Raw(m, req)
	if err := s.turn.Constraint(m, req, p); err != nil {
		return err
	}
	p.Run.Prompts = prompts
	if fill != nil && echo {
		return reqerr.Unsupported("suffix", "cannot be combined with echo")
	}
	p.Run.PromptLogprobs = echo && req.TopLogprobs != generate.NoLogprobs
	env := newEnvelope(turn.ResponseID(r.Context(), "cmpl-"), "text_completion", name, m.Fingerprint, opts)
	sink := newCompletionSink(env, m.Tokenizer, p.Run, echo)
	if req.Stream {
		return s.turn.Stream(w, r, p, func(out *sse.Writer) turn.Stream {
			sink.w = out
			return sink
		})
	}
	return s.turn.Whole(w, r, p, sink, func(u *generate.Usage) any { return sink.answer(u) })
}

// completionFields reads what only this endpoint has.
func (s *Service) completionFields(o reqjson.Object, req *turn.Request) (echo bool, err error) {
	if echo, _, err = o.Bool("echo"); err != nil {
		return false, err
	}
	if best, ok, err := o.Int(bounds.AtLeast(1), "best_of"); err != nil {
		return false, err
	} else if ok && int(best) != req.N {
		return false, reqerr.Unsupported("best_of", "must equal n")
	}
	if raw, _, ok := o.Raw("logprobs"); ok && reqjson.Kind(raw) == 'b' {
		if on, _, _ := o.Bool("logprobs"); on {
			req.TopLogprobs = 0
		}
	} else if n, ok, err := o.Int(bounds.Between(0, turn.MaxTopLogprobs), "logprobs"); err != nil {
		return false, err
	} else if ok {
		req.TopLogprobs = int(n)
	}
	if !req.MaxTokensGiven {
		req.MaxTokens, req.MaxTokensGiven = defaultCompletionTokens, true
	}
	if req.MaxTokens == 0 && !echo {
		return false, reqerr.InvalidValue("max_tokens", "must be at least 1 without echo, got 0")
	}
	return echo, nil
}

// middle is how a prompt asks for the text between it and a suffix: prefix, prompt, suffix.
type middle struct {
	prefix int32
	suffix []int32 // with the marks around it
}

// fillMarks are those of vocabularies that can fill in the middle, in the order prefix, suffix, middle. The tokens that
// end what is filled in (fim_pad, file_sep …) are among the vocabulary's stop tokens.
var fillMarks = [3]string{"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"}

// parseSuffix reads suffix; nil = none.
func parseSuffix(o reqjson.Object, m *model.Model) (*middle, error) {
	suffix, ok, err := o.String("suffix")
	if err != nil || !ok || suffix == "" {
		return nil, err
	}
	var marks [3]int32
	for i, mark := range fillMarks {
		if marks[i], ok = control(m, mark); !ok {
			return nil, reqerr.Unsupported("suffix",
				"needs a vocabulary with the token %s, which this model's lacks", mark)
		}
	}
	out := &middle{prefix: marks[0], suffix: append([]int32{marks[1]}, m.Tokenizer.Encode(suffix, tokenizer.Options{})...)}
	out.suffix = append(out.suffix, marks[2])
	return out, nil
}

// control finds a mark that is a token of its own.
func control(m *model.Model, mark string) (int32, bool) {
	id, ok := m.Tokenizer.ID(mark)
	kind := m.Tokenizer.TokenKind(id)
	return id, ok && kind != tokenizer.KindNormal && kind != tokenizer.KindByte
}

// parsePrompts reads a string, an array of strings, an array of tokens, or an array of such arrays. Control tokens in
// text are recognised, because a raw prompt is the caller's own template, unless there is a suffix: then prompt and
// suffix are the halves of somebody's file.
func (s *Service) parsePrompts(o reqjson.Object, m *model.Model, fill *middle) ([]generate.Prompt, error) {
	raw, _, ok := o.Raw("prompt")
	if !ok {
		return nil, reqerr.Missing("prompt")
	}
	var out []generate.Prompt
	add := func(ids []int32, path string) error {
		if len(ids) == 0 {
			return reqerr.Missing(path)
		}
		if len(out) == maxCompletions {
			return reqerr.InvalidValue("prompt", "has more than %d prompts", maxCompletions)
		}
		if fill != nil {
			ids = slices.Concat([]int32{fill.prefix}, ids, fill.suffix)
		}
		out = append(out, generate.Prompt{Tokens: ids})
		return nil
	}
	text := func(raw json.RawMessage, path string) error {
		var t string
		if err := json.Unmarshal(raw, &t); err != nil {
			return reqerr.InvalidValue(path, "must be a string")
		}
		if err := s.turn.CheckLength(m, t); err != nil {
			return err
		}
		return add(m.Tokenizer.Encode(t, tokenizer.Options{ParseSpecial: fill == nil}), path)
	}
	if reqjson.Kind(raw) == 's' {
		err := text(raw, "prompt")
		return out, err
	}
	list, ok := reqjson.Elements(raw)
	if !ok {
		return nil, reqerr.InvalidValue("prompt",
			"must be a string, an array of strings, an array of tokens or an array of token arrays")
	}
	var first json.RawMessage
	for first = range list {
		break
	}
	if first == nil {
		return nil, reqerr.Missing("prompt")
	}
	if reqjson.Kind(first) == 'n' {
		ids, err := parseTokens(raw, "prompt", m.Tokenizer.VocabSize())
		if err != nil {
			return nil, err
		}
		err = add(ids, "prompt")
		return out, err
	}
	i := 0
	for e := range list {
		path := reqjson.Index("prompt", i)
		i++
		var err error
		switch reqjson.Kind(e) {
		case 's':
			err = text(e, path)
		case 'a':
			var ids []int32
			if ids, err = parseTokens(e, path, m.Tokenizer.VocabSize()); err == nil {
				err = add(ids, path)
			}
		default:
			err = reqerr.InvalidValue(path, "must be a string or an array of tokens")
		}
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// parseTokens reads an array of token ids.
func parseTokens(raw json.RawMessage, path string, vocab int) ([]int32, error) {
	list, ok := reqjson.Elements(raw)
	if !ok {
		return nil, reqerr.InvalidValue(path, "must be an array of tokens")
	}
	n := 0
	for range list {
		n++
	}
	ids := make([]int32, 0, n)
	for e := range list {
		id, ok := reqjson.Int64(e)
		if !ok || id < 0 || id >= int64(vocab) {
			return nil, reqerr.InvalidValue(reqjson.Index(path, len(ids)), "is not a token id below %d", vocab)
		}
		ids = append(ids, int32(id))
	}
	return ids, nil
}

// ParseTokens reads the token array under a name, for /detokenize.
func ParseTokens(o reqjson.Object, name string, vocab int) ([]int32, error) {
	raw, _, ok := o.Raw(name)
	if !ok {
		return nil, reqerr.Missing(name)
	}
	return parseTokens(raw, o.Path(name), vocab)
}

// completionSink writes or collects legacy completions.
type completionSink struct {
	closing
	tok  *tokenizer.Tokenizer
	req  *generate.Request
	echo bool
	w    *sse.Writer // nil = collect

	choices []completionChoice
}

type completionChoice struct {
	text    []byte
	classic *classic
	end     generate.Choice
	echoed  bool
}

func newCompletionSink(env *envelope, tok *tokenizer.Tokenizer, req *generate.Request, echo bool) *completionSink {
	c := &completionSink{closing: closing{env}, tok: tok, req: req, echo: echo,
		choices: make([]completionChoice, len(req.Prompts)*req.N)}
	if req.TopLogprobs != generate.NoLogprobs {
		for i := range c.choices {
			c.choices[i].classic = &classic{tok: tok}
		}
	}
	return c
}

// Begin implements turn.Stream.
func (c *completionSink) Begin() error {
	return c.w.Begin(func(dst []byte) []byte { return dst })
}

// Ping implements turn.Stream: a chunk without text. It runs beside the choices and touches none of their state.
func (c *completionSink) Ping(dst []byte) []byte {
	dst = append(dst, c.env.head...)
	dst = append(dst, `{"index":0,"text":"","logprobs":null,"finish_reason":null}`...)
	return c.env.tail(dst)
}

// Admitted implements generate.Sink.
func (c *completionSink) Admitted() error {
	if c.w != nil {
		return c.Begin()
	}
	return nil
}

// Prompt implements generate.Sink.
func (c *completionSink) Prompt(index int, logprobs []*tandemv1.PositionLogprobs) error {
	ch := &c.choices[index]
	if ch.classic == nil {
		return nil
	}
	for i, id := range c.req.Prompts[index/c.req.N].Tokens {
		if i == 0 || i > len(logprobs) {
			ch.classic.add(promptEntry(id, nil), false)
		} else {
			ch.classic.add(promptEntry(id, logprobs[i-1]), true)
		}
	}
	return c.emit(index, nil)
}

// emit sends or collects text; the prompt comes first when it is echoed.
func (c *completionSink) emit(index int, text []byte) error {
	ch := &c.choices[index]
	if c.echo && !ch.echoed {
		ch.echoed = true
		text = append([]byte(c.tok.Decode(c.req.Prompts[index/c.req.N].Tokens, true)), text...)
	}
	if c.w == nil {
		ch.text = append(ch.text, text...)
		return nil
	}
	return c.w.Send(func(dst []byte) []byte { return c.chunk(dst, index, text, nil) })
}

// Delta implements generate.Sink.
func (c *completionSink) Delta(index int, d generate.Delta) error {
	for _, ev := range d.Events {
		if cl := c.choices[index].classic; cl != nil {
			for _, e := range ev.Entries {
				cl.add(e, true)
			}
		}
		// Nothing but content: legacy completions know neither reasoning nor tools.
		if err := c.emit(index, ev.Text); err != nil {
			return err
		}
	}
	return nil
}

// Done implements generate.Sink.
func (c *completionSink) Done(index int, end generate.Choice) error {
	ch := &c.choices[index]
	ch.end = end
	if c.echo && !ch.echoed {
		if err := c.emit(index, nil); err != nil {
			return err
		}
	}
	if c.w == nil {
		return nil
	}
	return c.w.Send(func(dst []byte) []byte { return c.chunk(dst, index, nil, &end) })
}

// chunk appends a stream chunk; end is set in the last one of a choice.
func (c *completionSink) chunk(dst []byte, index int, text []byte, end *generate.Choice) []byte {
	dst = append(dst, c.env.head...)
	dst = append(dst, `{"index":`...)
	dst = strconv.AppendInt(dst, int64(index), 10)
	dst = append(dst, `,"text":`...)
	dst = jsontext.AppendString(dst, text)
	dst = append(dst, `,"logprobs":`...)
	if cl := c.choices[index].classic; cl != nil && cl.n > 0 {
		dst = cl.take(dst)
	} else {
		dst = append(dst, "null"...)
	}
	dst = append(dst, `,"finish_reason":`...)
	if end == nil {
		dst = append(dst, "null"...)
	} else {
		dst = jsontext.AppendString(dst, end.Finish)
		if end.StopString != "" {
			dst = append(dst, `,"stop_sequence":`...)
			dst = jsontext.AppendString(dst, end.StopString)
		}
		if fd := turn.NewFinishDetails(end); fd != nil {
			dst = append(dst, `,"finish_details":`...)
			dst = appendJSON(dst, fd)
		}
	}
	dst = append(dst, '}')
	return c.env.tail(dst)
}

type completion struct {
	ID          string             `json:"id"`
	Object      string             `json:"object"`
	Created     int64              `json:"created"`
	Model       string             `json:"model"`
	Fingerprint string             `json:"system_fingerprint"`
	Choices     []completionAnswer `json:"choices"`
	Usage       *Usage             `json:"usage"`
}

type completionAnswer struct {
	Index         int                 `json:"index"`
	Text          string              `json:"text"`
	Logprobs      json.RawMessage     `json:"logprobs"`
	FinishReason  string              `json:"finish_reason"`
	StopSequence  string              `json:"stop_sequence,omitempty"`
	FinishDetails *turn.FinishDetails `json:"finish_details,omitempty"`
}

func (c *completionSink) answer(u *generate.Usage) *completion {
	out := &completion{ID: c.env.id, Object: "text_completion", Created: c.env.created, Model: c.env.model,
		Fingerprint: c.env.fingerprint, Usage: NewUsage(u)}
	for i := range c.choices {
		ch := &c.choices[i]
		a := completionAnswer{Index: i, Text: string(ch.text), FinishReason: ch.end.Finish, StopSequence: ch.end.StopString,
			FinishDetails: turn.NewFinishDetails(&ch.end)}
		if ch.classic != nil {
			a.Logprobs = ch.classic.take(nil)
		}
		out.Choices = append(out.Choices, a)
	}
	return out
}
