package responses

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/apierror"
	"github.com/tandem-inference/tandem/gateway/internal/jsontext"
	"github.com/tandem-inference/tandem/gateway/internal/turn"
	"github.com/tandem-inference/tandem/services/pause"
	"github.com/tandem-inference/tandem/services/shared"
	"github.com/tandem-inference/tandem/services/telemetry"
	"go.uber.org/zap"
)

const (
	// keptLife is how long a kept response is there for all gateways.
	keptLife = 24 * time.Hour
	// workLife bounds the records of requests at work that nobody ends: their clients never came back.
	workLife = 24 * time.Hour
	// newsLife is how long gateways may take to hear of a response that was deleted or is to be stopped.
	newsLife = time.Minute
	// followEvery is how often a response that another gateway generates is looked for.
	followEvery = 200 * time.Millisecond
)

// Keys of what gateways share of responses.
const (
	keptPrefix = "responses/"
	workPrefix = "work/"
	newsPrefix = "news/"
)

// sharedKey names a response among those of all clients.
func (k key) sharedKey(prefix string) string {
	scope := "open"
	if k.scope != "" {
		scope = k.scope[:min(len(k.scope), 32)]
	}
	return prefix + scope + "/" + k.id
}

// sharable says that an id can be that of a response: others are not looked for.
func (k key) sharable() bool { return shared.CheckKey(k.sharedKey(keptPrefix)) == nil }

// work is a request for a response as another gateway needs it to run it again: with the same id, time and seed, on a
// worker with the same bits, it gives the same events.
type work struct {
	ID      string `json:"id"`
	Gateway string `json:"gateway"` // that runs it
	// Background responses are finished also when nobody asks for them.
	Background bool            `json:"background,omitempty"`
	Created    int64           `json:"created"`
	Seed       int64           `json:"seed"`
	Contract   *string         `json:"contract,omitempty"` // of the worker; nil = none had taken it
	Body       json.RawMessage `json:"body"`
	Begun      json.RawMessage `json:"begun"` // the object as the response begins

	RequestID string      `json:"request_id"`
	Scope     string      `json:"scope,omitempty"`
	Key       string      `json:"key,omitempty"`
	Trusted   bool        `json:"trusted,omitempty"`
	Headers   http.Header `json:"headers,omitempty"`
	Address   string      `json:"address,omitempty"` // of the client
}

func (w *work) key() key { return key{w.Scope, w.ID} }

// posted is a request at work that other gateways know of.
type posted struct {
	s *Service

	mu      sync.Mutex // guards the following
	work    work
	version shared.Version // AnyVersion = they do not know of it
	lost    bool           // another gateway took it over
	tried   bool           // an attempt to tell them was made
}

// copyBody reads a request's body and leaves it in place.
func copyBody(r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	return body, err
}

// post prepares the record of a request that other gateways may have to run again. It is written when a worker takes
// the request, or before if the client is told of it before.
func (s *Service) post(r *http.Request, body []byte, q *request, p *turn.Prepared) *posted {
	begun, err := jsontext.Marshal(q.object)
	if err != nil {
		panic(err) // all its parts marshal by themselves
	}
	call := turn.CallFrom(r.Context())
	w := &posted{s: s, work: work{
		ID: q.object.ID, Gateway: s.node.ID(), Background: q.object.Background, Created: q.object.CreatedAt,
		Seed: q.Sampling.GetSeed(), Body: body, Begun: begun,
		RequestID: call.ID, Scope: call.Scope, Key: call.Key, Trusted: call.Trusted, Headers: turn.KeptHeaders(r.Header),
		Address: r.RemoteAddr,
	}}
	ctx := context.WithoutCancel(r.Context())
	p.Run.TokenByToken = true
	p.Run.Taken = func(contract string) { w.write(ctx, &contract) }
	return w
}

// begin makes sure that the record was written, or that it cannot be.
func (w *posted) begin(ctx context.Context) {
	w.mu.Lock()
	tried := w.tried
	w.mu.Unlock()
	if !tried {
		w.write(ctx, nil)
	}
}

// write writes the record. A store that is away costs the response its protection, not the request.
func (w *posted) write(ctx context.Context, contract *string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tried, w.work.Contract = true, contract
	version, err := w.s.put(ctx, w.work.key().sharedKey(workPrefix), &w.work, workLife, shared.Store.Put)
	if err == nil {
		w.version = version
	} else {
		w.s.log.Warn("no other gateway could go on with a response", zap.String(telemetry.KeyRequestID, w.work.RequestID),
			zap.NamedError(telemetry.KeyErr, err))
	}
}

// owned reports whether the response is still this gateway's.
func (w *posted) owned(ctx context.Context) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.version == shared.AnyVersion {
		return true
	}
	err := w.s.node.Link().Do(ctx, func(ctx context.Context, s shared.Store) error {
		r, err := s.Get(ctx, w.work.key().sharedKey(workPrefix))
		w.lost = errors.Is(err, shared.ErrNotFound) || err == nil && r.Version != w.version
		return err
	})
	if err != nil && !w.lost {
		w.s.log.Debug("whose a response is cannot be asked", zap.NamedError(telemetry.KeyErr, err))
	}
	return !w.lost
}

// end removes the record of a response that has ended.
func (w *posted) end(ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.version == shared.AnyVersion || w.lost {
		return
	}
	// What stays goes by its time to live, and whoever takes it over finds the kept response.
	_ = w.s.node.Link().Do(ctx, func(ctx context.Context, s shared.Store) error {
		return s.Delete(ctx, w.work.key().sharedKey(workPrefix), w.version)
	})
}

// write is how a record is written: shared.Store.Put, or what stands on a version.
type write func(s shared.Store, ctx context.Context, key string, value []byte, life shared.Life) (shared.Version, error)

// over writes in the place of a version.
func over(was shared.Version) write {
	return func(s shared.Store, ctx context.Context, key string, value []byte, life shared.Life) (shared.Version, error) {
		return s.Update(ctx, key, value, was, life)
	}
}

// put writes a value that may be large.
func (s *Service) put(ctx context.Context, key string, value any, ttl time.Duration, how write) (
	version shared.Version, err error,
) {
	body, err := jsontext.Marshal(value)
	if err != nil {
		return "", err
	}
	life := shared.Life{TTL: ttl}
	packed, err := s.node.Link().Pack(ctx, body, life)
	if err != nil {
		return "", err
	}
	err = s.node.Link().Do(ctx, func(ctx context.Context, st shared.Store) (err error) {
		version, err = how(st, ctx, key, packed, life)
		return err
	})
	return version, err
}

// get reads a value that may be large; ok is false when there is none.
func (s *Service) get(ctx context.Context, key string, value any) (version shared.Version, ok bool, err error) {
	var r shared.Record
	err = s.node.Link().Do(ctx, func(ctx context.Context, st shared.Store) (err error) {
		r, err = st.Get(ctx, key)
		return err
	})
	if errors.Is(err, shared.ErrNotFound) {
		return "", false, nil
	}
	if err != nil {
		return "", false, err
	}
	body, err := s.node.Link().Unpack(ctx, r.Value)
	if err == nil {
		err = json.Unmarshal(body, value)
	}
	return r.Version, err == nil, err
}

// keptRecord is an entry of the store as gateways share it.
type keptRecord struct {
	Body    json.RawMessage            `json:"body"`
	Items   []json.RawMessage          `json:"items"`
	Inputs  int                        `json:"inputs"`
	Outputs map[string]json.RawMessage `json:"outputs"`
	Events  []byte                     `json:"events"`
	Next    int                        `json:"next"`
}

// publish shares a kept response, unless another gateway has taken it over; w may be nil.
func (s *Service) publish(ctx context.Context, e *entry, w *posted) {
	if w != nil && !w.owned(ctx) {
		return
	}
	r := &keptRecord{Body: e.body, Items: e.items, Inputs: e.inputs, Outputs: e.outputs}
	r.Events, r.Next = e.log.all()
	if _, err := s.put(ctx, e.sharedKey(keptPrefix), r, keptLife, shared.Store.Put); err != nil {
		s.log.Warn("a kept response is not shared with other gateways", zap.String("response", e.id),
			zap.NamedError(telemetry.KeyErr, err))
		return
	}
	if w != nil {
		w.end(ctx)
	}
}

// kept finds a finished response, here or in the store of the gateways; nil = there is none.
func (s *Service) kept(ctx context.Context, k key) (*entry, error) {
	if e, ok := s.store.get(k); ok {
		return e, nil
	}
	if s.node == nil || !k.sharable() {
		return nil, nil
	}
	var r keptRecord
	_, ok, err := s.get(ctx, k.sharedKey(keptPrefix), &r)
	if err != nil {
		return nil, apierror.StoreAway(err)
	}
	if !ok || r.Inputs < 0 || r.Inputs > len(r.Items) {
		return nil, nil
	}
	log := &eventLog{}
	log.add(r.Events, r.Next)
	log.end()
	e := newEntry(k, r.Body, r.Items, r.Inputs, r.Outputs, log)
	s.store.put(e)
	return e, nil
}

// item finds an output item of a kept response.
func (s *Service) item(ctx context.Context, k key) (json.RawMessage, bool) {
	if raw, ok := s.store.item(k); ok {
		return raw, true
	}
	response, ok := responseOf(k.id)
	if !ok || s.node == nil {
		return nil, false
	}
	e, err := s.kept(ctx, key{k.scope, response})
	if err != nil || e == nil {
		return nil, false
	}
	raw, ok := e.outputs[k.id]
	return raw, ok
}

// elsewhere looks after a response that another gateway generates: it takes it over when that gateway is gone. With
// follow it waits for one or the other, and calls waiting before it does for the first time. It returns nils when there
// is no such response.
func (s *Service) elsewhere(ctx context.Context, k key, follow bool, waiting func()) (*live, *entry, *work, error) {
	if s.node == nil || !k.sharable() {
		return nil, nil, nil, nil
	}
	for waited := false; ; waited = true {
		var w work
		version, ok, err := s.get(ctx, k.sharedKey(workPrefix), &w)
		if err != nil {
			return nil, nil, nil, apierror.StoreAway(err)
		}
		if !ok {
			e, err := s.kept(ctx, k) // it may have ended just now
			return nil, e, nil, err
		}
		alive, changed := s.node.Alive(w.Gateway)
		if !alive || follow && s.node.Gone(ctx, w.Gateway) {
			l, err := s.takeOver(ctx, &w, version)
			if l != nil || err != nil {
				return l, nil, nil, err
			}
			continue // another gateway was faster
		}
		if l, ok := s.running.get(k); ok {
			return l, nil, nil, nil
		}
		if !follow {
			return nil, nil, &w, nil
		}
		if !waited {
			waiting()
		}
		timer := time.NewTimer(followEvery)
		select {
		case <-timer.C:
		case <-changed:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return nil, nil, nil, context.Cause(ctx)
		}
	}
}

// takeOver makes a response this gateway's and generates it; nil without an error: another one was faster.
func (s *Service) takeOver(ctx context.Context, w *work, version shared.Version) (*live, error) {
	before := w.Gateway
	w.Gateway = s.node.ID()
	p := &posted{s: s, work: *w, tried: true}
	var err error
	p.version, err = s.put(ctx, w.key().sharedKey(workPrefix), w, workLife, over(version))
	if errors.Is(err, shared.ErrConflict) {
		return nil, nil
	}
	if err != nil {
		return nil, apierror.StoreAway(err)
	}
	s.log.Info("a response of a gateway that is gone goes on here", zap.String(telemetry.KeyRequestID, w.RequestID),
		zap.String("response", w.ID), zap.String("gateway", before))
	return s.resume(p)
}

// finishBackground takes over background responses of gateways that are gone.
func (s *Service) finishBackground(ctx context.Context) error {
	var list []shared.Record
	err := s.node.Link().Do(ctx, func(ctx context.Context, st shared.Store) (err error) {
		list, err = st.List(ctx, workPrefix)
		return err
	})
	for _, r := range list {
		body, err := s.node.Link().Unpack(ctx, r.Value)
		var w work
		if err != nil || json.Unmarshal(body, &w) != nil || !w.Background {
			continue
		}
		if alive, _ := s.node.Alive(w.Gateway); alive {
			continue
		}
		if _, err := s.takeOver(ctx, &w, r.Version); err != nil {
			return err
		}
	}
	return err
}

// news is what gateways tell each other of a response.
type news struct {
	Scope   string `json:"scope"`
	ID      string `json:"id"`
	Deleted bool   `json:"deleted"` // else: it is to be stopped
}

// announce tells the other gateways.
func (s *Service) announce(ctx context.Context, n news) error {
	body, err := json.Marshal(n)
	if err != nil {
		return err
	}
	return s.node.Link().Do(ctx, func(ctx context.Context, st shared.Store) error {
		_, err := st.Put(ctx, key{n.Scope, n.ID}.sharedKey(newsPrefix), body, shared.Life{TTL: newsLife})
		return err
	})
}

// Run listens to the other gateways until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	if s.node == nil {
		return nil
	}
	var parts sync.WaitGroup
	defer parts.Wait()
	parts.Go(func() { s.attend(ctx) })
	for e := range s.node.Link().Watch(ctx, newsPrefix) {
		var n news
		if e.Kind != shared.Written || json.Unmarshal(e.Record.Value, &n) != nil {
			continue
		}
		k := key{n.Scope, n.ID}
		if n.Deleted {
			s.store.delete(k)
		} else if l, ok := s.running.get(k); ok {
			l.stop(errStopped)
		}
	}
	return nil
}

// attend finishes background responses whenever gateways come or go.
func (s *Service) attend(ctx context.Context) {
	for ctx.Err() == nil {
		_, changed := s.node.Alive(s.node.ID())
		if err := s.finishBackground(ctx); err != nil && ctx.Err() == nil {
			s.log.Debug("background responses of gateways that are gone wait", zap.NamedError(telemetry.KeyErr, err))
			pause.For(ctx, time.Second)
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// remove deletes a kept response from the store of the gateways, and reports whether it was there.
func (s *Service) remove(ctx context.Context, k key) (bool, error) {
	if s.node == nil || !k.sharable() {
		return false, nil
	}
	var value []byte
	err := s.node.Link().Do(ctx, func(ctx context.Context, st shared.Store) error {
		r, err := st.Get(ctx, k.sharedKey(keptPrefix))
		if err != nil {
			return err
		}
		value = r.Value
		return st.Delete(ctx, r.Key, shared.AnyVersion)
	})
	if errors.Is(err, shared.ErrNotFound) {
		return false, nil
	}
	if err == nil {
		s.node.Link().DropParts(ctx, value)
		err = s.announce(ctx, news{k.scope, k.id, true})
	}
	return err == nil, err
}
