package responses

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/apierror"
	"github.com/tandem-inference/tandem/gateway/internal/generate"
	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	"github.com/tandem-inference/tandem/gateway/internal/turn"
	"github.com/tandem-inference/tandem/services/pause"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/telemetry"
	"go.uber.org/zap"
)

const (
	// resumeFor is how long a response that was taken over waits for the cluster to be able to run it.
	resumeFor = time.Minute
	// resumeEvery is the pause between attempts.
	resumeEvery = 200 * time.Millisecond
)

// detached is the sink of a response that no client waits for. Whoever wants its events reads its log.
type detached struct {
	logged
	posted *posted // nil = it is not shared
}

// Admitted implements generate.Sink. The opening may be there already.
func (d *detached) Admitted() error {
	d.open()
	return nil
}

func (d *detached) open() {
	if d.seq == 0 {
		d.write(d.opening)
	}
}

// background runs a response that outlives the request for it, and returns its events.
func (s *Service) background(r *http.Request, p *turn.Prepared, a *answer, w *posted) *live {
	ctx, cancel := context.WithCancelCause(s.base)
	ctx = turn.WithCall(ctx, turn.CallFrom(r.Context()))
	a.events, a.log = true, &eventLog{}
	l := &live{begun: a.object, inputs: a.inputs, log: a.log, stop: cancel, done: make(chan struct{})}
	if w != nil {
		w.begin(r.Context())
	}
	d := &detached{logged: logged{answer: a}, posted: w}
	d.open()
	k := key{a.scope, a.object.ID}
	s.running.add(k, l)
	s.jobs.Go(func() {
		defer cancel(nil)
		defer s.running.end(k, l)
		l.body = s.run(ctx, p, d)
	})
	return l
}

// run generates a response without a client, keeps it and returns its last object; nil when it was left to another
// gateway.
func (s *Service) run(ctx context.Context, p *turn.Prepared, d *detached) []byte {
	u, err := s.turn.Detached(ctx, p, d)
	if err == nil {
		return s.conclude(ctx, d, func() (*object, string) {
			obj := d.complete(u)
			return obj, "response." + obj.Status
		})
	}
	return s.fail(ctx, d, u, err)
}

// fail ends a response that came to no good end.
func (s *Service) fail(ctx context.Context, d *detached, u *generate.Usage, err error) []byte {
	if d.posted != nil && draining(err) {
		d.log.end() // the record stays, so that another gateway goes on
		return nil
	}
	return s.conclude(ctx, d, func() (*object, string) { return d.failed(u, err) })
}

// conclude writes the terminal event and keeps the response.
func (s *Service) conclude(ctx context.Context, d *detached, final func() (*object, string)) []byte {
	d.open()
	var obj *object
	d.write(func() {
		var kind string
		obj, kind = final()
		d.response(kind, obj)
	})
	return s.keep(context.WithoutCancel(ctx), d.answer, obj, d.posted)
}

// failed is the object of an answer that came to no good end, and its event. A response that was cancelled through the
// API or whose client left did not fail.
func (a *answer) failed(u *generate.Usage, err error) (*object, string) {
	e := apierror.From(err)
	if e.Status == apierror.StatusClientClosed {
		return a.final(statusCancelled, u), "response.incomplete"
	}
	obj := a.final(statusFailed, u)
	obj.Error = newFailure(e)
	return obj, "response.failed"
}

// draining says that the gateway ends, and the request with it.
func draining(err error) bool {
	return reqerr.From(err).Reason() == rpcerr.Draining.Reason()
}

// resume generates a response from its record.
func (s *Service) resume(w *posted) (*live, error) {
	begun := &object{}
	if err := json.Unmarshal(w.work.Begun, begun); err != nil {
		return nil, reqerr.Internal(err)
	}
	ctx, cancel := context.WithCancelCause(s.base)
	ctx = turn.WithCall(ctx, &turn.Call{ID: w.work.RequestID, Arrived: time.Now(), Scope: w.work.Scope,
		Key: w.work.Key, Trusted: w.work.Trusted})
	l := &live{begun: begun, log: &eventLog{}, stop: cancel, done: make(chan struct{})}
	k := w.work.key()
	s.running.add(k, l)
	s.jobs.Go(func() {
		defer cancel(nil)
		defer s.running.end(k, l)
		a, p, err := s.again(ctx, &w.work)
		if err != nil {
			s.log.Warn("a response that was taken over cannot be generated",
				zap.String(telemetry.KeyRequestID, w.work.RequestID), zap.NamedError(telemetry.KeyErr, err))
			a = &answer{request: &request{scope: w.work.Scope, object: begun}}
			a.events, a.log = true, l.log
			l.body = s.fail(ctx, &detached{logged{answer: a}, w}, nil, err)
			return
		}
		a.events, a.log = true, l.log
		l.body = s.run(ctx, p, &detached{logged{answer: a}, w})
	})
	return l, nil
}

// again reads a request from its record. What the cluster cannot do at the moment is waited for.
func (s *Service) again(ctx context.Context, w *work) (*answer, *turn.Prepared, error) {
	for limit := time.Now().Add(resumeFor); ; {
		a, p, err := s.restore(ctx, w)
		if err == nil || !passing(err) || time.Now().After(limit) {
			return a, p, err
		}
		if !pause.For(ctx, resumeEvery) {
			return nil, nil, context.Cause(ctx)
		}
	}
}

// passing says that an error may go away by itself.
func passing(err error) bool {
	e := apierror.From(err)
	return e.Status == http.StatusServiceUnavailable || e.Status == http.StatusTooManyRequests
}

func (s *Service) restore(ctx context.Context, w *work) (*answer, *turn.Prepared, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "/v1/responses", bytes.NewReader(w.Body))
	if err != nil {
		return nil, nil, err
	}
	r.RemoteAddr = w.Address
	for name, values := range w.Headers {
		r.Header[name] = values
	}
	o, m, name, err := s.turn.Read(r)
	if err != nil {
		return nil, nil, err
	}
	q, err := s.parse(r, o, m, name, w)
	if err != nil {
		return nil, nil, err
	}
	p, err := s.prepare(m, q)
	if err != nil {
		return nil, nil, err
	}
	p.Run.TokenByToken, p.Run.Contract = true, w.Contract
	return s.newAnswer(m, q), p, nil
}
