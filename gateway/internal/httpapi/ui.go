package httpapi

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/apierror"
	"github.com/tandem-inference/tandem/gateway/internal/live"
	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	"github.com/tandem-inference/tandem/gateway/internal/sse"
	"github.com/tandem-inference/tandem/gateway/internal/ui"
)

// Live shows what happens now.
type Live interface {
	Watch(v live.Viewer) (*live.Watcher, error)
}

const (
	// pagePolicy lets the page load its own files and ask its own server, and nothing else.
	pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
	// lookEvery is the pause between two looks for rounds. What there is goes out in one write: a page sees no difference,
	// and each write wakes up several goroutines.
	lookEvery = 250 * time.Millisecond
	// Of so many looks one lists the requests, and one the workers.
	requestsEvery, workersEvery = 2, 4
)

// addPage adds the routes of the live page. The files hold no data and need no key: the page asks for it.
func (s *Server) addPage() error {
	files, err := ui.Files()
	if err != nil {
		return err
	}
	for _, f := range files {
		h := func(w http.ResponseWriter, r *http.Request) error { return serveFile(w, r, &f) }
		if f.Name == "index.html" {
			s.add("GET", "/ui", accessOpen, false, h)
			continue
		}
		s.add("GET", "/ui/"+f.Name, accessOpen, false, h)
	}
	s.add("GET", "/ui/", accessOpen, false, func(w http.ResponseWriter, _ *http.Request) error {
		w.Header().Set("Location", "../ui") // relative, for proxies that serve it below another path
		w.WriteHeader(http.StatusPermanentRedirect)
		return nil
	})
	s.add("GET", "/ui/events", accessLook, false, s.lookOn)
	s.add("POST", "/ui/kill", accessLook, false, s.killPart)
	return nil
}

func serveFile(w http.ResponseWriter, r *http.Request, f *ui.File) error {
	h := w.Header()
	h.Set("Content-Type", f.Type)
	h.Set("Content-Security-Policy", pagePolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-cache") // asked for each time, and answered by its ETag
	h.Set("ETag", f.ETag)
	if strings.Contains(r.Header.Get("If-None-Match"), f.ETag) {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	_, err := w.Write(f.Body)
	return err
}

// hello is the first event of a look.
type hello struct {
	Type    string `json:"type"`
	Version string `json:"version"`
	Model   string `json:"model"`
	Kill    bool   `json:"kill"` // parts may be killed
	Scorer  bool   `json:"scorer"`
}

// lookOn streams what happens: rounds as they come, requests and workers from time to time.
func (s *Server) lookOn(rw http.ResponseWriter, r *http.Request) error {
	if r.Method == http.MethodHead { // it would last for ever
		rw.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		return nil
	}
	key, _ := s.key(r)
	watcher, err := s.looks.Watch(live.Viewer{Owner: key.Scope(), All: s.cfg.Keys.Open()})
	if err != nil {
		return err
	}
	defer watcher.Close()
	out := sse.New(rw, sse.Config{})
	defer out.Close()
	var seen bytes.Buffer
	add(&seen, s.hello())
	take := func(dst []byte) []byte { return append(dst, seen.Bytes()...) }
	if err := out.Begin(take); err != nil {
		return err
	}
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for n := 0; ; n++ {
		seen.Reset()
		if s.look(&seen, watcher, n); seen.Len() > 0 {
			if err := out.Send(take); err != nil {
				return err
			}
		}
		select {
		case <-r.Context().Done():
			return nil
		case <-ticker.C:
		}
		if n%requestsEvery != 0 {
			continue
		}
		// A key that was taken away, or keys where there were none, end the look.
		if now, ok := s.key(r); !s.authorized(r, accessLook) || ok && now.Scope() != key.Scope() {
			return nil
		}
	}
}

// look writes the events of the n-th look.
func (s *Server) look(out *bytes.Buffer, watcher *live.Watcher, n int) {
	if n%workersEvery == 0 {
		body := s.workers()
		add(out, map[string]any{"type": "cluster", "workers": body.Workers, "groups": body.Groups,
			"queue": s.targets.Queued()})
	}
	if n%requestsEvery == 0 {
		add(out, map[string]any{"type": "requests", "requests": watcher.Requests(), "dropped": watcher.Dropped()})
	}
	for {
		select {
		case e := <-watcher.Events():
			out.WriteString(dataPrefix)
			out.Write(e.AppendJSON(out.AvailableBuffer()))
			out.WriteString(dataEnd)
		default:
			return
		}
	}
}

func (s *Server) hello() hello {
	h := hello{Type: "hello", Version: s.cfg.Props.Version, Kill: s.kill != nil,
		Scorer: s.scorerReady != nil && s.scorerReady()}
	if m, err := s.model(); err == nil {
		h.Model = m.Name
	}
	return h
}

// What stands around the data of an event.
const dataPrefix, dataEnd = "data: ", "\n\n"

// add appends an event with v as its data.
func add(out *bytes.Buffer, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		return // numbers that JSON cannot carry were left out before
	}
	out.WriteString(dataPrefix)
	out.Write(b)
	out.WriteString(dataEnd)
}

// mostKill bounds the body of a request to kill, in bytes.
const mostKill = 4 << 10

// killPart kills a worker, or its engine, that this process started.
func (s *Server) killPart(w http.ResponseWriter, r *http.Request) error {
	if s.kill == nil {
		return apierror.Transport(http.StatusForbidden, "only tandem serve --demo lets its workers be killed")
	}
	var ask struct{ Worker, Part string }
	body, err := io.ReadAll(io.LimitReader(r.Body, mostKill))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, &ask); err != nil {
		return reqerr.InvalidValue("body", "is no JSON object with worker and part: %v", err)
	}
	if ask.Part != "worker" && ask.Part != "engine" {
		return reqerr.InvalidValue("part", "must be worker or engine, got %q", ask.Part)
	}
	if err := s.kill(ask.Worker, ask.Part == "engine"); err != nil {
		return reqerr.InvalidValue("worker", "%v", err)
	}
	return writeJSON(w, http.StatusOK, map[string]any{"killed": ask.Part, "worker": ask.Worker})
}
