package responses

import (
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	"github.com/tandem-inference/tandem/gateway/internal/reqjson"
	"github.com/tandem-inference/tandem/gateway/internal/sse"
	"github.com/tandem-inference/tandem/gateway/internal/turn"
)

// wantsStream reports whether a GET asks for events: in the query, or in a body, which is where OpenAI's Go library
// puts it.
func wantsStream(r *http.Request) (bool, error) {
	if v := r.URL.Query().Get("stream"); v != "" {
		on, err := strconv.ParseBool(v)
		if err != nil {
			return false, reqerr.InvalidValue("stream", "must be true or false, got %q", v)
		}
		return on, nil
	}
	if r.ContentLength <= 0 {
		return false, nil
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return false, err
	}
	o, err := reqjson.Parse(body)
	if err != nil {
		return false, err
	}
	on, _, err := o.Bool("stream")
	return on, err
}

// replay answers with the events of a response after number starting_after, with their own numbers. Of a response that
// is being generated the further ones follow as they come, its keep-alives among them.
func replay(w http.ResponseWriter, r *http.Request, log *eventLog) error {
	n, err := startingAfter(r)
	if err != nil {
		return err
	}
	out := sse.New(w, sse.Config{})
	defer out.Close()
	return send(out, r, log, n)
}

// startingAfter is the number of the first event that a GET asks for.
func startingAfter(r *http.Request) (int, error) {
	v := r.URL.Query().Get("starting_after")
	if v == "" {
		return 0, nil
	}
	after, err := strconv.Atoi(v)
	if err != nil || after < 0 {
		return 0, reqerr.InvalidValue("starting_after", "must be the number of an event, got %q", v)
	}
	return after + 1, nil
}

// nothing begins a stream without an event.
func nothing(dst []byte) []byte { return dst }

// waitKeepalive is the silence after which a stream gets a comment that waits for another gateway.
const waitKeepalive = 5 * time.Second

// send writes a log's events from number n on.
func send(out *sse.Writer, r *http.Request, log *eventLog, n int) error {
	if err := out.Begin(nothing); err != nil {
		return err
	}
	for {
		events, next, more := log.from(n)
		switch {
		case len(events) > 0:
			if err := out.Send(func(dst []byte) []byte { return append(dst, events...) }); err != nil {
				return err
			}
			n = next
		case more == nil:
			return nil
		default:
			select {
			case <-more:
			case <-r.Context().Done():
				return reqerr.Cancelled()
			}
		}
	}
}

// Get serves GET /v1/responses/{id}: the object, or its events.
func (s *Service) Get(w http.ResponseWriter, r *http.Request) error {
	events, err := wantsStream(r)
	if err != nil {
		return err
	}
	k := keyOf(r)
	if l, ok := s.running.get(k); ok {
		switch {
		case !events:
			return turn.WriteJSON(w, l.begun)
		case l.log != nil:
			return replay(w, r, l.log)
		}
		return unknown(k.id)
	}
	e, err := s.kept(r.Context(), k)
	switch {
	case err != nil:
		return err
	case e == nil:
		return s.getElsewhere(w, r, k, events)
	case events:
		return replay(w, r, e.log)
	}
	return writeBody(w, e.body)
}

// getElsewhere serves a GET of a response that may be at work at another gateway.
func (s *Service) getElsewhere(w http.ResponseWriter, r *http.Request, k key, events bool) error {
	n := 0
	if events {
		var err error
		if n, err = startingAfter(r); err != nil {
			return err
		}
	}
	out := sse.New(w, sse.Config{Keepalive: waitKeepalive,
		Ping: func(dst []byte) []byte { return append(dst, ": wait\n\n"...) }})
	defer out.Close()
	l, e, at, err := s.elsewhere(r.Context(), k, events, func() { _ = out.Begin(nothing) })
	switch {
	case err != nil:
		return err
	case l != nil && events && l.log != nil:
		return send(out, r, l.log, n)
	case l != nil:
		return turn.WriteJSON(w, l.begun)
	case e != nil && events:
		return send(out, r, e.log, n)
	case e != nil:
		return writeBody(w, e.body)
	case at != nil:
		return writeBody(w, at.Begun)
	}
	return unknown(k.id)
}
