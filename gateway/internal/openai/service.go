package openai

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/apierror"
	"github.com/tandem-inference/tandem/gateway/internal/compress"
	"github.com/tandem-inference/tandem/gateway/internal/generate"
	"github.com/tandem-inference/tandem/gateway/internal/jsontext"
	"github.com/tandem-inference/tandem/gateway/internal/model"
	"github.com/tandem-inference/tandem/gateway/internal/reqjson"
	"github.com/tandem-inference/tandem/gateway/internal/sse"
	"go.uber.org/zap"
)

// queuedHeaders is how long a stream may wait in the queue before it gets its headers and keep-alives.
const queuedHeaders = 10 * time.Second

// Config of the dialect.
type Config struct {
	MaxN               int
	DefaultThinking    bool
	StrictModel        bool
	StreamUsageDefault bool
	Keepalive          time.Duration
	RequestTimeout     time.Duration
}

// Deps of the dialect.
type Deps struct {
	// Model returns the served model or the error that a request gets while there is none.
	Model     func() (*model.Model, error)
	Generator *generate.Generator
	// Compressor may be nil: then compression is off.
	Compressor *compress.Compressor
	Logger     *zap.Logger
}

// Service answers requests of the dialect.
type Service struct {
	cfg Config
	Deps
}

// New returns the dialect's handlers.
func New(cfg Config, deps Deps) *Service {
	if deps.Logger == nil {
		deps.Logger = zap.NewNop()
	}
	return &Service{cfg: cfg, Deps: deps}
}

// Call is what the surroundings know of a request.
type Call struct {
	// ID is the request id.
	ID string
	// Arrived is when its headers were read.
	Arrived time.Time
	// Usage is filled with the account of the request, for log and metrics.
	Usage *generate.Usage
}

type callKey struct{}

// WithCall attaches the call to a context.
func WithCall(ctx context.Context, c *Call) context.Context {
	return context.WithValue(ctx, callKey{}, c)
}

// CallFrom returns the call of a request; one is made up when none was attached.
func CallFrom(ctx context.Context) *Call {
	if c, ok := ctx.Value(callKey{}).(*Call); ok {
		return c
	}
	return &Call{ID: newID("req-"), Arrived: time.Now()}
}

// newID returns prefix and 96 random bits.
func newID(prefix string) string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // never fails
	return prefix + hex.EncodeToString(b[:])
}

// read parses the body and finds the model.
func (s *Service) read(r *http.Request) (reqjson.Object, *model.Model, string, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return reqjson.Object{}, nil, "", err
	}
	o, err := reqjson.Parse(body)
	if err != nil {
		return o, nil, "", err
	}
	name, _, err := o.String("model")
	if err != nil {
		return o, nil, "", err
	}
	m, err := s.Model()
	if err != nil {
		return o, nil, "", err
	}
	if s.cfg.StrictModel && name != "" && name != m.Name {
		return o, nil, "", apierror.ModelNotFound(name)
	}
	return o, m, cmp.Or(name, m.Name), nil
}

// request fills what chat and legacy completions share. least is the smallest max_tokens.
func (s *Service) request(r *http.Request, o reqjson.Object, m *model.Model, least float64) (*generate.Request, streamOptions, error) {
	call := CallFrom(r.Context())
	req := &generate.Request{ID: call.ID, Arrived: call.Arrived, Model: m.Model, Priority: priority(r), TopLogprobs: generate.NoLogprobs}
	so, err := parseStream(o, s.cfg.StreamUsageDefault)
	if err != nil {
		return nil, so, err
	}
	if req.Sampling, err = parseSampling(o, m.Tokenizer.VocabSize()); err != nil {
		return nil, so, err
	}
	if req.Stops, err = parseStops(o); err != nil {
		return nil, so, err
	}
	if req.Speculation, err = parseSpeculation(o); err != nil {
		return nil, so, err
	}
	if req.MaxTokens, req.MaxTokensGiven, err = parseMaxTokens(o, least); err != nil {
		return nil, so, err
	}
	n, ok, err := o.Int(reqjson.Between(1, float64(s.cfg.MaxN)), "n")
	if err != nil {
		return nil, so, err
	}
	req.N = 1
	if ok {
		req.N = int(n)
	}
	return req, so, checkIgnored(o)
}

// priority reads X-Priority; what is no digit counts as absent.
func priority(r *http.Request) int {
	if p, err := strconv.Atoi(r.Header.Get("X-Priority")); err == nil && p >= 0 && p <= 9 {
		return p
	}
	return 5
}

// streamSink is a generate.Sink that streams.
type streamSink interface {
	generate.Sink
	begin() error
	ping(dst []byte) []byte
}

// stream runs a request as an event stream. make builds the sink on the writer.
func (s *Service) stream(w http.ResponseWriter, r *http.Request, req *generate.Request, env *envelope, make func(*sse.Writer) streamSink) error {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	ctx, stop := s.deadline(ctx)
	defer stop()
	var sink streamSink
	out := sse.New(w, sse.Config{
		Keepalive: s.cfg.Keepalive,
		Ping:      func(dst []byte) []byte { return sink.ping(dst) },
		Gone:      func(error) { cancel(apierror.Cancelled()) },
	})
	defer out.Close()
	sink = make(out)
	early := newTimer(queuedHeaders, func() { _ = sink.begin() })
	defer early.stop()
	u, err := s.Generator.Run(ctx, req, sink)
	early.stop()
	s.account(r, u)
	if err != nil {
		if !out.Begun() {
			return err
		}
		e := apierror.From(err)
		_ = out.Send(func(dst []byte) []byte { return appendError(dst, e) })
		return e
	}
	return out.Send(func(dst []byte) []byte { return env.end(dst, u) })
}

// deadline bounds the life of a request when the server does.
func (s *Service) deadline(ctx context.Context) (context.Context, context.CancelFunc) {
	if s.cfg.RequestTimeout <= 0 {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, s.cfg.RequestTimeout, apierror.Deadline())
}

func (s *Service) account(r *http.Request, u *generate.Usage) {
	CallFrom(r.Context()).Usage = u
}

// whole runs a request and answers with the object that build makes.
func (s *Service) whole(w http.ResponseWriter, r *http.Request, req *generate.Request, sink generate.Sink, build func(*generate.Usage) any) error {
	ctx, stop := s.deadline(r.Context())
	defer stop()
	u, err := s.Generator.Run(ctx, req, sink)
	s.account(r, u)
	if err != nil {
		return err
	}
	if c := u.Compression; c != nil && !c.Applied && c.Reason != compress.ReasonBelowThreshold {
		w.Header().Add("x-tandem-warning", "pflash-skipped")
	}
	return WriteJSON(w, build(u))
}

// WriteJSON answers 200 with v.
func WriteJSON(w http.ResponseWriter, v any) error {
	b, err := jsontext.Marshal(v)
	if err != nil {
		return apierror.Internal(err)
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	_, err = w.Write(append(b, '\n'))
	return err
}

// warnTools names the types of tools that were left out.
func warnTools(w http.ResponseWriter, skipped []string) {
	if len(skipped) > 0 {
		w.Header().Add("x-tandem-warning", "tools-ignored: "+sanitize(strings.Join(skipped, ",")))
	}
}

// sanitize keeps a header value in one line of plain characters.
func sanitize(s string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x20 || r > 0x7e {
			return '?'
		}
		return r
	}, s[:min(len(s), 200)])
}

// timer is a time.AfterFunc whose stop waits for a running function: nothing may write after the handler returned.
type timer struct {
	t    *time.Timer
	once sync.Once
	done chan struct{}
}

func newTimer(d time.Duration, f func()) *timer {
	t := &timer{done: make(chan struct{})}
	t.t = time.AfterFunc(d, func() {
		defer close(t.done)
		f()
	})
	return t
}

// stop may be called more than once.
func (t *timer) stop() {
	t.once.Do(func() {
		if !t.t.Stop() {
			<-t.done
		}
	})
}
