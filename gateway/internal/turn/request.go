package turn

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/chat"
	"github.com/tandem-inference/tandem/gateway/internal/compress"
	"github.com/tandem-inference/tandem/gateway/internal/generate"
	"github.com/tandem-inference/tandem/gateway/internal/reqjson"
	"github.com/tandem-inference/tandem/gateway/internal/toolcall"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
)

// Request is a request in its normal form (docs/spec/http-api.md §5).
type Request struct {
	// ID and Arrived are the call's.
	ID      string
	Arrived time.Time
	// Model is the name to answer with: the one that was asked for, else the served one.
	Model string
	// Stream asks for server-sent events.
	Stream bool

	Messages []chat.Message
	// Kwargs are further variables of the template, as a JSON object; nil = none.
	Kwargs json.RawMessage

	// Tools of the request; nil = none. Skipped are the types of tools that are not offered to the model.
	Tools   *toolcall.Set
	Skipped []string
	Choice  ToolChoice
	// Body is the object that the request was read from, to find fields that were not read.
	Body reqjson.Object
	// Omitted are the kinds of content that a placeholder replaced, SkippedItems the types of blocks and items of the
	// conversation that have no meaning for this model.
	Omitted, SkippedItems []string
	// Parallel allows more than one call in a turn.
	Parallel bool
	// NewCallID makes the ids of calls; nil = OpenAI's form.
	NewCallID func() string

	Format   Format
	Thinking Thinking
	// ReturnsReasoning says that clients of the dialect send reasoning back. It holds until a client has sent an answer
	// back, which shows what it does.
	ReturnsReasoning bool
	// ReasoningInContent leaves the reasoning in the content, as it was written.
	ReasoningInContent bool

	Sampling       *tandemv1.Sampling
	Stops          []string
	MaxTokens      int
	MaxTokensGiven bool
	N              int
	Speculation    *tandemv1.Speculation
	// TopLogprobs is the number of candidates per content token, 0 = the chosen token only, generate.NoLogprobs = none.
	TopLogprobs int
	// SessionID ties requests of one conversation together, empty when the client names none.
	SessionID string
	// Share identifies the client for the queue, see the function Share.
	Share string
	// Owner is the scope of the API key, empty without keys.
	Owner    string
	Priority int
	// NoCache keeps the request from the prefix cache.
	NoCache bool
	// Scope identifies the API key, see Call.
	Scope  string
	Pflash compress.Settings
}

// ToolMode is whether the model may or must call a tool.
type ToolMode uint8

// The modes of a ToolChoice.
const (
	ToolAuto ToolMode = iota
	ToolNone
	ToolRequired
	ToolNamed
)

// ToolChoice is the request's tool_choice.
type ToolChoice struct {
	Mode ToolMode
	// Name of the one tool that must be called, as the model knows it; ToolNamed only.
	Name string
	// Allowed are the only tools that may be called; nil = all.
	Allowed []string
	// Hosted is the type of a hosted tool that the choice names: such a choice is ignored.
	Hosted string
}

// FormatKind is the required form of the visible text.
type FormatKind uint8

// The kinds of a Format.
const (
	FormatText FormatKind = iota
	FormatJSONObject
	FormatJSONSchema
	FormatGrammar
)

// Format is a constraint on the visible text.
type Format struct {
	Kind FormatKind
	// Path is the JSON path of the field that asked for it, for errors.
	Path string
	// Name and Strict are echoed, Schema constrains; FormatJSONSchema only.
	Name   string
	Strict bool
	// Lenient leaves out keywords that cannot be followed, with a warning, instead of refusing the request. It reads
	// the schema as the standard defines it: keys in any order, undeclared ones where nothing forbids them.
	Lenient bool
	Schema  json.RawMessage
	// Grammar is GBNF; FormatGrammar only.
	Grammar string
}

// Thinking holds the request's fields about reasoning, not yet resolved.
type Thinking struct {
	// Type is thinking.type: enabled, adaptive, disabled, or empty.
	Type string
	// Effort is the first effort that is named, in its own words; empty = none.
	Effort string
	// Enable is enable_thinking, KwargsEnable the one among chat_template_kwargs; nil = not given.
	Enable, KwargsEnable *bool
	// BudgetTokens limits the reasoning, 0 = not given.
	BudgetTokens int
	// ReplyBudget is the number of tokens reserved for the reply; nil = not given.
	ReplyBudget *int
}

// On resolves the switch: the first of type, effort, enable_thinking and chat_template_kwargs that is given wins,
// else byDefault.
func (t Thinking) On(byDefault bool) bool {
	switch {
	case t.Type != "":
		return t.Type != "disabled"
	case t.Effort != "":
		return t.Effort != "none"
	case t.Enable != nil:
		return *t.Enable
	case t.KwargsEnable != nil:
		return *t.KwargsEnable
	}
	return byDefault
}

// Callable are the tools that may be called.
func (r *Request) Callable() *toolcall.Set {
	if r.Choice.Allowed == nil {
		return r.Tools
	}
	return r.Tools.Only(r.Choice.Allowed)
}

// Prepared is a request that is ready to run.
type Prepared struct {
	Run *generate.Request
	// PromptTokens is the length of the rendered prompt, before compression.
	PromptTokens int
	// Warnings are sent as x-tandem-warning headers.
	Warnings []string

	scope string
	// chat is the conversation of a request whose next turn can be predicted; nil = none.
	chat *Request
}

// warningHeader names the parts of a request that were left out.
const warningHeader = "x-tandem-warning"

// warn sends the warnings; headers must not be out yet.
func (p *Prepared) warn(h http.Header) {
	for _, w := range p.Warnings {
		h.Add(warningHeader, headerText(w))
	}
}
