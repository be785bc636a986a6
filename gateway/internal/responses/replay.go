package responses

import (
	"io"
	"net/http"
	"strconv"

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
	n := 0
	if v := r.URL.Query().Get("starting_after"); v != "" {
		after, err := strconv.Atoi(v)
		if err != nil || after < 0 {
			return reqerr.InvalidValue("starting_after", "must be the number of an event, got %q", v)
		}
		n = after + 1
	}
	out := sse.New(w, sse.Config{})
	defer out.Close()
	if err := out.Begin(func(dst []byte) []byte { return dst }); err != nil {
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
	e, ok := s.store.get(k)
	if !ok {
		return unknown(k.id)
	}
	if events {
		return replay(w, r, e.log)
	}
	return writeBody(w, e.body)
}
