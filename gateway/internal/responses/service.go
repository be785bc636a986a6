package responses

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/apierror"
	"github.com/tandem-inference/tandem/gateway/internal/emit"
	"github.com/tandem-inference/tandem/gateway/internal/generate"
	"github.com/tandem-inference/tandem/gateway/internal/jsontext"
	"github.com/tandem-inference/tandem/gateway/internal/model"
	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	"github.com/tandem-inference/tandem/gateway/internal/seal"
	"github.com/tandem-inference/tandem/gateway/internal/sse"
	"github.com/tandem-inference/tandem/gateway/internal/turn"
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
	Turn   *turn.Service
	Logger *zap.Logger
}

// Service answers requests of the dialect.
type Service struct {
	turn    *turn.Service
	log     *zap.Logger
	store   *store
	running running
	sealed  *seal.Sealer
}

// New returns the dialect's handlers.
func New(cfg Config, deps Deps) *Service {
	if deps.Logger == nil {
		deps.Logger = zap.NewNop()
	}
	return &Service{
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

// Create serves POST /v1/responses.
func (s *Service) Create(w http.ResponseWriter, r *http.Request) error {
	o, m, name, err := s.turn.Read(r)
	if err != nil {
		return err
	}
	q, err := s.parse(r, o, m, name)
	if err != nil {
		return err
	}
	p, err := s.prepare(m, q)
	if err != nil {
		return err
	}
	a := s.newAnswer(m, q)
	if q.Stream {
		return s.stream(w, r, p, a)
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
		s.keep(a, obj.(*object))
		return obj
	})
}

// newAnswer prepares the output of a request.
func (s *Service) newAnswer(m *model.Model, q *request) *answer {
	a := &answer{request: q, output: output{outputOptions: outputOptions{
		summary: q.summary, logprobs: q.logprobs, newID: turn.NewID,
		entries: func(dst []byte, list []emit.Entry) []byte { return turn.AppendEntries(dst, m.Tokenizer, list) },
	}}}
	if q.encrypted {
		a.sealed = s.sealed
	}
	return a
}

// stream runs a request as an event stream, during which it can be cancelled.
func (s *Service) stream(w http.ResponseWriter, r *http.Request, p *turn.Prepared, a *answer) error {
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
	out := &stream{answer: a, usage: func() *generate.Usage { return turn.CallFrom(r.Context()).Usage },
		ended: func(obj *object) {
			l.body = s.keep(a, obj)
		}}
	err := s.turn.Stream(w, r.WithContext(ctx), p, func(w *sse.Writer) turn.Stream {
		out.w = w
		return out
	})
	switch {
	case !out.closed && a.seq > 0:
		// The client left. Others may read the events.
		out.Fail(nil, reqerr.Cancelled())
	case a.log != nil:
		a.log.end()
	}
	return err
}

// keep stores a finished response if it is to be, and returns its JSON.
func (s *Service) keep(a *answer, obj *object) []byte {
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
	s.store.put(newEntry(key{a.scope, obj.ID}, body, items, len(a.inputs), outputs, a.log))
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
	if !s.store.delete(k) {
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
		return s.write(w, k)
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

func (s *Service) write(w http.ResponseWriter, k key) error {
	e, ok := s.store.get(k)
	if !ok {
		return unknown(k.id)
	}
	return writeBody(w, e.body)
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
