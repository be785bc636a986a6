package responses

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/apierror"
	"github.com/tandem-inference/tandem/gateway/internal/chat"
	"github.com/tandem-inference/tandem/gateway/internal/generate"
	"github.com/tandem-inference/tandem/gateway/internal/jsontext"
	"github.com/tandem-inference/tandem/gateway/internal/model"
	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	"github.com/tandem-inference/tandem/gateway/internal/reqjson"
	"github.com/tandem-inference/tandem/gateway/internal/turn"
	"github.com/tandem-inference/tandem/services/bounds"
)

// request is a request of the dialect.
type request struct {
	*turn.Request
	scope string
	// object is the answer as it begins.
	object *object
	// inputs are all input items, those of the previous response included; in their kept form when the response is to
	// be kept.
	inputs []json.RawMessage
	// calls makes the ids of calls.
	calls *ids
	// summary and encrypted say what reasoning items carry, logprobs whether messages carry log-probabilities.
	summary, encrypted, logprobs bool
}

// parse reads a request. name is what the answer calls the model. again is the record of a request that began
// elsewhere; nil = it begins here.
func (s *Service) parse(r *http.Request, o reqjson.Object, m *model.Model, name string, again *work) (*request, error) {
	base, err := s.turn.Parse(r, o, m)
	if err != nil {
		return nil, err
	}
	base.ReturnsReasoning = true
	if err := base.OneChoice(); err != nil {
		return nil, err
	}
	q := &request{Request: base, scope: turn.CallFrom(r.Context()).Scope, object: &object{
		ID: turn.ResponseID(r.Context(), "resp_"), Object: "response", CreatedAt: time.Now().Unix(),
		Status: statusInProgress, Model: name, Output: []any{}, ParallelToolCalls: base.Parallel, ServiceTier: "default",
		Temperature: base.Sampling.Temperature, TopP: base.Sampling.TopP,
	}}
	if again != nil {
		q.object.ID, q.object.CreatedAt, q.Sampling.Seed = again.ID, again.Created, &again.Seed
	}
	base.NewCallID = func() string { return q.calls.make("call_") }
	q.calls = newIDs(q.object.ID, idCall)
	if base.MaxTokensGiven {
		q.object.MaxOutputTokens = &base.MaxTokens
	}
	for _, read := range []func(reqjson.Object) error{q.refused, q.options, q.reasoning, q.include, q.echoes} {
		if err := read(o); err != nil {
			return nil, err
		}
	}
	return q, s.conversation(r.Context(), o, m, q)
}

// refused are features that would change the result and are not there.
func (q *request) refused(o reqjson.Object) error {
	background, _, err := o.Bool("background")
	if err != nil {
		return err
	}
	q.object.Background = background
	for _, name := range []string{"conversation", "prompt"} {
		if o.Has(name) {
			return reqerr.Unsupported(name, "is not supported")
		}
	}
	return nil
}

// options are fields with a fixed set of values.
func (q *request) options(o reqjson.Object) error {
	store, given, err := o.Bool("store")
	if err != nil {
		return err
	}
	q.object.Store = store || !given
	if q.object.Background && !q.object.Store {
		return reqerr.InvalidValue("background", "true needs store: a response that is not kept cannot be read later")
	}
	truncation, _, err := o.String("truncation")
	if err != nil {
		return err
	}
	q.object.Truncation = cmp.Or(truncation, "disabled")
	if t := q.object.Truncation; t != "disabled" && t != truncateAuto {
		return reqerr.InvalidValue("truncation", "must be auto or disabled, got %q", t)
	}
	text, ok, err := o.Object("text")
	if err != nil || !ok {
		return err
	}
	format, err := turn.ParseFormat(text, "format")
	if err == nil && format.Kind != turn.FormatText {
		q.Format = format
	}
	return err
}

func (q *request) reasoning(o reqjson.Object) error {
	raw, _, ok := o.Peek("reasoning")
	if !ok {
		return nil
	}
	if reqjson.Kind(raw) != 'o' {
		return reqerr.InvalidValue("reasoning", "must be an object")
	}
	in, _, err := o.Object("reasoning")
	if err != nil {
		return err
	}
	echo := &q.object.Reasoning
	if echo.Effort, err = optionalString(in, "effort"); err != nil {
		return err
	}
	if echo.Summary, err = optionalString(in, "summary", "generate_summary"); err != nil {
		return err
	}
	q.summary = echo.Summary != nil && *echo.Summary != "none"
	return nil
}

func (q *request) include(o reqjson.Object) error {
	list, _, _, err := o.Strings("include")
	if err != nil {
		return err
	}
	q.encrypted = slices.Contains(list, "reasoning.encrypted_content")
	q.logprobs = slices.Contains(list, "message.output_text.logprobs")
	top, _, err := o.Int(bounds.Between(0, turn.MaxTopLogprobs), "top_logprobs")
	if err != nil {
		return err
	}
	q.object.TopLogprobs = int(top)
	q.TopLogprobs = generate.NoLogprobs
	// Who names candidates wants them, also without the word in include.
	if q.logprobs = q.logprobs || top > 0; q.logprobs {
		q.TopLogprobs = int(top)
	}
	calls, given, err := o.Int(bounds.AtLeast(1), "max_tool_calls")
	if given {
		// It limits calls of tools that a server runs, of which there are none here.
		q.object.MaxToolCalls = &calls
	}
	return err
}

// echoes are fields that the answer repeats.
func (q *request) echoes(o reqjson.Object) (err error) {
	obj := q.object
	for name, dst := range map[string]**string{"user": &obj.User, "prompt_cache_key": &obj.PromptCacheKey} {
		if *dst, err = optionalString(o, name); err != nil {
			return err
		}
	}
	obj.Metadata = json.RawMessage("{}")
	if _, ok, err := o.Object("metadata"); err != nil {
		return err
	} else if ok {
		obj.Metadata = compact(o, "metadata")
	}
	obj.Tools = emptyList
	if o.Has("tools") {
		obj.Tools = compact(o, "tools")
	}
	obj.ToolChoice = json.RawMessage(`"auto"`)
	if o.Has("tool_choice") {
		obj.ToolChoice = compact(o, "tool_choice")
	}
	obj.Text = json.RawMessage(`{"format":{"type":"text"}}`)
	if text, ok, err := o.Object("text"); err != nil {
		return err
	} else if ok && text.Has("format") {
		obj.Text = compact(o, "text")
	}
	obj.Instructions = json.RawMessage("null")
	if o.Has("instructions") {
		obj.Instructions = compact(o, "instructions")
	}
	return nil
}

// compact is a copy of a member that does not keep the whole body in memory.
func compact(o reqjson.Object, name string) json.RawMessage {
	raw, _, _ := o.Peek(name)
	return compactRaw(raw)
}

func compactRaw(raw json.RawMessage) json.RawMessage {
	out, err := jsontext.Marshal(raw)
	if err != nil {
		// It was part of a body that was parsed.
		panic(err)
	}
	return out
}

func optionalString(o reqjson.Object, names ...string) (*string, error) {
	v, ok, err := o.String(names...)
	if !ok || err != nil {
		return nil, err
	}
	return &v, nil
}

// conversation reads instructions and items, those of the previous response first.
func (s *Service) conversation(ctx context.Context, o reqjson.Object, m *model.Model, q *request) error {
	instructions, _, err := o.String("instructions")
	if err != nil {
		return err
	}
	in := &reader{omit: s.turn.Omit(q.Request), sealed: s.sealed, find: func(id string) (json.RawMessage, bool) {
		return s.item(ctx, key{q.scope, id})
	}}
	if instructions != "" {
		in.push(chat.Message{Role: chat.RoleSystem, Content: instructions})
	}
	own, err := parseItems(o)
	if err != nil {
		return err
	}
	previous, given, err := o.String("previous_response_id")
	if err != nil {
		return err
	}
	if given && previous != "" {
		e, err := s.kept(ctx, key{q.scope, previous})
		if err != nil {
			return err
		}
		if e == nil {
			return apierror.PreviousResponse(previous)
		}
		q.object.PreviousResponseID = &previous
		for _, raw := range e.items {
			if err := in.add(raw, "previous_response_id"); err != nil {
				return err
			}
		}
		q.inputs = append(q.inputs, e.items...)
	}
	newID := newIDs(q.object.ID, idInput).make
	for i, raw := range own {
		if err := in.element(o, i, raw); err != nil {
			return err
		}
		if q.object.Store {
			raw = settled(raw, in.find, newID)
		}
		q.inputs = append(q.inputs, raw)
	}
	if len(q.inputs) == 0 {
		return reqerr.Missing("input")
	}
	q.Tools, q.Skipped = q.Tools.Union(in.tools...), append(q.Skipped, in.toolsSkipped...)
	// Truncation keeps what stands first, so all that belongs there has to be there before.
	q.Messages = chat.JoinSystem(in.messages(), m.LaterSystem)
	if len(q.Messages) == 0 {
		return reqerr.InvalidValue("input",
			"holds nothing that can be read here: only %s", strings.Join(in.skipped, ", "))
	}
	s.logSkipped(q, in.skipped)
	q.SkippedItems = in.skipped
	return nil
}
