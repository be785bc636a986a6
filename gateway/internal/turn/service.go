package turn

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/chat"
	"github.com/tandem-inference/tandem/gateway/internal/chattemplate"
	"github.com/tandem-inference/tandem/gateway/internal/compress"
	"github.com/tandem-inference/tandem/gateway/internal/emit"
	"github.com/tandem-inference/tandem/gateway/internal/generate"
	"github.com/tandem-inference/tandem/gateway/internal/model"
	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	"github.com/tandem-inference/tandem/gateway/internal/reqjson"
	"github.com/tandem-inference/tandem/gateway/internal/toolcall"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/telemetry"
	"go.uber.org/zap"
)

// Config of a Service.
type Config struct {
	MaxN            int
	DefaultThinking bool
	StrictModel     bool
	Keepalive       time.Duration
	RequestTimeout  time.Duration
	// QueuedHeaders replaces DefaultQueuedHeaders when it is not 0.
	QueuedHeaders time.Duration
	// IsolateCache separates the states in the prefix cache by API key.
	IsolateCache bool
	// ReadAhead lets a worker read the next prompt of a conversation while its client is busy.
	ReadAhead bool
	// ImagePlaceholder replaces images and the like by a text; without it they are errors.
	ImagePlaceholder bool
}

// Deps of a Service.
type Deps struct {
	// Model returns the served model or the error that a request gets while there is none.
	Model func() (*model.Model, error)
	// Await is Model for requests: it waits for the first model of a gateway that has just started. nil = Model.
	Await func(ctx context.Context) (*model.Model, error)
	// Generator may be nil where requests are only parsed and rendered.
	Generator Generator
	// Compressor may be nil: then compression is off.
	Compressor Compressor
	// Budgets may be nil: then the generator's defaults hold, and reasoning has no limit.
	Budgets Budgets
	// Memory may be nil: then calls of earlier turns are always rendered by the template.
	Memory *toolcall.Memory
	// Ahead may be nil: then nothing is read ahead.
	Ahead  Ahead
	Logger *zap.Logger
}

// Generator runs requests on the cluster.
type Generator interface {
	Run(ctx context.Context, req *generate.Request, sink generate.Sink) (*generate.Usage, error)
	// MaxContext is the longest context in tokens that workers offer, 0 = unknown.
	MaxContext() int
	// Check reports, without waiting, whether a request could be queued now.
	Check() error
}

// Compressor decides which prompts are shortened, and how.
type Compressor interface {
	Wanted(want compress.Settings) bool
	Plan(want compress.Settings, m *model.Model, conv *chat.Conversation, tokens int, requestID string) (
		compress.Func, error)
}

// Budgets holds a model's own settings: lengths, sampling, and how long reasoning may last.
type Budgets interface {
	// DefaultMaxTokens is the output limit of requests that give none.
	DefaultMaxTokens(m *model.Model) int
	// Sampling returns the model's own defaults of the sampler's fields; nil = none.
	Sampling(m *model.Model) *tandemv1.Sampling
	// Budget resolves the reasoning settings of a request whose thinking is on.
	Budget(m *model.Model, t Thinking) (Budget, error)
}

// Budget is a resolved limit of reasoning.
type Budget struct {
	// DefaultMaxTokens replaces the default of max_tokens: the reasoning must fit.
	DefaultMaxTokens int
	// Reasoning is for a choice of at most max tokens whose prompt ends inside reasoning or not; see generate.Request.
	Reasoning func(max int, inside bool) *tandemv1.Reasoning
}

// MaxTokenize is the most bytes of text that a client may have tokenised at a time, and the most tokens detokenised,
// outside of prompts: no context bounds them. Both take several times their own memory while they are at work.
const MaxTokenize = 16 << 20

// Service turns normalised requests into generations.
type Service struct {
	cfg        Config
	model      func() (*model.Model, error)
	await      func(ctx context.Context) (*model.Model, error)
	generator  Generator
	compressor Compressor
	budgets    Budgets
	memory     *toolcall.Memory
	ahead      Ahead
	expected   chan *expectation // read by RunAhead
	log        *zap.Logger
}

// New returns a service.
func New(cfg Config, deps Deps) *Service {
	if deps.Logger == nil {
		deps.Logger = zap.NewNop()
	}
	if !cfg.ReadAhead {
		deps.Ahead = nil
	}
	if deps.Await == nil {
		deps.Await = func(context.Context) (*model.Model, error) { return deps.Model() }
	}
	return &Service{
		cfg: cfg, model: deps.Model, await: deps.Await, generator: deps.Generator, compressor: deps.Compressor,
		budgets: deps.Budgets, memory: deps.Memory, ahead: deps.Ahead, expected: make(chan *expectation, mostExpected),
		log: deps.Logger,
	}
}

// Model returns the served model or the error that a request gets while there is none.
func (s *Service) Model() (*model.Model, error) { return s.model() }

// Await is Model, after a wait for the first model of a gateway that has just started.
func (s *Service) Await(ctx context.Context) (*model.Model, error) { return s.await(ctx) }

// MaxContext is the longest context in tokens that workers offer, 0 = unknown.
func (s *Service) MaxContext() int { return s.generator.MaxContext() }

// Read parses the body and finds the model; name is what answers call it.
func (s *Service) Read(r *http.Request) (o reqjson.Object, m *model.Model, name string, err error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return o, nil, "", err
	}
	if o, err = reqjson.Parse(body); err != nil {
		return o, nil, "", err
	}
	if name, _, err = o.String("model"); err != nil {
		return o, nil, "", err
	}
	if m, err = s.await(r.Context()); err != nil {
		return o, nil, "", err
	}
	CallFrom(r.Context()).Model = m.Name
	if s.cfg.StrictModel && name != "" && name != m.Name {
		return o, nil, "", reqerr.UnknownModel(name)
	}
	return o, m, cmp.Or(name, m.Name), nil
}

// Render returns the prompt of a request. Template errors are answers.
func (s *Service) Render(m *model.Model, req *Request) (*model.Rendered, error) {
	conv, err := s.conversation(m, req)
	if err != nil {
		return nil, err
	}
	return render(m, conv, 0)
}

// Thinking resolves the switch of a request.
func (s *Service) Thinking(req *Request) bool { return req.Thinking.On(s.cfg.DefaultThinking) }

func (s *Service) conversation(m *model.Model, req *Request) (*chat.Conversation, error) {
	msgs := s.remember(m, req.Scope, chat.JoinSystem(req.Messages, m.LaterSystem))
	conv := &chat.Conversation{Messages: msgs, Tools: req.Tools.Shown(), Thinking: s.Thinking(req)}
	if req.Kwargs != nil {
		v, err := chattemplate.FromJSON(req.Kwargs)
		if err != nil {
			return nil, reqerr.InvalidValue("chat_template_kwargs", "cannot be read: %v", err)
		}
		conv.Kwargs, _ = v.(*chattemplate.Dict)
	}
	return conv, nil
}

// render renders a conversation; template errors are answers.
func render(m *model.Model, conv *chat.Conversation, limit int) (*model.Rendered, error) {
	r, err := m.RenderWithin(conv, limit)
	var te *chattemplate.Error
	if errors.As(err, &te) {
		return nil, reqerr.Template(err)
	}
	return r, err
}

// longestPrompt is how many tokens of a prompt can be used at most, 0 = unknown: compression may make room for more.
func (s *Service) longestPrompt(m *model.Model, req *Request) int {
	if s.generator == nil || s.compressor != nil && s.compressor.Wanted(req.Pflash) {
		return 0
	}
	return m.Limit(s.generator.MaxContext())
}

// CheckLength refuses a raw prompt that is certainly longer than the context, before it is tokenised.
func (s *Service) CheckLength(m *model.Model, text string) error {
	if s.generator == nil {
		return nil
	}
	limit := m.Limit(s.generator.MaxContext())
	if least := m.Tokenizer.MinTokens(text); limit > 0 && least > limit {
		return reqerr.ContextLengthAtLeast(least, limit)
	}
	return nil
}

// Check refuses a request that could not be queued now, before anything costly is done for it. Counting does not
// call it.
func (s *Service) Check() error {
	if s.generator == nil {
		return nil
	}
	return s.generator.Check()
}

// Prepare turns a chat request into one that can run.
func (s *Service) Prepare(m *model.Model, req *Request) (*Prepared, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	conv, err := s.conversation(m, req)
	if err != nil {
		return nil, err
	}
	rendered, err := render(m, conv, s.longestPrompt(m, req))
	if err != nil {
		return nil, err
	}
	p := s.Raw(m, req)
	p.chat = s.chat(req, conv)
	p.Run.SplitReasoning, p.Run.Operation = true, telemetry.GenAIChat
	p.Run.ReasoningInContent = req.ReasoningInContent
	p.PromptTokens = len(rendered.Tokens)
	prompt := generate.Prompt{Tokens: rendered.Tokens, Thinking: rendered.Thinking,
		Rendering: rendered.Rendering}
	if !req.NoCache {
		prompt.Hints = m.Marks(conv, rendered)
	}
	if prompt.Compress, err = s.compression(req, m, conv, len(rendered.Tokens)); err != nil {
		return nil, err
	}
	p.Run.Prompts = []generate.Prompt{prompt}
	if req.Tools.Len() > 0 && req.Choice.Mode != ToolNone {
		p.Run.Tools = &toolcall.Config{Set: req.Callable(), Family: m.Family, Serial: !req.Parallel, NewID: req.NewCallID}
		if req.NewCallID == nil {
			p.Run.Tools.NewID = callID
		}
	}
	if err := s.limit(m, req, conv.Thinking || rendered.Thinking, p); err != nil {
		return nil, err
	}
	return p, nil
}

// Raw turns the fields of Base into a run without prompts, for endpoints that have no conversation.
func (s *Service) Raw(m *model.Model, req *Request) *Prepared {
	run := &generate.Request{
		ID: req.ID, Operation: telemetry.GenAITextCompletion, ModelName: cmp.Or(req.Model, m.Name), Model: m,
		Arrived: req.Arrived, Share: req.Share, Owner: req.Owner, Priority: req.Priority, N: req.N, Sampling: req.Sampling,
		Stops: req.Stops, MaxTokens: req.MaxTokens, MaxTokensGiven: req.MaxTokensGiven, Speculation: req.Speculation,
		TopLogprobs: req.TopLogprobs, NoCache: req.NoCache, Session: req.SessionID,
	}
	if s.cfg.IsolateCache && req.Scope != "" {
		run.CacheScope = cacheScope(req.Scope)
	}
	if s.budgets != nil {
		run.DefaultMaxTokens = s.budgets.DefaultMaxTokens(m)
	}
	return &Prepared{Run: run, scope: req.Scope, Warnings: warnings(req)}
}

// limit sets the limit of the reasoning and the constraint.
func (s *Service) limit(m *model.Model, req *Request, thinking bool, p *Prepared) error {
	if err := s.Constraint(m, req, p); err != nil {
		return err
	}
	if m.ThinkClose == emit.None || !thinking {
		return nil
	}
	if s.budgets == nil {
		if p.Run.Constraint != nil {
			p.Run.Reasoning = reasoning(m)
		}
		return nil
	}
	b, err := s.budgets.Budget(m, req.Thinking)
	if err != nil {
		return err
	}
	p.Run.DefaultMaxTokens, p.Run.Reasoning = b.DefaultMaxTokens, b.Reasoning
	return nil
}

// compression decides whether the prompt is to be compressed and how.
func (s *Service) compression(req *Request, m *model.Model, conv *chat.Conversation,
	tokens int) (compress.Func, error) {
	if s.compressor == nil {
		if req.Pflash.Mode == compress.ModeAuto || req.Pflash.Mode == compress.ModeAlways {
			return nil, reqerr.Unsupported("pflash", "needs a scorer, which this server does not have")
		}
		return nil, nil
	}
	want := req.Pflash
	switch {
	case req.Tools.Len() > 0:
		want.Exact = compress.ReasonTools
	case req.Format.Kind != FormatText:
		want.Exact = compress.ReasonFormat
	}
	return s.compressor.Plan(want, m, conv, tokens, req.ID)
}
