package live

import (
	"strings"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/tokenizer"
)

// Event is a round, a step of a prompt or a request's end as a watcher sees it. Times are milliseconds from Start.
type Event struct {
	Type   string `json:"type"` // round, prompt, end
	Worker string `json:"worker"`
	Ref    uint64 `json:"ref"`
	// ID of the watcher's own requests.
	ID        string     `json:"id,omitempty"`
	Choice    int        `json:"choice"`
	Number    int32      `json:"n"`
	Start     float64    `json:"start"` // milliseconds of the worker's clock
	Proposed  float64    `json:"proposed"`
	Draft     float64    `json:"draft"`
	Step      [2]float64 `json:"step"`
	Engine    float64    `json:"engine"`
	End       float64    `json:"end"`
	Rows      int32      `json:"rows"`
	BatchRows int32      `json:"batch_rows"`
	Position  int32      `json:"position"`
	Accepted  int        `json:"accepted"`
	Committed int32      `json:"committed"`
	// Skipped counts the rounds of the request since the event before that were left out.
	Skipped int32 `json:"skipped,omitempty"`
	// Of the watcher's own requests: the tree with its accepted path, and output from Index on.
	Nodes  []Node  `json:"nodes,omitempty"`
	Path   []int32 `json:"path,omitempty"`
	Index  int32   `json:"index"`
	Tokens []Token `json:"tokens,omitempty"`
	// Dropped counts what was lost on the way from the worker.
	Dropped uint64 `json:"dropped,omitempty"`

	choice *choice
	watch  uint64 // of the request
}

// Node of a round's tree.
type Node struct {
	Text   string `json:"t"`
	Parent int32  `json:"p"`
	Origin string `json:"o"`
}

// Token of an output.
type Token struct {
	Text   string `json:"t"`
	Origin string `json:"o"`
}

// origins are the names of TokenOrigin on the page, by number.
var origins = [...]string{
	tandemv1.TokenOrigin_TOKEN_ORIGIN_ANCHOR: "anchor", tandemv1.TokenOrigin_TOKEN_ORIGIN_PLAIN: "plain",
	tandemv1.TokenOrigin_TOKEN_ORIGIN_DRAFT: "draft", tandemv1.TokenOrigin_TOKEN_ORIGIN_LOOKUP: "lookup",
	tandemv1.TokenOrigin_TOKEN_ORIGIN_CONSTRAINT: "constraint",
}

// origin is the name of one, empty when it is none.
func origin(o tandemv1.TokenOrigin) string {
	if o < 0 || int(o) >= len(origins) {
		return ""
	}
	return origins[o]
}

var kinds = map[tandemv1.WatchKind]string{
	tandemv1.WatchKind_WATCH_KIND_ROUND: "round", tandemv1.WatchKind_WATCH_KIND_PROMPT: "prompt",
	tandemv1.WatchKind_WATCH_KIND_END: "end",
}

// newEvent makes the event of a worker's message, texts included. c is nil for a request of another gateway.
func newEvent(worker string, m *tandemv1.WatchEvent, c *choice, tok *tokenizer.Tokenizer) *Event {
	us := func(n int64) float64 { return float64(n) / 1000 }
	e := &Event{
		Type: kinds[m.GetKind()], Worker: worker, Number: m.GetNumber(), Start: us(m.GetStartUnixMicros()),
		Proposed: us(m.GetProposedUs()), Draft: us(m.GetDraftUs()), Step: [2]float64{us(m.GetStepBeginUs()),
			us(m.GetStepEndUs())}, Engine: us(m.GetEngineUs()), End: us(m.GetEndUs()), Rows: m.GetRows(),
		BatchRows: m.GetBatchRows(), Position: m.GetPosition(),
		// Without what follows the end of the answer.
		Accepted:  max(0, min(len(m.GetPath())-1, int(m.GetCommitted()))),
		Committed: m.GetCommitted(), Skipped: m.GetSkipped(), Index: m.GetOutputIndex(), choice: c, watch: m.GetWatch(),
	}
	if c == nil {
		return e
	}
	e.Ref, e.ID, e.Choice = c.request.ref, c.request.id, c.index
	if tok == nil {
		return e
	}
	e.Path = m.GetPath()
	e.Nodes = make([]Node, 0, len(m.GetNodeTokens()))
	for i, id := range m.GetNodeTokens() {
		e.Nodes = append(e.Nodes, Node{Text: strings.ToValidUTF8(string(tok.TokenBytes(id)), "\uFFFD"),
			Parent: m.GetNodeParents()[i], Origin: origin(m.GetNodeOrigins()[i])})
	}
	e.Tokens = make([]Token, 0, len(m.GetTokens()))
	for i, text := range c.texts(tok, m.GetTokens()) {
		e.Tokens = append(e.Tokens, Token{Text: text, Origin: origin(m.GetOrigins()[i])})
	}
	return e
}

// seenBy is the event as a viewer may see it.
func (e *Event) seenBy(v Viewer) Event {
	seen := *e
	if e.choice == nil || !v.owns(e.choice.request) {
		seen.ID, seen.Nodes, seen.Path, seen.Tokens, seen.Index = "", nil, nil, nil, 0
	}
	return seen
}
