package sdk

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/shared"
)

var weatherParameters = shared.FunctionParameters{"type": "object",
	"properties": map[string]any{"city": map[string]any{"type": "string"}}, "required": []string{"city"}}

func chatParams(text string, change ...func(*openai.ChatCompletionNewParams)) openai.ChatCompletionNewParams {
	p := openai.ChatCompletionNewParams{Model: "tiny",
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(text)}}
	for _, c := range change {
		c(&p)
	}
	return p
}

func withWeather(p *openai.ChatCompletionNewParams) {
	weather := shared.FunctionDefinitionParam{Name: "weather", Parameters: weatherParameters}
	p.Tools = []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(weather)}
}

func withEffort(p *openai.ChatCompletionNewParams) { p.ReasoningEffort = shared.ReasoningEffortLow }

// streamChat runs a request as a stream and puts it together with the library's accumulator.
func streamChat(t *testing.T, c openai.Client, p openai.ChatCompletionNewParams) (openai.ChatCompletion, string) {
	t.Helper()
	p.StreamOptions.IncludeUsage = openai.Bool(true)
	stream := c.Chat.Completions.NewStreaming(t.Context(), p)
	defer stream.Close()
	var acc openai.ChatCompletionAccumulator
	var reasoning strings.Builder
	for stream.Next() {
		chunk := stream.Current()
		conforms(t, chunk)
		if !acc.AddChunk(chunk) {
			t.Errorf("the accumulator refuses %s", chunk.RawJSON())
		}
		if len(chunk.Choices) > 0 {
			reasoning.WriteString(unquote(t, chunk.Choices[0].Delta.JSON.ExtraFields["reasoning_content"].Raw()))
		}
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	return acc.ChatCompletion, reasoning.String()
}

func TestChat(t *testing.T) {
	c := openaiClient(t)
	for name, tt := range map[string]struct {
		params                     openai.ChatCompletionNewParams
		content, reasoning, finish string
		calls                      []string
	}{
		"text": {chatParams("Hi"), greeting, "", "stop", nil},
		"reasoning": {chatParams("Think about rain", withEffort), "All about rain.",
			"First, rain.\nThen more of rain.", "stop", nil},
		"call": {chatParams("Ask for the weather of Bern", withWeather), "", "", "tool_calls", []string{"Bern"}},
		"calls": {chatParams("Ask for the weather of Bern and Basel", withWeather), "", "", "tool_calls",
			[]string{"Bern", "Basel"}},
		"reason, say, ask": {chatParams("Think, then ask for the weather", withWeather, withEffort), "Let me look.\n",
			"I need the tool.", "tool_calls", []string{"Bern"}},
		"length": {chatParams("Hi",
			func(p *openai.ChatCompletionNewParams) { p.MaxCompletionTokens = openai.Int(1) }), "", "", "length", nil},
		"stop": {chatParams("Hi", func(p *openai.ChatCompletionNewParams) {
			p.Stop = openai.ChatCompletionNewParamsStopUnion{OfStringArray: []string{" Zür"}}
		}), "Hello,", "", "stop", nil},
	} {
		t.Run(name, func(t *testing.T) {
			whole, err := c.Chat.Completions.New(t.Context(), tt.params)
			if err != nil {
				t.Fatal(err)
			}
			conforms(t, whole)
			streamed, reasoning := streamChat(t, c, tt.params)
			if r := unquote(t, whole.Choices[0].Message.JSON.ExtraFields["reasoning_content"].Raw()); r != tt.reasoning ||
				reasoning != tt.reasoning {
				t.Errorf("reasoning %q, streamed %q; want %q", r, reasoning, tt.reasoning)
			}
			for kind, got := range map[string]*openai.ChatCompletion{"whole": whole, "streamed": &streamed} {
				m := got.Choices[0]
				if name != "length" && m.Message.Content != tt.content {
					t.Errorf("%s: content %q, want %q", kind, m.Message.Content, tt.content)
				}
				if m.FinishReason != tt.finish || got.Model != "tiny" || got.Usage.CompletionTokens == 0 ||
					got.Usage.TotalTokens != got.Usage.PromptTokens+got.Usage.CompletionTokens {
					t.Errorf("%s: finish %q, model %q, usage %s", kind, m.FinishReason, got.Model, got.Usage.RawJSON())
				}
				if len(m.Message.ToolCalls) != len(tt.calls) {
					t.Fatalf("%s: %d calls, want %d", kind, len(m.Message.ToolCalls), len(tt.calls))
				}
				for i, city := range tt.calls {
					if f := m.Message.ToolCalls[i].Function; f.Name != "weather" || f.Arguments != `{"city": "`+city+`"}` {
						t.Errorf("%s: call %d is %s %s", kind, i, f.Name, f.Arguments)
					}
				}
			}
		})
	}
}

func TestChatToolLoop(t *testing.T) {
	c := openaiClient(t)
	p := chatParams("Ask for the weather of Bern", withWeather)
	first, err := c.Chat.Completions.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	m := first.Choices[0].Message
	p.Messages = append(p.Messages, m.ToParam(), openai.ToolMessage("rain", m.ToolCalls[0].ID))
	second, err := c.Chat.Completions.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if got := second.Choices[0].Message.Content; got != "The tool says: rain." {
		t.Errorf("answer %q", got)
	}
}

func TestChatLogprobs(t *testing.T) {
	c := openaiClient(t)
	p := chatParams("Hi", func(p *openai.ChatCompletionNewParams) {
		p.Logprobs, p.TopLogprobs = openai.Bool(true), openai.Int(3)
	})
	whole, err := c.Chat.Completions.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	conforms(t, whole)
	streamed, _ := streamChat(t, c, p)
	for kind, got := range map[string]*openai.ChatCompletion{"whole": whole, "streamed": &streamed} {
		var bytes []byte
		for _, e := range got.Choices[0].Logprobs.Content {
			for _, b := range e.Bytes {
				bytes = append(bytes, byte(b))
			}
			if len(e.TopLogprobs) != 3 || e.Logprob > 0 {
				t.Errorf("%s: entry %s", kind, e.RawJSON())
			}
		}
		if string(bytes) != greeting {
			t.Errorf("%s: the entries spell %q", kind, bytes)
		}
	}
}

func TestCompletions(t *testing.T) {
	c := openaiClient(t)
	p := openai.CompletionNewParams{Model: "tiny",
		Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("Hi")}, MaxTokens: openai.Int(100)}
	whole, err := c.Completions.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	conforms(t, whole)
	var text strings.Builder
	stream := c.Completions.NewStreaming(t.Context(), p)
	for stream.Next() {
		conforms(t, stream.Current())
		for _, ch := range stream.Current().Choices {
			text.WriteString(ch.Text)
		}
	}
	if stream.Err() != nil || text.String() != greeting || whole.Choices[0].Text != greeting {
		t.Errorf("%q, streamed %q, %v", whole.Choices[0].Text, text.String(), stream.Err())
	}
}

func TestOpenAIModels(t *testing.T) {
	c := openaiClient(t)
	page, err := c.Models.List(t.Context())
	if err != nil || len(page.Data) != 1 || page.Data[0].ID != "tiny" {
		t.Fatalf("%+v, %v", page, err)
	}
	conforms(t, page.Data[0])
	one, err := c.Models.Get(t.Context(), "tiny")
	if err != nil {
		t.Fatal(err)
	}
	conforms(t, one)
}

func TestOpenAIErrors(t *testing.T) {
	for name, tt := range map[string]struct {
		params openai.ChatCompletionNewParams
		opts   []option.RequestOption
		status int
		code   string
		param  string
	}{
		"range": {chatParams("Hi", func(p *openai.ChatCompletionNewParams) { p.Temperature = openai.Float(9) }), nil, 400,
			"invalid_value", "temperature"},
		"context": {chatParams(strings.Repeat("many words ", 9000)), nil, 400, "context_length_exceeded", "messages"},
		"key":     {chatParams("Hi"), []option.RequestOption{option.WithAPIKey("wrong")}, 401, "invalid_api_key", ""},
		"image": {chatParams("Hi", func(p *openai.ChatCompletionNewParams) {
			p.Messages = append(p.Messages,
				openai.UserMessage([]openai.ChatCompletionContentPartUnionParam{
					openai.ImageContentPart(openai.ChatCompletionContentPartImageImageURLParam{URL: "data:"}),
				}))
		}), nil, 400, "unsupported_parameter", "messages[1].content[0].type"},
	} {
		t.Run(name, func(t *testing.T) {
			c := openaiClient(t, tt.opts...)
			_, err := c.Chat.Completions.New(t.Context(), tt.params)
			stream := c.Chat.Completions.NewStreaming(t.Context(), tt.params)
			for stream.Next() {
				t.Errorf("an event before the error: %s", stream.Current().RawJSON())
			}
			for kind, err := range map[string]error{"whole": err, "streamed": stream.Err()} {
				var e *openai.Error
				if !errors.As(err, &e) || e.StatusCode != tt.status || e.Code != tt.code || e.Param != tt.param || e.Message == "" {
					t.Errorf("%s: %v, want %d %s %s", kind, err, tt.status, tt.code, tt.param)
				}
			}
		})
	}
}

func TestOpenAICancel(t *testing.T) {
	c := openaiClient(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream := c.Chat.Completions.NewStreaming(ctx, chatParams("Count for ever"))
	for stream.Next() {
		if len(stream.Current().Choices) > 0 && stream.Current().Choices[0].Delta.Content != "" {
			cancel()
		}
	}
	if !errors.Is(stream.Err(), context.Canceled) {
		t.Errorf("the stream ends with %v", stream.Err())
	}
	// The slot is free again: there are fewer than these requests.
	for range 6 {
		if _, err := c.Chat.Completions.New(t.Context(), chatParams("Hi")); err != nil {
			t.Fatal(err)
		}
	}
}

// cityAnswer is what the schema of the structured output tests allows.
type cityAnswer struct {
	City string `json:"city"`
	Days int    `json:"days"`
}

var citySchema = map[string]any{
	"type": "object", "additionalProperties": false, "required": []string{"city", "days"},
	"properties": map[string]any{"city": map[string]any{"type": "string"}, "days": map[string]any{"type": "integer"}},
}

// structured checks an answer against the schema.
func structured(t *testing.T, text string) {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(text))
	dec.DisallowUnknownFields()
	var got cityAnswer
	if err := dec.Decode(&got); err != nil || got != (cityAnswer{"Bern", 3}) {
		t.Errorf("%q: %+v, %v", text, got, err)
	}
}

func TestChatStructuredOutput(t *testing.T) {
	c := openaiClient(t)
	p := chatParams("Answer in JSON", func(p *openai.ChatCompletionNewParams) {
		type format = openai.ChatCompletionNewParamsResponseFormatUnion
		p.ResponseFormat = format{OfJSONSchema: &shared.ResponseFormatJSONSchemaParam{
			JSONSchema: shared.ResponseFormatJSONSchemaJSONSchemaParam{Name: "answer",
				Strict: openai.Bool(true), Schema: citySchema}}}
	})
	whole, err := c.Chat.Completions.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	structured(t, whole.Choices[0].Message.Content)
	streamed, _ := streamChat(t, c, p)
	structured(t, streamed.Choices[0].Message.Content)
	// The mask shapes text that the model would not write so.
	p.Messages = []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Hi")}
	other, err := c.Chat.Completions.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if text := other.Choices[0].Message.Content; !strings.HasPrefix(text, "{") {
		t.Errorf("the schema does not hold: %q", text)
	}
}
