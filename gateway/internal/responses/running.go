package responses

import (
	"context"
	"encoding/json"
	"sync"

	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
)

// running are the streamed responses that are being generated.
type running struct {
	mu   sync.Mutex // guards live
	live map[key]*live
}

// live is one of them.
type live struct {
	// begun is the object as the stream began with it.
	begun *object
	// inputs and log are of a response that will be kept; log is nil for others.
	inputs []json.RawMessage
	log    *eventLog
	stop   context.CancelCauseFunc
	// done is closed when the stream has ended; then body holds the final object, nil when it never began.
	done chan struct{}
	body []byte
}

// errStopped is the cause of a stream that its client cancelled through the API.
var errStopped = reqerr.Cancelled().With("the response was cancelled")

func (r *running) add(k key, l *live) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.live == nil {
		r.live = map[key]*live{}
	}
	r.live[k] = l
}

func (r *running) end(k key, l *live) {
	r.mu.Lock()
	delete(r.live, k)
	r.mu.Unlock()
	close(l.done)
}

func (r *running) get(k key) (*live, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l, ok := r.live[k]
	return l, ok
}
