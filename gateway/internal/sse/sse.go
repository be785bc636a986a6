// Package sse writes server-sent events: headers, one flush per event, and keep-alive events. It ends the streams of
// clients that do not read, as far as the response writer reports them.
package sse

import (
	"net/http"
	"sync"
	"time"
)

// Writer is one event stream. It is safe for concurrent use.
type Writer struct {
	w         http.ResponseWriter
	rc        *http.ResponseController
	keepalive time.Duration
	ping      func(dst []byte) []byte
	gone      func(error)

	mu      sync.Mutex // guards the following and the writing
	begun   bool
	closed  bool
	err     error
	buf     []byte
	last    time.Time
	timer   *time.Timer
	pinging sync.WaitGroup
}

// Config of a Writer.
type Config struct {
	// Keepalive is the silence after which Ping's event is sent; 0 = never.
	Keepalive time.Duration
	// Ping appends a keep-alive event that is valid in the stream's dialect.
	Ping func(dst []byte) []byte
	// Gone is told when a write fails.
	Gone func(error)
}

// New prepares a stream; nothing is sent before Begin.
func New(w http.ResponseWriter, cfg Config) *Writer {
	return &Writer{w: w, rc: http.NewResponseController(w), keepalive: cfg.Keepalive, ping: cfg.Ping, gone: cfg.Gone}
}

// Begin sends the headers and a first batch of events, once; later calls do nothing.
func (s *Writer) Begin(first func(dst []byte) []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.begun || s.closed {
		return s.err
	}
	s.begun = true
	h := s.w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no")
	s.w.WriteHeader(http.StatusOK)
	if s.keepalive > 0 && s.ping != nil {
		s.pinging.Add(1)
		s.timer = time.AfterFunc(s.keepalive, s.tick)
	}
	return s.send(first)
}

// Header lets edit change the response's headers, unless they are out already.
func (s *Writer) Header(edit func(http.Header)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.begun && !s.closed {
		edit(s.w.Header())
	}
}

// Begun reports whether the headers are out: from then on errors are events.
func (s *Writer) Begun() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.begun
}

// Send writes the events that build appends and flushes them. After an error every call returns it.
func (s *Writer) Send(build func(dst []byte) []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.send(build)
}

func (s *Writer) send(build func(dst []byte) []byte) error {
	if s.err != nil {
		return s.err
	}
	s.buf = build(s.buf[:0])
	s.last = time.Now()
	// How long a client may take to accept it is the business of the response writer.
	if _, err := s.w.Write(s.buf); err != nil {
		return s.fail(err)
	}
	if err := s.rc.Flush(); err != nil {
		return s.fail(err)
	}
	return nil
}

func (s *Writer) fail(err error) error {
	s.err = err
	if s.gone != nil {
		s.gone(err)
	}
	return err
}

// tick runs when the stream may have been silent for long enough.
func (s *Writer) tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.err != nil {
		s.pinging.Done()
		return
	}
	wait := s.keepalive - time.Since(s.last)
	if wait <= 0 {
		if s.send(s.ping) != nil {
			s.pinging.Done()
			return
		}
		wait = s.keepalive
	}
	s.timer = time.AfterFunc(wait, s.tick)
}

// Close ends keep-alives and waits for one that is being written. The response ends when the handler returns.
func (s *Writer) Close() {
	s.mu.Lock()
	s.closed = true
	if s.timer != nil && s.timer.Stop() {
		s.pinging.Done()
	}
	s.mu.Unlock()
	s.pinging.Wait()
}
