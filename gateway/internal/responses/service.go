package responses

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/apierror"
	"github.com/tandem-inference/tandem/gateway/internal/emit"
	"github.com/tandem-inference/tandem/gateway/internal/gateways"
	"github.com/tandem-inference/tandem/gateway/internal/generate"
	"github.com/tandem-inference/tandem/gateway/internal/jsontext"
	"github.com/tandem-inference/tandem/gateway/internal/model"
	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	"github.com/tandem-inference/tandem/gateway/internal/seal"
	"github.com/tandem-inference/tandem/gateway/internal/sse"
	"github.com/tandem-inference/tandem/gateway/internal/turn"
	"github.com/tandem-inference/tandem/services/pause"
	"github.com/tandem-inference/tandem/services/telemetry"
	"go.uber.org/zap"
)

// cancelWait is how long a cancel request waits for the stream to end.
const cancelWait = 5 * time.Second

// Config of the dialect.
type Config struct {
	// StoreBytes bounds the memory of kept responses.
	StoreBytes int
	// Key seals reasoning that clients carry.
	Key seal.Key
}

// Deps of the dialect.
type Deps struct {
	Turn *turn.Service
	// Node shares responses with other gateways; nil = there are none.
	Node *gateways.Node
	// Base is the parent of what outlives a request; nil = it never ends.
	Base   context.Context
	Logger *zap.Logger
}

// Service answers requests of the dialect.
type Service struct {
	turn    *turn.Service
	log     *zap.Logger
	store   *store
	running running
	sealed  *seal.Sealer
	node    *gateways.Node  // nil = there are no other gateways
	base    context.Context // of what outlives a request
	jobs    sync.WaitGroup  // of such
}

// New returns the dialect's handlers.
func New(cfg Config, deps Deps) *Service {
	if deps.Logger == nil {
		deps.Logger = zap.NewNop()
	}
	if deps.Base == nil {
		deps.Base = context.Background()
	}
	return &Service{
		node: deps.Node, base: deps.Base,
		turn: deps.Turn, log: deps.Logger, store: newStore(cfg.StoreBytes),
		sealed: seal.New(cfg.Key, "responses.reasoning"),
	}
}

func (s *Service) logSkipped(q *request, skipped []string) {
	if len(skipped) > 0 {
		s.log.Debug("input items were left out",
			zap.String(telemetry.KeyRequestID, q.ID), zap.Strings("types", skipped))
	}
}

// Wait returns when no response is generated any more that outlives its request, or ctx ends.
func (s *Service) Wait(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.jobs.Wait()
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// Create serves POST /v1/responses.
func (s *Service) Create(w http.ResponseWriter, r *http.Request) error {
	var body []byte
	if s.node != nil {
		var err error
		if body, err = copyBody(r); err != nil {
			return err
		}
	}
	o, m, name, err := s.turn.Read(r)
	if err != nil {
		return err
	}
	q, err := s.parse(r, o, m, name, nil)
	if err != nil {
		return err
	}
	p, err := s.prepare(m, q)
	if err != nil {
		return err
	}
	a := s.newAnswer(m, q)
	var posted *posted
	if s.node != nil && a.object.Store && (q.Stream || a.object.Background) {
		posted = s.post(r, body, q, p)
	}
	switch {
	case a.object.Background && q.Stream:
		return replay(w, r, s.background(r, p, a, posted).log)
	case a.object.Background:
		return turn.WriteJSON(w, s.background(r, p, a, posted).begun)
	case q.Stream:
		return s.stream(w, r, p, a, posted)
	}
	if !a.object.Store {
		return s.turn.Whole(w, r, p, a, func(u *generate.Usage) any { return a.complete(u) })
	}
	a.events, a.log = true, &eventLog{}
	out := &logged{answer: a}
	return s.turn.Whole(w, r, p, out, func(u *generate.Usage) (obj any) {
		out.write(func() {
			o := a.complete(u)
			a.response("response."+o.Status, o)
			obj = o
		})
		s.keep(context.WithoutCancel(r.Context()), a, obj.(*object), nil)
		return obj
	})
}

// newAnswer prepares the output of a request.
func (s *Service) newAnswer(m *model.Model, q *request) *answer {
	a := &answer{request: q, output: output{outputOptions: outputOptions{
		summary: q.summary, logprobs: q.logprobs, newID: newIDs(q.object.ID, idOutput).make,
		entries: func(dst []byte, list []emit.Entry) []byte { return turn.AppendEntries(dst, m.Tokenizer, list) },
	}}}
	if q.encrypted {
		a.sealed = s.sealed
	}
	return a
}

// stream runs a request as an event stream, during which it can be cancelled.
func (s *Service) stream(w http.ResponseWriter, r *http.Request, p *turn.Prepared, a *answer, posted *posted) error {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	a.events = true
	l := &live{begun: a.object, stop: cancel, done: make(chan struct{})}
	if a.object.Store {
		a.log = &eventLog{}
		l.inputs, l.log = a.inputs, a.log
	}
	k := key{a.scope, a.object.ID}
	s.running.add(k, l)
	defer s.running.end(k, l)
	out := &stream{answer: a, posted: posted, usage: func() *generate.Usage { return turn.CallFrom(r.Context()).Usage },
		ended: func(obj *object) {
			l.body = s.keep(context.WithoutCancel(r.Context()), a, obj, posted)
		}}
	err := s.turn.Stream(w, r.WithContext(ctx), p, func(w *sse.Writer) turn.Stream {
		out.w = w
		return out
	})
	switch {
	case out.left:
		a.log.end()
	case !out.closed && a.seq > 0:
		// The client left. Others may read the events.
		out.Fail(nil, reqerr.Cancelled())
	case a.log != nil:
		a.log.end()
		if posted != nil && !out.closed {
			posted.end(context.WithoutCancel(r.Context()))
		}
	}
	return err
}

// keep stores a finished response if it is to be, and returns its JSON. posted is what other gateways know of it, nil =
// nothing.
func (s *Service) keep(ctx context.Context, a *answer, obj *object, posted *posted) []byte {
	body, err := jsontext.Marshal(obj)
	if err != nil {
		// All its parts marshal by themselves.
		panic(err)
	}
	if !obj.Store {
		return body
	}
	a.log.end()
	items := append(make([]json.RawMessage, 0, len(a.inputs)+len(obj.Output)), a.inputs...)
	outputs := make(map[string]json.RawMessage, len(obj.Output))
	for _, it := range obj.Output {
		raw := appendJSON(nil, it)
		items = append(items, raw)
		outputs[itemID(it)] = raw
	}
	e := newEntry(key{a.scope, obj.ID}, body, items, len(a.inputs), outputs, a.log)
	s.store.put(e)
	if s.node != nil {
		s.publish(ctx, e, posted)
	}
	return body
}

func itemID(it any) string {
	switch it := it.(type) {
	case *reasoningItem:
		return it.ID
	case *messageItem:
		return it.ID
	case *callItem:
		return it.ID
	case *customItem:
		return it.ID
	}
	return ""
}

// keyOf names the response of a request's path.
func keyOf(r *http.Request) key {
	return key{turn.CallFrom(r.Context()).Scope, r.PathValue("id")}
}

type deletion struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Deleted bool   `json:"deleted"`
}

// Delete serves DELETE /v1/responses/{id}.
func (s *Service) Delete(w http.ResponseWriter, r *http.Request) error {
	k := keyOf(r)
	here := s.store.delete(k)
	there, err := s.remove(r.Context(), k)
	if err != nil {
		return apierror.StoreAway(err)
	}
	if !here && !there {
		return unknown(k.id)
	}
	return turn.WriteJSON(w, deletion{k.id, "response.deleted", true})
}

// Cancel serves POST /v1/responses/{id}/cancel: it ends a running response and answers with what became of it. A
// response that has ended stays as it is.
func (s *Service) Cancel(w http.ResponseWriter, r *http.Request) error {
	k := keyOf(r)
	l, ok := s.running.get(k)
	if !ok {
		return s.cancelElsewhere(w, r, k)
	}
	l.stop(errStopped)
	wait, cancel := context.WithTimeout(r.Context(), cancelWait)
	defer cancel()
	select {
	case <-l.done:
	case <-wait.Done():
	}
	select {
	case <-l.done:
		if l.body != nil {
			return writeBody(w, l.body)
		}
	default:
	}
	// The client of the stream is gone or slow; the generation has ended either way.
	obj := *l.begun
	obj.Status = statusCancelled
	return turn.WriteJSON(w, &obj)
}

// cancelElsewhere answers a cancel request of a response that is not at work here. Another gateway that generates it is
// told to stop; one that a gateway left that is gone is taken over and stopped.
func (s *Service) cancelElsewhere(w http.ResponseWriter, r *http.Request, k key) error {
	e, err := s.kept(r.Context(), k)
	var l *live
	var at *work
	if e == nil && err == nil {
		l, e, at, err = s.elsewhere(r.Context(), k, false, nil)
	}
	switch {
	case err != nil:
		return err
	case e != nil:
		return writeBody(w, e.body)
	case l != nil:
		return s.Cancel(w, r) // it is here now
	case at == nil:
		return unknown(k.id)
	}
	if err := s.announce(r.Context(), news{Scope: k.scope, ID: k.id}); err != nil {
		return apierror.StoreAway(err)
	}
	wait, cancel := context.WithTimeout(r.Context(), cancelWait)
	defer cancel()
	for pause.For(wait, followEvery) {
		if e, err := s.kept(r.Context(), k); err != nil || e != nil {
			if err != nil {
				return err
			}
			return writeBody(w, e.body)
		}
	}
	var obj object
	if err := json.Unmarshal(at.Begun, &obj); err != nil {
		return reqerr.Internal(err)
	}
	obj.Status = statusCancelled
	return turn.WriteJSON(w, &obj)
}

func writeBody(w http.ResponseWriter, body []byte) error {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	_, err := w.Write(append(bytes.Clone(body), '\n'))
	return err
}

func unknown(id string) error {
	return apierror.NotFound("the response " + strings.Map(func(r rune) rune {
		if r < 0x20 {
			return '?'
		}
		return r
	}, id))
}
