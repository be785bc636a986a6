package turn

import (
	"cmp"
	"context"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/compress"
	"github.com/tandem-inference/tandem/gateway/internal/generate"
	"github.com/tandem-inference/tandem/gateway/internal/jsontext"
	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	"github.com/tandem-inference/tandem/gateway/internal/sse"
)

// DefaultQueuedHeaders is how long a stream may wait in the queue before it gets its headers and keep-alives.
const DefaultQueuedHeaders = 10 * time.Second

// Stream is a dialect's event stream. Its methods may run at the same time as each other for different choices; Ping
// runs beside all of them and must not touch the state of a choice.
type Stream interface {
	generate.Sink
	// Begin sends the headers and the first events, through sse.Writer.Begin. It may be called more than once.
	Begin() error
	// Ping appends a keep-alive event that changes nothing.
	Ping(dst []byte) []byte
	// End appends the events that close a stream without an error.
	End(dst []byte, u *generate.Usage) []byte
	// Fail appends the error event and the events that close the stream after it.
	Fail(dst []byte, err error) []byte
}

// Run runs a request into a sink that is no HTTP answer.
func (s *Service) Run(ctx context.Context, p *Prepared, sink generate.Sink) (*generate.Usage, error) {
	heard := s.listen(p, s.record(p, sink))
	u, err := s.generator.Run(ctx, p.Run, heard)
	if l, ok := heard.(*listener); ok && err == nil {
		s.expect(p, l, u)
	}
	return u, err
}

// Detached runs a request into a sink that no client waits for.
func (s *Service) Detached(ctx context.Context, p *Prepared, sink generate.Sink) (*generate.Usage, error) {
	ctx, stop := s.deadline(ctx)
	defer stop()
	return s.Run(ctx, p, sink)
}

// Stream runs a request as an event stream. make builds the dialect's side on the writer. An error that comes before
// the headers is returned for an ordinary answer; one that comes later was sent as an event and is returned for
// the log.
func (s *Service) Stream(w http.ResponseWriter, r *http.Request, p *Prepared, make func(*sse.Writer) Stream) error {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	ctx, stop := s.deadline(ctx)
	defer stop()
	p.warn(w.Header())
	var sink Stream
	out := sse.New(w, sse.Config{
		Keepalive: s.cfg.Keepalive,
		Ping:      func(dst []byte) []byte { return sink.Ping(dst) },
		Gone:      func(error) { cancel(reqerr.Cancelled()) },
	})
	defer out.Close()
	sink = make(out)
	p.Run.Compressed = func(c *compress.Report) {
		if w := CompressionWarning(c); w != "" {
			out.Header(func(h http.Header) { h.Add(warningHeader, w) })
		}
	}
	early := newTimer(cmp.Or(s.cfg.QueuedHeaders, DefaultQueuedHeaders), func() { _ = sink.Begin() })
	defer early.stop()
	u, err := s.Run(ctx, p, sink)
	early.stop()
	account(r, u)
	if err != nil {
		if !out.Begun() {
			return err
		}
		_ = out.Send(func(dst []byte) []byte { return sink.Fail(dst, err) })
		return err
	}
	return out.Send(func(dst []byte) []byte { return sink.End(dst, u) })
}

// Whole runs a request and answers with the object that build makes.
func (s *Service) Whole(w http.ResponseWriter, r *http.Request, p *Prepared, sink generate.Sink,
	build func(*generate.Usage) any) error {
	ctx, stop := s.deadline(r.Context())
	defer stop()
	u, err := s.Run(ctx, p, sink)
	account(r, u)
	if err != nil {
		return err
	}
	p.warn(w.Header())
	if c := u.Compression; c != nil {
		if warning := CompressionWarning(c); warning != "" {
			w.Header().Add(warningHeader, warning)
		}
	}
	if u.ContractChanges > 0 {
		w.Header().Add("x-tandem-warning", "contract-changed")
	}
	return WriteJSON(w, build(u))
}

// CompressionWarning is the warning about a prompt that was to be compressed and was not, else empty.
func CompressionWarning(c *compress.Report) string {
	switch {
	case c.Applied, c.Reason == compress.ReasonBelowThreshold, c.Reason == compress.ReasonTools,
		c.Reason == compress.ReasonFormat:
		return ""
	}
	return "pflash-skipped"
}

// deadline bounds the life of a request when the server does.
func (s *Service) deadline(ctx context.Context) (context.Context, context.CancelFunc) {
	if s.cfg.RequestTimeout <= 0 {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, s.cfg.RequestTimeout, reqerr.Deadline())
}

func account(r *http.Request, u *generate.Usage) { CallFrom(r.Context()).Usage = u }

// WriteJSON answers 200 with v.
func WriteJSON(w http.ResponseWriter, v any) error {
	b, err := jsontext.Marshal(v)
	if err != nil {
		return reqerr.Internal(err)
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	_, err = w.Write(append(b, '\n'))
	return err
}

// headerText keeps a header value in one line of plain characters.
func headerText(s string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x20 || r > 0x7e {
			return '?'
		}
		return r
	}, s[:min(len(s), maxWarning+len(" and 18446744073709551615 more"))])
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
