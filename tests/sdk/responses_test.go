package sdk

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/packages/ssestream"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"
)

func unquote(t *testing.T, raw string) (s string) {
	t.Helper()
	if raw == "" {
		return ""
	}
	if err := json.Unmarshal([]byte(raw), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

func responseParams(text string, change ...func(*responses.ResponseNewParams)) responses.ResponseNewParams {
	p := responses.ResponseNewParams{Model: "tiny",
		Input: responses.ResponseNewParamsInputUnion{OfString: openai.String(text)}}
	for _, c := range change {
		c(&p)
	}
	return p
}

func responseTools(p *responses.ResponseNewParams) {
	p.Tools = []responses.ToolUnionParam{
		{OfFunction: &responses.FunctionToolParam{Name: "weather", Parameters: weatherParameters,
			Strict: openai.Bool(false)}},
		{OfCustom: &responses.CustomToolParam{Name: "patch", Description: openai.String("Apply a patch")}},
	}
}

func callOutput(id, text string) responses.ResponseInputItemUnionParam {
	item := responses.ResponseInputItemParamOfFunctionCallOutput(text)
	item.OfFunctionCallOutput.CallID = openai.String(id)
	return item
}

func responseEffort(p *responses.ResponseNewParams) {
	p.Reasoning = shared.ReasoningParam{Effort: shared.ReasoningEffortLow, Summary: shared.ReasoningSummaryAuto}
}

// streamResponse runs a request as a stream; deltas is the text that its deltas spell, by kind of event.
func streamResponse(t *testing.T, c openai.Client,
	p responses.ResponseNewParams) (final responses.Response, deltas map[string]string) {
	t.Helper()
	stream := c.Responses.NewStreaming(t.Context(), p)
	defer stream.Close()
	deltas = map[string]string{}
	for i := int64(0); stream.Next(); i++ {
		e := stream.Current()
		conforms(t, e.AsAny())
		if e.SequenceNumber != i {
			t.Errorf("event %d has number %d", i, e.SequenceNumber)
		}
		if kind, ok := strings.CutSuffix(e.Type, ".delta"); ok {
			deltas[strings.TrimPrefix(kind, "response.")] += e.Delta
		}
		if e.Type == "response.completed" || e.Type == "response.incomplete" || e.Type == "response.failed" {
			final = e.Response
		}
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	return final, deltas
}

// collect reads all events of a stream.
func collect(t *testing.T,
	stream *ssestream.Stream[responses.ResponseStreamEventUnion]) (out []responses.ResponseStreamEventUnion) {
	t.Helper()
	defer stream.Close()
	for stream.Next() {
		conforms(t, stream.Current().AsAny())
		out = append(out, stream.Current())
	}
	if err := stream.Err(); err != nil {
		t.Error(err)
	}
	return out
}

// outline lists a response's output in short.
func outline(r *responses.Response) string {
	var out []string
	for _, it := range r.Output {
		switch it := it.AsAny().(type) {
		case responses.ResponseReasoningItem:
			out = append(out, "reasoning "+it.Content[0].Text)
		case responses.ResponseOutputMessage:
			out = append(out, "message "+it.Content[0].Text)
		case responses.ResponseFunctionToolCall:
			out = append(out, it.Name+" "+it.Arguments)
		case responses.ResponseCustomToolCall:
			out = append(out, it.Name+" "+it.Input)
		}
	}
	return strings.Join(out, " | ")
}

func TestResponses(t *testing.T) {
	c := openaiClient(t)
	const patch = "*** Begin Patch\n+ \"quoted\"\n*** End Patch"
	for name, tt := range map[string]struct {
		params responses.ResponseNewParams
		status responses.ResponseStatus
		want   string
		deltas map[string]string
	}{
		"text": {responseParams("Hi"), responses.ResponseStatusCompleted, "message " + greeting,
			map[string]string{"output_text": greeting}},
		"reasoning": {responseParams("Think about rain", responseEffort), responses.ResponseStatusCompleted,
			"reasoning First, rain.\nThen more of rain. | message All about rain.",
			map[string]string{"reasoning_text": "First, rain.\nThen more of rain.",
				"reasoning_summary_text": "First, rain.\nThen more of rain.", "output_text": "All about rain."}},
		"calls": {responseParams("Ask for the weather of Bern and Basel", responseTools), responses.ResponseStatusCompleted,
			`weather {"city": "Bern"} | weather {"city": "Basel"}`,
			map[string]string{"function_call_arguments": `{"city": "Bern"}{"city": "Basel"}`}},
		"custom": {responseParams("Patch the file", responseTools), responses.ResponseStatusCompleted, "patch " + patch,
			map[string]string{"custom_tool_call_input": patch}},
		"incomplete": {responseParams("Hi", func(p *responses.ResponseNewParams) { p.MaxOutputTokens = openai.Int(1) }),
			responses.ResponseStatusIncomplete, "",
			nil},
	} {
		t.Run(name, func(t *testing.T) {
			whole, err := c.Responses.New(t.Context(), tt.params)
			if err != nil {
				t.Fatal(err)
			}
			conforms(t, whole)
			streamed, deltas := streamResponse(t, c, tt.params)
			for kind, got := range map[string]*responses.Response{"whole": whole, "streamed": &streamed} {
				if got.Status != tt.status {
					t.Errorf("%s: status %s", kind, got.Status)
				}
				if o := outline(got); tt.want != "" && o != tt.want {
					t.Errorf("%s: output %q, want %q", kind, o, tt.want)
				}
				if got.Usage.TotalTokens != got.Usage.InputTokens+got.Usage.OutputTokens || got.Usage.OutputTokens == 0 {
					t.Errorf("%s: usage %s", kind, got.Usage.RawJSON())
				}
			}
			for kind, want := range tt.deltas {
				if deltas[kind] != want {
					t.Errorf("deltas of %s spell %q, want %q", kind, deltas[kind], want)
				}
			}
			if tt.status == responses.ResponseStatusIncomplete && whole.IncompleteDetails.Reason != "max_output_tokens" {
				t.Errorf("incomplete because of %q", whole.IncompleteDetails.Reason)
			}
		})
	}
}

func TestResponsesStore(t *testing.T) {
	c := openaiClient(t)
	first, err := c.Responses.New(t.Context(), responseParams("Ask for the weather of Bern", responseTools))
	if err != nil {
		t.Fatal(err)
	}
	p := responseParams("", responseTools)
	p.PreviousResponseID = openai.String(first.ID)
	p.Input = responses.ResponseNewParamsInputUnion{OfInputItemList: responses.ResponseInputParam{
		callOutput(first.Output[0].AsFunctionCall().CallID, "snow"),
	}}
	second, err := c.Responses.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if got := second.OutputText(); got != "The tool says: snow." {
		t.Errorf("answer %q", got)
	}
	again, err := c.Responses.Get(t.Context(), second.ID, responses.ResponseGetParams{})
	if err != nil || again.OutputText() != second.OutputText() || again.PreviousResponseID != first.ID {
		t.Errorf("GET gives %q, %v", again.OutputText(), err)
	}
	replayed := collect(t, c.Responses.GetStreaming(t.Context(), second.ID, responses.ResponseGetParams{}))
	if n := len(replayed); n == 0 || replayed[n-1].Response.OutputText() != second.OutputText() {
		t.Errorf("%d events of the kept response", n)
	}
	rest := collect(t, c.Responses.GetStreaming(t.Context(), second.ID,
		responses.ResponseGetParams{StartingAfter: openai.Int(2)}))
	if len(rest) != len(replayed)-3 || rest[0].SequenceNumber != 3 {
		t.Errorf("%d of %d events after number 2", len(rest), len(replayed))
	}
	var kinds []string
	items := c.Responses.InputItems.ListAutoPaging(t.Context(), second.ID,
		responses.InputItemListParams{Limit: openai.Int(1), Order: responses.InputItemListParamsOrderAsc})
	for items.Next() {
		it := items.Current()
		if it.Type != "message" { // the library takes every message for one of the output
			conforms(t, it.AsAny())
		}
		kinds = append(kinds, it.Type)
	}
	if got := strings.Join(kinds, " "); items.Err() != nil || got != "message function_call function_call_output" {
		t.Errorf("input items %q, %v", got, items.Err())
	}
	if err := c.Responses.Delete(t.Context(), second.ID); err != nil {
		t.Error(err)
	}
	_, err = c.Responses.Get(t.Context(), second.ID, responses.ResponseGetParams{})
	var e *openai.Error
	if !errors.As(err, &e) || e.StatusCode != 404 {
		t.Errorf("GET of a deleted response: %v", err)
	}
}

// The whole output goes back as input, as agents without a store do it.
func TestResponsesToolLoop(t *testing.T) {
	c := openaiClient(t)
	p := responseParams("", responseTools, responseEffort)
	p.Store = openai.Bool(false)
	p.Include = []responses.ResponseIncludable{responses.ResponseIncludableReasoningEncryptedContent}
	items := responses.ResponseInputParam{responses.ResponseInputItemParamOfMessage("Think, then ask for the weather",
		responses.EasyInputMessageRoleUser)}
	p.Input = responses.ResponseNewParamsInputUnion{OfInputItemList: items}
	first, _ := streamResponse(t, c, p)
	if got := outline(&first); got != `reasoning I need the tool. | message Let me look.`+"\n"+
		` | weather {"city": "Bern"}` {
		t.Fatalf("output %q", got)
	}
	if first.Output[0].AsReasoning().EncryptedContent == "" {
		t.Error("no encrypted content")
	}
	for _, it := range first.Output {
		var back responses.ResponseInputItemUnionParam
		if err := json.Unmarshal([]byte(it.RawJSON()), &back); err != nil {
			t.Fatal(err)
		}
		items = append(items, back)
	}
	items = append(items, callOutput(first.Output[2].AsFunctionCall().CallID, "sun"))
	p.Input = responses.ResponseNewParamsInputUnion{OfInputItemList: items}
	p.Reasoning = shared.ReasoningParam{}
	second, err := c.Responses.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if got := second.OutputText(); got != "The tool says: sun." {
		t.Errorf("answer %q", got)
	}
}

func TestResponsesCancel(t *testing.T) {
	c := openaiClient(t)
	stream := c.Responses.NewStreaming(t.Context(), responseParams("Count for ever"))
	defer stream.Close()
	var last responses.ResponseStreamEventUnion
	cancelled := false
	for stream.Next() {
		last = stream.Current()
		if last.Type == "response.created" && !cancelled {
			cancelled = true
			got, err := c.Responses.Cancel(t.Context(), last.Response.ID)
			if err != nil || got.Status != responses.ResponseStatusCancelled {
				t.Errorf("cancel: %v, %v", got, err)
			}
		}
	}
	if stream.Err() != nil || last.Response.Status != responses.ResponseStatusCancelled {
		t.Errorf("the stream ends with %s, status %q, %v", last.Type, last.Response.Status, stream.Err())
	}
}

func TestResponsesErrors(t *testing.T) {
	c := openaiClient(t)
	for name, tt := range map[string]struct {
		params responses.ResponseNewParams
		status int
		code   string
	}{
		"background": {responseParams("Hi", func(p *responses.ResponseNewParams) {
			p.Background, p.Store = openai.Bool(true), openai.Bool(false)
		}), 400, "invalid_value"},
		"previous": {responseParams("Hi",
			func(p *responses.ResponseNewParams) { p.PreviousResponseID = openai.String("resp_none") }), 400,
			"previous_response_not_found"},
		"context": {responseParams(strings.Repeat("many words ", 9000)), 400, "context_length_exceeded"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := c.Responses.New(t.Context(), tt.params)
			var e *openai.Error
			if !errors.As(err, &e) || e.StatusCode != tt.status || e.Code != tt.code {
				t.Errorf("%v, want %d %s", err, tt.status, tt.code)
			}
		})
	}
}

func TestResponsesStructuredOutput(t *testing.T) {
	c := openaiClient(t)
	p := responseParams("Answer in JSON", func(p *responses.ResponseNewParams) {
		type format = responses.ResponseFormatTextConfigUnionParam
		p.Text.Format = format{OfJSONSchema: &responses.ResponseFormatTextJSONSchemaConfigParam{
			Name: "answer", Strict: openai.Bool(true), Schema: citySchema}}
	})
	whole, err := c.Responses.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	conforms(t, whole)
	structured(t, whole.OutputText())
	streamed, _ := streamResponse(t, c, p)
	structured(t, streamed.OutputText())
}
