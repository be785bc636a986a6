package sse

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-inference/tandem/services/racetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func event(text string) func(dst []byte) []byte {
	return func(dst []byte) []byte { return append(dst, text...) }
}

// response is a response whose writes fail once told so. Keep-alives come from goroutines of their own: it has a lock.
type response struct {
	*httptest.ResponseRecorder
	mu     sync.Mutex // guards the recorder's body and the fields below
	err    error
	writes int
}

func newResponse() *response { return &response{ResponseRecorder: httptest.NewRecorder()} }

func (r *response) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writes++
	if r.err != nil {
		return 0, r.err
	}
	return r.ResponseRecorder.Write(p)
}

// sent returns what was written.
func (r *response) sent() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.Body.String()
}

// fail makes later writes fail.
func (r *response) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
}

// TestBegin: headers go out once, with the first events, and are fixed from then on; every event is flushed.
func TestBegin(t *testing.T) {
	w := httptest.NewRecorder()
	s := New(w, Config{})
	defer s.Close()
	s.Header(func(h http.Header) { h.Set("X-Early", "1") })
	if s.Begun() || w.Body.Len() > 0 {
		t.Error("something was sent before Begin")
	}
	for _, first := range []string{"first;", "again;"} {
		if err := s.Begin(event(first)); err != nil || !w.Flushed {
			t.Fatal(err, w.Flushed)
		}
	}
	s.Header(func(h http.Header) { h.Set("X-Late", "1") })
	w.Flushed = false
	if err := s.Send(event("second;")); err != nil || !w.Flushed {
		t.Fatal(err, w.Flushed)
	}
	if got := w.Body.String(); got != "first;second;" || !s.Begun() {
		t.Errorf("sent %q, begun %v", got, s.Begun())
	}
	for name, want := range map[string]string{
		"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no",
		"X-Early": "1", "X-Late": "",
	} {
		if got := w.Header().Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// TestKeepAlive: a ping follows every silence of the given length, events put it off, and none comes after Close.
func TestKeepAlive(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		w := newResponse()
		s := New(w, Config{Keepalive: 10 * time.Second, Ping: event("ping;")})
		passes := func(d time.Duration, want string) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			if got := w.sent(); got != want {
				t.Errorf("sent %q, want %q", got, want)
			}
		}
		passes(time.Minute, "") // there is no stream yet
		if err := s.Begin(event("first;")); err != nil {
			t.Fatal(err)
		}
		passes(9*time.Second, "first;")
		if err := s.Send(event("second;")); err != nil {
			t.Fatal(err)
		}
		passes(9*time.Second, "first;second;")
		passes(time.Second, "first;second;ping;")
		passes(20*time.Second, "first;second;ping;ping;ping;")
		s.Close()
		s.Close()
		passes(time.Hour, "first;second;ping;ping;ping;")
		if err := s.Begin(event("late;")); err != nil || w.sent() != "first;second;ping;ping;ping;" {
			t.Errorf("after Close: %v, %q", err, w.sent())
		}
	})
}

// TestGone: the first write that fails is reported, by an event as by a ping; later ones fail alike and write nothing.
func TestGone(t *testing.T) {
	for _, byPing := range []bool{false, true} {
		racetest.Bubble(t, func(t *testing.T) {
			left := errors.New("the client left")
			w := newResponse()
			var gone []error
			s := New(w, Config{Keepalive: time.Second, Ping: event("ping;"), Gone: func(err error) { gone = append(gone, err) }})
			defer s.Close()
			if err := s.Begin(event("first;")); err != nil {
				t.Fatal(err)
			}
			w.fail(left)
			if byPing {
				time.Sleep(time.Second)
				synctest.Wait()
			} else if err := s.Send(event("second;")); !errors.Is(err, left) {
				t.Errorf("the event that nobody took: %v", err)
			}
			if err := s.Send(event("third;")); !errors.Is(err, left) {
				t.Errorf("the event after it: %v", err)
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			if len(gone) != 1 || !errors.Is(gone[0], left) || w.writes != 2 {
				t.Errorf("by ping %v: reported %v, %d writes", byPing, gone, w.writes)
			}
		})
	}
}
