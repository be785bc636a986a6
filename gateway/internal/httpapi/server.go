package httpapi

import (
	"context"
	"errors"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/accesslog"
	"github.com/tandem-inference/tandem/gateway/internal/apierror"
	"github.com/tandem-inference/tandem/gateway/internal/apikey"
	"github.com/tandem-inference/tandem/gateway/internal/bodybudget"
	"github.com/tandem-inference/tandem/gateway/internal/cluster"
	"github.com/tandem-inference/tandem/gateway/internal/metrics"
	"github.com/tandem-inference/tandem/gateway/internal/model"
	"github.com/tandem-inference/tandem/gateway/internal/modelcard"
	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	"github.com/tandem-inference/tandem/gateway/internal/reqjson"
	"github.com/tandem-inference/tandem/gateway/internal/turn"
	"github.com/tandem-inference/tandem/services/registry"
	"github.com/tandem-inference/tandem/services/telemetry"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
)

// Config of the border.
type Config struct {
	// Keys that clients must present; without any the server is open.
	Keys *apikey.Ring
	// ProtectIntrospection asks for a key on /props, /metrics, /cluster and /trace too.
	ProtectIntrospection bool
	// CORSOrigins are the origins whose pages may use the server: OriginLocal, OriginAny, or scheme://host[:port].
	CORSOrigins []string
	// NoCORS leaves the headers of CORS out.
	NoCORS bool
	// LocalHosts limits the Host of requests to names of this machine and AllowedHosts while no key is asked for.
	LocalHosts   bool
	AllowedHosts []string
	// Stall is the longest pause of a client while it sends or reads; 0 = 30 s.
	Stall time.Duration
	// Page serves the live page at /ui.
	Page bool
	// Props are the settings that /props shows.
	Props Props
}

// Deps of the border.
type Deps struct {
	Turns     Turns
	OpenAI    OpenAI
	Responses Responses
	Anthropic Anthropic
	Cluster   Cluster
	Targets   Targets
	// Memory of calls, for /props; nil = none.
	Memory Memory
	// Model returns the served model or the error that requests get while there is none.
	Model   func() (*model.Model, error)
	Metrics *metrics.Set
	// Scrape serves /metrics.
	Scrape http.Handler
	Logger *zap.Logger
	// Tracer gets a span per request; nil = none.
	Tracer trace.TracerProvider
	// Traces are what /trace shows; nil = none.
	Traces Traces
	// Live is what the page at /ui shows.
	Live Live
	// Kill kills a worker that this process started, or its engine, for the page; nil = the page may not.
	Kill func(worker string, engine bool) error
	// Admission is how workers are drained.
	Admission Admission
	// Bodies bounds the memory of request bodies; nil = no bound.
	Bodies *bodybudget.Budget
	// Leaving tells whether the gateway is shutting down: it is not healthy, and every answer ends its connection.
	Leaving func() bool
	// Draining tells whether it takes no new work any more, which may come later.
	Draining func() bool
	// StoreAway says what does not work because the gateways' store is away, empty when it is there; nil = there is none.
	StoreAway func() string
	// ScorerReady tells whether prompt compression can run.
	ScorerReady func() bool
	// Envelope says what holds for a model: card, lengths, budgets of reasoning.
	Envelope func(*model.Model) modelcard.Envelope
}

// Turns reads requests of endpoints that have no dialect.
type Turns interface {
	// Read parses the body and finds the model.
	Read(r *http.Request) (o reqjson.Object, m *model.Model, name string, err error)
	// Warn puts warnings of what a request says in vain into h.
	Warn(h http.Header, req *turn.Request)
}

// OpenAI serves chat and legacy completions.
type OpenAI interface {
	Chat(w http.ResponseWriter, r *http.Request) error
	Completions(w http.ResponseWriter, r *http.Request) error
	// Rendered gives the prompt of a chat request and puts warnings of what it leaves out into h.
	Rendered(h http.Header, r *http.Request, o reqjson.Object, m *model.Model) (*model.Rendered, error)
}

// Responses serves the Responses API.
type Responses interface {
	Create(w http.ResponseWriter, r *http.Request) error
	Get(w http.ResponseWriter, r *http.Request) error
	InputItems(w http.ResponseWriter, r *http.Request) error
	Cancel(w http.ResponseWriter, r *http.Request) error
	Delete(w http.ResponseWriter, r *http.Request) error
}

// Anthropic serves the Messages API.
type Anthropic interface {
	Messages(w http.ResponseWriter, r *http.Request) error
	CountTokens(w http.ResponseWriter, r *http.Request) error
}

// Cluster lists the workers.
type Cluster interface {
	Workers() []registry.Worker
}

// Targets are the workers that generate.
type Targets interface {
	// Ready reports whether one takes work.
	Ready() bool
	// Queued is the number of requests that wait for one.
	Queued() int
	// MaxContext is the longest context in tokens that they offer, 0 = unknown.
	MaxContext() int
	// Busy returns the slots in use and the slots in all of a worker; ok is false for one that does not generate.
	Busy(id string) (busy, slots int, ok bool)
	// RoutedTo counts the requests that a worker got; ok is false for one that does not generate.
	RoutedTo(id string) (r cluster.Routed, ok bool)
	// Move asks the requests of a worker to go on at others. It returns how many can, and how many cannot.
	Move(id string) (asked, stay int)
}

// Memory counts the calls that are remembered, and their bytes.
type Memory interface {
	Stats() (calls, bytes int)
}

// access says who may call a route.
type access uint8

const (
	accessOpen       access = iota // health
	accessIntrospect               // props, metrics, cluster, trace
	accessLook                     // the live page's data: as long as somebody looks
	accessKey                      // everything else
)

// handler answers a request or returns the error to answer with.
type handler func(w http.ResponseWriter, r *http.Request) error

// route is one path with its methods.
type route struct {
	access access
	// work marks routes that run on workers: refused while draining, waited for at shutdown.
	work    bool
	methods map[string]handler
}

// Server is the root handler.
type Server struct {
	cfg         Config
	turns       Turns
	openai      OpenAI
	cluster     Cluster
	targets     Targets
	memory      Memory
	model       func() (*model.Model, error)
	metrics     *metrics.Set
	scrapes     http.Handler
	log         *zap.Logger
	tracer      trace.Tracer
	traces      Traces
	looks       Live
	kill        func(worker string, engine bool) error
	admission   Admission
	bodies      *bodybudget.Budget
	leaving     func() bool
	draining    func() bool
	scorerReady func() bool
	storeAway   func() string
	envelope    func(*model.Model) modelcard.Envelope

	routes map[string]*route
	// patterns are the paths with an id, the longer ones of a prefix first.
	patterns []*pattern
	running  inflight
}

// New builds the routes.
func New(cfg Config, deps Deps) (*Server, error) {
	if cfg.Stall <= 0 {
		cfg.Stall = 30 * time.Second
	}
	if deps.Logger == nil {
		deps.Logger = zap.NewNop()
	}
	s := &Server{
		cfg: cfg, turns: deps.Turns, openai: deps.OpenAI, cluster: deps.Cluster, targets: deps.Targets, memory: deps.Memory,
		model: deps.Model, metrics: deps.Metrics, scrapes: deps.Scrape, log: deps.Logger,
		tracer: newTracer(deps.Tracer), traces: deps.Traces, looks: deps.Live, kill: deps.Kill, bodies: deps.Bodies,
		admission: deps.Admission, leaving: deps.Leaving, draining: deps.Draining,
		scorerReady: deps.ScorerReady, storeAway: deps.StoreAway, envelope: deps.Envelope, routes: map[string]*route{},
	}
	s.add("GET", "/", accessOpen, false, s.health)
	s.add("GET", "/health", accessOpen, false, s.health)
	s.add("GET", "/health/live", accessOpen, false, s.live)
	s.add("GET", "/health/ready", accessOpen, false, s.ready)
	s.add("GET", "/props", accessIntrospect, false, s.props)
	s.add("GET", "/metrics", accessIntrospect, false, s.scrape)
	s.add("GET", "/cluster", accessIntrospect, false, s.topology)
	s.add("POST", "/cluster/drain", accessLook, false, s.drain)
	s.add("GET", "/trace/{id}", accessIntrospect, false, s.trace)
	for _, prefix := range []string{"/v1", ""} {
		s.add("GET", prefix+"/models", accessKey, false, s.models)
		s.add("GET", prefix+"/models/{id}", accessKey, false, s.oneModel)
		s.add("POST", prefix+"/chat/completions", accessKey, true, deps.OpenAI.Chat)
		s.add("POST", prefix+"/completions", accessKey, true, deps.OpenAI.Completions)
		s.add("POST", prefix+"/responses", accessKey, true, deps.Responses.Create)
		s.add("POST", prefix+"/responses/{id}/cancel", accessKey, false, deps.Responses.Cancel)
		s.add("GET", prefix+"/responses/{id}/input_items", accessKey, false, deps.Responses.InputItems)
		s.add("GET", prefix+"/responses/{id}", accessKey, false, deps.Responses.Get)
		s.add("DELETE", prefix+"/responses/{id}", accessKey, false, deps.Responses.Delete)
		s.add("POST", prefix+"/messages", accessKey, true, deps.Anthropic.Messages)
		s.add("POST", prefix+"/messages/count_tokens", accessKey, false, deps.Anthropic.CountTokens)
	}
	s.add("POST", "/tokenize", accessKey, false, s.tokenize)
	s.add("POST", "/detokenize", accessKey, false, s.detokenize)
	s.add("POST", "/apply-template", accessKey, false, s.applyTemplate)
	if cfg.Page {
		if err := s.addPage(); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Endpoints lists "METHOD PATH" of all routes, sorted, without the files that the live page consists of.
func (s *Server) Endpoints() []string {
	var out []string
	for path, rt := range s.routes {
		if strings.HasPrefix(path, "/ui/") && rt.access == accessOpen {
			continue
		}
		for m := range rt.methods {
			out = append(out, m+" "+path)
		}
	}
	slices.Sort(out)
	return out
}

// Wait blocks until no request runs on workers, or ctx is done.
func (s *Server) Wait(ctx context.Context) error { return s.running.wait(ctx) }

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	handling(r)
	call := &turn.Call{ID: turn.RequestID(r.Header.Get("X-Request-Id")), Arrived: time.Now()}
	w := newWriter(rw, s.cfg.Stall)
	w.Header().Set("X-Request-Id", call.ID)
	if s.leaving != nil && s.leaving() {
		w.Header().Set("Connection", "close")
	}
	s.cors(w, r)
	if r.Method == http.MethodOptions {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	if anthropicShape(r) {
		w.Header().Set("Request-Id", call.ID)
	}
	rt, name, id := s.find(r.URL.Path)
	if k, ok := s.key(r); ok {
		call.Scope, call.Key, call.Trusted = k.Scope(), k.Name, k.Trusted
	}
	// Requests of probes and for metrics come all the time and tell nothing; what is refused tells something.
	counted := rt == nil || rt.access == accessKey
	ctx, span := turn.WithCall(r.Context(), call), trace.Span(nil)
	if counted {
		ctx, span = s.startSpan(ctx, r, call, name)
	}
	r = r.WithContext(ctx)
	r.SetPathValue("id", id)
	end := func(string) {}
	if rt != nil && rt.access == accessKey && s.metrics != nil {
		end = s.metrics.Start(r.Context(), name, call.Key)
	}
	err := s.guard(w, r, rt)
	status, outcome := s.conclude(w, r, err)
	end(outcome)
	if counted {
		endSpan(span, status, outcome, err)
		s.report(r, name, status, outcome, err)
	}
	if status == apierror.StatusClientClosed && !w.wrote {
		// Without this net/http would answer 200 to what it takes for a request that went well.
		panic(http.ErrAbortHandler)
	}
}

// guard checks what every request must pass and calls the handler. A panic is a bug: logged with its stack, answered
// with 500.
func (s *Server) guard(w *writer, r *http.Request, rt *route) (err error) {
	defer func() {
		if p := recover(); p != nil {
			if p == http.ErrAbortHandler {
				panic(p)
			}
			s.log.Error("handler panicked", zap.Any(telemetry.KeyReason, p),
				zap.ByteString(telemetry.KeyStack, debug.Stack()))
			err = reqerr.Internal(errors.New("panic"))
		}
	}()
	if len(r.RequestURI) > maxURLBytes {
		return apierror.Transport(http.StatusRequestURITooLong, "the URL has more than %d bytes", maxURLBytes)
	}
	if headerBytes(r) > maxHeaderBytes {
		return headersTooLarge()
	}
	if rt == nil {
		return apierror.NotFound("the path " + r.URL.Path)
	}
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	h := rt.methods[method]
	if h == nil {
		w.Header().Set("Allow", allow(rt))
		return apierror.MethodNotAllowed(r.Method, r.URL.Path)
	}
	if !s.authorized(r, rt.access) {
		w.Header().Set("WWW-Authenticate", "Bearer")
		return apierror.Unauthorized()
	}
	if r.Header.Get("X-Priority") != "" && !turn.CallFrom(r.Context()).Trusted {
		w.Header().Add("x-tandem-warning", "priority-ignored")
	}
	if err := s.foreign(r, rt.access); err != nil {
		return err
	}
	if rt.work {
		// Counted before the check: a request that passes it is waited for.
		s.running.add()
		defer s.running.done()
		if s.draining != nil && s.draining() {
			return reqerr.Draining()
		}
	}
	if r.ContentLength > maxBodyBytes {
		return tooLarge()
	}
	b, err := newBody(w, r, s.cfg.Stall)
	if err != nil {
		return err
	}
	share := s.bodies.Share()
	defer share.Release()
	if r.Body, err = share.Reader(b, b.length, b.abort); err != nil {
		return err
	}
	return h(w, r)
}

func allow(rt *route) string {
	var list []string
	for m := range rt.methods {
		list = append(list, m)
		if m == http.MethodGet {
			list = append(list, http.MethodHead)
		}
	}
	list = append(list, http.MethodOptions)
	slices.Sort(list)
	return strings.Join(list, ", ")
}

// conclude writes the error, if there is one and nothing was sent yet, and says how the request ended.
func (s *Server) conclude(w *writer, r *http.Request, err error) (status int, outcome string) {
	if err == nil {
		return w.status, metrics.OutcomeOK
	}
	e := readError(w, r, err)
	if !w.wrote && e.Status != apierror.StatusClientClosed {
		if anthropicShape(r) {
			e.WriteAnthropic(w, turn.CallFrom(r.Context()).ID)
		} else {
			e.Write(w)
		}
	}
	switch {
	case e.Status == apierror.StatusClientClosed:
		return e.Status, metrics.OutcomeCancelled
	case e.Status >= 500:
		return e.Status, metrics.OutcomeServerError
	}
	return e.Status, metrics.OutcomeClientError
}

// report writes the log line and the metrics of a finished request.
func (s *Server) report(r *http.Request, name string, status int, outcome string, err error) {
	if u := turn.CallFrom(r.Context()).Usage; u != nil && s.metrics != nil {
		s.metrics.Generated(r.Context(), u.Generation())
	}
	e := accesslog.Entry{Method: method(r), Endpoint: name, Client: r.RemoteAddr, Status: status, Outcome: outcome}
	if err != nil {
		e.Reason, e.Err = apierror.From(err).Code, withCause(err)
	}
	accesslog.Write(r.Context(), s.log, e)
}

// withCause shows the cause of an answer, which the client does not see.
func withCause(err error) error {
	if !answered(err) {
		return err
	}
	e := apierror.From(err)
	if cause := e.Unwrap(); cause != nil {
		return errors.Join(e, cause)
	}
	return e
}

// method is the request's method, _OTHER for one that HTTP does not have: clients may send any word.
func method(r *http.Request) string {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
		http.MethodOptions, http.MethodTrace, http.MethodConnect:
		return r.Method
	}
	return "_OTHER"
}
