package generate

import (
	"slices"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/compress"
	"github.com/tandem-inference/tandem/gateway/internal/emit"
	"github.com/tandem-inference/tandem/gateway/internal/metrics"
	"github.com/tandem-inference/tandem/gateway/internal/model"
	"github.com/tandem-inference/tandem/gateway/internal/toolcall"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
)

// NoLogprobs as Request.TopLogprobs asks for none.
const NoLogprobs = -1

// Prompt is one prompt of a request.
type Prompt struct {
	Tokens []int32
	// Thinking says that the prompt ends with the open marker.
	Thinking bool
	// Compress shortens the prompt; nil when compression is not wanted.
	Compress compress.Func
	// Hints are positions in Tokens up to which the client is going to send the prompt again, ascending.
	Hints []int32
	// Rendering is how the prompt came about, for traces; zero = it is not known.
	Rendering model.Rendering
}

// Request is a request of any dialect in its normal form.
type Request struct {
	ID string // for workers and logs
	// Operation is that of the GenAI conventions, empty = chat.
	Operation string
	// ModelName is what answers call the model, for traces.
	ModelName string
	// Model is the one that answers.
	Model   *model.Model
	Prompts []Prompt
	// N is the number of choices of each prompt; choice k of prompt i has index i*N+k.
	N        int
	Sampling *tandemv1.Sampling
	// MaxTokens is the wanted output; meaningful with MaxTokensGiven only. 0 scores the prompt.
	MaxTokens      int
	MaxTokensGiven bool
	Stops          []string
	Speculation    *tandemv1.Speculation
	// TopLogprobs is the number of candidates per position, 0 = chosen token only, NoLogprobs = none at all.
	TopLogprobs    int
	PromptLogprobs bool
	// SplitReasoning tells reasoning from content; without it markers are text.
	SplitReasoning bool
	// ReasoningInContent leaves the reasoning in the content, as it was written; with SplitReasoning.
	ReasoningInContent bool
	// Tools makes calls of what the model writes as such; nil = all of it is text.
	Tools *toolcall.Config
	// Compressed is called with the outcome of each compression, before Admitted; nil = nobody is told.
	Compressed func(*compress.Report)
	// RawTokens hands the ids of each step to the sink as well.
	RawTokens bool
	// TokenByToken hands over what each token makes visible by itself, so that the calls of Delta depend on the text alone
	// and not on the steps in which a worker committed it.
	TokenByToken bool
	// Taken is called with the contract id of the worker that took the first choice, before Admitted; nil = nobody is
	// told.
	Taken func(contract string)
	// Contract is the contract id that the workers must have, for a request that began elsewhere; nil = any.
	Contract *string
	// Constraint limits what may be chosen; nil = nothing. Its Reasoning is filled by Reasoning.
	Constraint *tandemv1.Guide
	// Reasoning says how the reasoning of a choice is bounded that may have max tokens and whose prompt ends inside
	// reasoning or not; nil, or a nil result = not at all.
	Reasoning func(max int, inside bool) *tandemv1.Reasoning
	// DefaultMaxTokens replaces the generator's default for this request, 0 = leaves it.
	DefaultMaxTokens int
	Priority         int
	// NoCache keeps the request from the prefix cache of its worker.
	NoCache bool
	// CacheScope names those whose prompts share states, empty = all.
	CacheScope string
	// Session names the conversation, empty when the client names none.
	Session string
	// Share is who asks, among whom slots are shared fairly.
	Share string
	// Owner is the scope of the API key that asked, empty without keys: it may see the request's text live.
	Owner   string
	Arrived time.Time
}

// Sink receives a request's output. Calls for one index come in order; calls for different indexes may come at the same
// time. An error from Delta ends the request.
type Sink interface {
	// Admitted: a worker took the first choice. Called once, before everything else.
	Admitted() error
	// Prompt hands over log-probabilities of prompt tokens 1…; only with PromptLogprobs.
	Prompt(index int, logprobs []*tandemv1.PositionLogprobs) error
	// Delta hands over visible output, valid during the call.
	Delta(index int, d Delta) error
	// Done ends a choice.
	Done(index int, r Choice) error
}

// Delta is new output of a choice.
type Delta struct {
	Events []emit.Event
	// Raw is set with RawTokens: the tokens of this step.
	Raw []emit.Entry
}

// Reasons why a choice ended, in OpenAI's words.
const (
	FinishStop      = "stop"
	FinishLength    = "length"
	FinishToolCalls = "tool_calls"
)

// Kinds of closing reasoning; empty when no reasoning took place.
const (
	CloseNone    = "none"
	CloseNatural = "natural"
	CloseSoft    = "soft"
	CloseHard    = "hard"
)

// Choice is the end of one choice.
type Choice struct {
	Finish string
	// StopString is the stop string that ended it, empty for other ends.
	StopString string
	Tokens     emit.Counts
	// ToolCalls are the calls that were completed.
	ToolCalls []*toolcall.Call
	// ToolParseError says why markup that looked like a call is visible text or a repaired call, empty when nothing of the
	// sort happened.
	ToolParseError string
	// Tools says that the request had tools, so that calls were looked for.
	Tools bool
	// CloseKind is one of the Close… constants.
	CloseKind string
	// Degenerate says that the watchdog ended a text that repeated itself.
	Degenerate bool
	// Clamped is set when the context lowered max_tokens, to the limit that held.
	Clamped int
}

// Usage is the account of a request, summed over choices; the prompt counts once per prompt.
type Usage struct {
	PromptTokens int // before compression
	// CachedTokens of the prompt were restored from a prefix cache, SavedTokens newly written to one.
	CachedTokens     int
	SavedTokens      int
	CompletionTokens int
	ReasoningTokens  int
	ToolTokens       int // of CompletionTokens, the markup of calls
	Drafted          int64
	Accepted         int64
	LookupDrafted    int64 // of Drafted and Accepted, proposed by lookup
	LookupAccepted   int64
	VerifySteps      int64
	Degraded         bool
	Retries          int
	// Contracts are the contract ids of the workers that ended the choices, without repetition, in order of their end.
	Contracts []string
	// ContractChanges counts moves to a worker with another id after tokens were generated; Config.FailoverAny
	// allows them.
	ContractChanges int
	// Worker is the one that ended the last choice.
	Worker      string
	CloseKind   string           // of the last choice that ended, see Choice
	Compression *compress.Report // nil when compression was off

	Queue, Compress, Restore, Prefill, TTFT, Decode, Total time.Duration
}

// addContract notes the id of a choice's worker; an empty one says nothing.
func (u *Usage) addContract(id string) {
	if id != "" && !slices.Contains(u.Contracts, id) {
		u.Contracts = append(u.Contracts, id)
	}
}

// PrefilledTokens is how many tokens of the prompts the target read: without those that compression dropped or a
// cache held.
func (u *Usage) PrefilledTokens() int {
	n := u.PromptTokens - u.CachedTokens
	if c := u.Compression; c != nil && c.Applied {
		n -= c.OriginalTokens - c.KeptTokens
	}
	return n
}

// Generation is the account as the metrics want it.
func (u *Usage) Generation() metrics.Generation {
	return metrics.Generation{
		PromptTokens: u.PromptTokens, PrefilledTokens: u.PrefilledTokens(),
		ContentTokens: u.CompletionTokens - u.ReasoningTokens, ReasoningTokens: u.ReasoningTokens,
		ToolTokens: u.ToolTokens, Drafted: u.Drafted, Accepted: u.Accepted, VerifySteps: u.VerifySteps,
		LookupDrafted: u.LookupDrafted, LookupAccepted: u.LookupAccepted,
		Queue: u.Queue, TTFT: u.TTFT, Prefill: u.Prefill, Decode: u.Decode, Total: u.Total, CloseKind: u.CloseKind,
	}
}
