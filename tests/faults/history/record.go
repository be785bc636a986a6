// Package history records what clients of a cluster saw while its processes and links failed, and checks it: every
// stream must have the tokens of the same request on an undisturbed cluster, each once, and must not stand still for
// longer than its faults allow.
package history

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"
)

// Kinds of records.
const (
	// Reference is a whole answer of an undisturbed cluster, read cold and decoded without speculation.
	Reference = "reference"
	// Request is the start of a stream, Tokens a part of its answer, Resumed a further connection that continues it, and
	// End its end, with a finish reason or an error.
	Request = "request"
	Tokens  = "tokens"
	Resumed = "resumed"
	End     = "end"
	// Fault is the moment at which a part of the cluster fails, and Healed the one at which all parts work again.
	Fault  = "fault"
	Healed = "healed"
)

// Record is a line of a history. Fields that its kind does not need are empty.
type Record struct {
	Kind string `json:"kind"`
	// At is the time since the campaign began.
	At time.Duration `json:"at_ns"`
	// Stream is the id of a stream of a client. Every request has one of its own, also one that is tried again.
	Stream string `json:"stream,omitempty"`
	// Ask names what is asked: all requests of a name have the same body, but for the way to decode, which is Mode.
	Ask  string `json:"ask,omitempty"`
	Mode string `json:"mode,omitempty"`
	// Gateway is the index of the one that was asked, or that fails.
	Gateway int `json:"gateway,omitempty"`
	// Sequence is the number of an event, from 1 without gaps, where the API gives events numbers; 0 = it gives none.
	Sequence int `json:"sequence,omitempty"`
	// Tokens of an event, or of a whole answer.
	Tokens []Token `json:"tokens,omitempty"`
	// Finish is the finish reason of a whole answer, Count the tokens that the usage of the answer says it has.
	Finish string `json:"finish,omitempty"`
	Count  int    `json:"count,omitempty"`
	// Variant tells answers of one Ask apart that may differ: an answer to a prompt that could not be compressed is
	// another one, and says so itself.
	Variant string `json:"variant,omitempty"`
	// Contract is the numeric contract that the answer names.
	Contract string `json:"contract,omitempty"`
	// Error is what ended a stream without a finish reason.
	Error string `json:"error,omitempty"`
	// Fault is the number of a fault, from 1, of Type, which limits belong to; Part says what failed.
	Fault int    `json:"fault,omitempty"`
	Type  string `json:"type,omitempty"`
	Part  string `json:"part,omitempty"`
}

// Token is a token as an API shows it. Equal arithmetic gives equal log-probabilities, bit by bit.
type Token struct {
	Text string `json:"text"`
	// Logprob is the number as it was written.
	Logprob string `json:"logprob,omitempty"`
}

// Recorder writes records and keeps them. It is safe for concurrent use.
type Recorder struct {
	start time.Time

	mu      sync.Mutex // guards the following
	out     *json.Encoder
	err     error
	records []Record
}

// NewRecorder returns a recorder whose time starts now. It writes a line for every record; nil = nowhere.
func NewRecorder(w io.Writer) *Recorder {
	r := &Recorder{start: time.Now()}
	if w != nil {
		r.out = json.NewEncoder(w)
		r.out.SetEscapeHTML(false)
	}
	return r
}

// Add notes a record, whose time is now.
func (r *Recorder) Add(record Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	record.At = time.Since(r.start)
	r.records = append(r.records, record)
	if r.out != nil && r.err == nil {
		r.err = r.out.Encode(record)
	}
}

// Records returns what was noted so far, and the first error of writing it.
func (r *Recorder) Records() ([]Record, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.records[:len(r.records):len(r.records)], r.err
}

// maxLine bounds a line of a history, in bytes: a whole answer with its log-probabilities.
const maxLine = 16 << 20

// Read reads a history.
func Read(r io.Reader) ([]Record, error) {
	var out []Record
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var record Record
		if err := json.Unmarshal(lines.Bytes(), &record); err != nil {
			return nil, fmt.Errorf("line %d of the history: %w", len(out)+1, err)
		}
		out = append(out, record)
	}
	return out, lines.Err()
}
