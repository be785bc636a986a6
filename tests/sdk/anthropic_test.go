package sdk

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"
)

func messageParams(text string, change ...func(*anthropic.MessageNewParams)) anthropic.MessageNewParams {
	p := anthropic.MessageNewParams{Model: "tiny", MaxTokens: 2000,
		Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock(text))}}
	for _, c := range change {
		c(&p)
	}
	return p
}

func messageTools(p *anthropic.MessageNewParams) {
	p.Tools = []anthropic.ToolUnionParam{{OfTool: &anthropic.ToolParam{Name: "weather",
		InputSchema: anthropic.ToolInputSchemaParam{
			Properties: map[string]any{"city": map[string]any{"type": "string"}}}}}}
}

func messageThinking(p *anthropic.MessageNewParams) {
	p.Thinking = anthropic.ThinkingConfigParamOfEnabled(1024)
}

// streamMessage runs a request as a stream and puts it together with the library's accumulator.
func streamMessage(t *testing.T, c anthropic.Client, p anthropic.MessageNewParams) anthropic.Message {
	t.Helper()
	stream := c.Messages.NewStreaming(t.Context(), p)
	defer stream.Close()
	var acc anthropic.Message
	for stream.Next() {
		conforms(t, stream.Current())
		if err := acc.Accumulate(stream.Current()); err != nil {
			t.Errorf("the accumulator refuses %s: %v", stream.Current().RawJSON(), err)
		}
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	return acc
}

// contentOf lists a message's blocks in short.
func contentOf(m *anthropic.Message) string {
	var out []string
	for _, b := range m.Content {
		switch b := b.AsAny().(type) {
		case anthropic.ThinkingBlock:
			out = append(out, "thinking "+b.Thinking)
			if b.Signature == "" {
				out = append(out, "without a signature")
			}
		case anthropic.TextBlock:
			out = append(out, "text "+b.Text)
		case anthropic.ToolUseBlock:
			out = append(out, b.Name+" "+strings.ReplaceAll(string(b.Input), `": "`, `":"`))
		}
	}
	return strings.Join(out, " | ")
}

func TestMessages(t *testing.T) {
	c := anthropicClient(t)
	for name, tt := range map[string]struct {
		params anthropic.MessageNewParams
		stop   anthropic.StopReason
		want   string
	}{
		"text": {messageParams("Hi"), anthropic.StopReasonEndTurn, "text " + greeting},
		"thinking": {messageParams("Think about rain", messageThinking), anthropic.StopReasonEndTurn,
			"thinking First, rain.\nThen more of rain. | text All about rain."},
		"calls": {messageParams("Ask for the weather of Bern and Basel", messageTools), anthropic.StopReasonToolUse,
			`weather {"city":"Bern"} | weather {"city":"Basel"}`},
		"think, say, ask": {messageParams("Think, then ask for the weather", messageTools, messageThinking),
			anthropic.StopReasonToolUse,
			"thinking I need the tool. | text Let me look.\n | weather {\"city\":\"Bern\"}"},
		"max_tokens": {messageParams("Hi", func(p *anthropic.MessageNewParams) { p.MaxTokens = 1 }),
			anthropic.StopReasonMaxTokens, ""},
		"stop sequence": {messageParams("Hi", func(p *anthropic.MessageNewParams) { p.StopSequences = []string{" Zür"} }),
			anthropic.StopReasonStopSequence, "text Hello,"},
	} {
		t.Run(name, func(t *testing.T) {
			whole, err := c.Messages.New(t.Context(), tt.params)
			if err != nil {
				t.Fatal(err)
			}
			conforms(t, whole)
			streamed := streamMessage(t, c, tt.params)
			for kind, got := range map[string]*anthropic.Message{"whole": whole, "streamed": &streamed} {
				if s := contentOf(got); tt.want != "" && s != tt.want {
					t.Errorf("%s: %q, want %q", kind, s, tt.want)
				}
				if got.StopReason != tt.stop || (tt.stop == anthropic.StopReasonStopSequence) != (got.StopSequence == " Zür") {
					t.Errorf("%s: stop reason %q, sequence %q", kind, got.StopReason, got.StopSequence)
				}
				if got.Usage.InputTokens == 0 || got.Usage.OutputTokens == 0 {
					t.Errorf("%s: usage %+v", kind, got.Usage)
				}
			}
		})
	}
}

func TestMessagesToolLoop(t *testing.T) {
	c := anthropicClient(t)
	p := messageParams("Think, then ask for the weather", messageTools, messageThinking)
	first := streamMessage(t, c, p)
	p.Thinking = anthropic.ThinkingConfigParamUnion{}
	p.Messages = append(p.Messages, first.ToParam(),
		anthropic.NewUserMessage(anthropic.NewToolResultBlock(first.Content[2].ID, "fog", false)))
	second, err := c.Messages.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if got := contentOf(second); got != "text The tool says: fog." {
		t.Errorf("answer %q", got)
	}
	count, err := c.Messages.CountTokens(t.Context(),
		anthropic.MessageCountTokensParams{Model: p.Model, Messages: p.Messages,
			Tools: []anthropic.MessageCountTokensToolUnionParam{{OfTool: p.Tools[0].OfTool}}})
	if err != nil {
		t.Fatal(err)
	}
	if u := second.Usage; count.InputTokens != u.InputTokens+u.CacheCreationInputTokens+u.CacheReadInputTokens {
		t.Errorf("%d tokens counted, usage %+v", count.InputTokens, u)
	}
}

func TestAnthropicModels(t *testing.T) {
	c := anthropicClient(t)
	page, err := c.Models.List(t.Context(), anthropic.ModelListParams{Limit: anthropic.Int(1000)})
	if err != nil || len(page.Data) != 1 || page.Data[0].ID != "tiny" {
		t.Fatalf("%+v, %v", page, err)
	}
	one, err := c.Models.Get(t.Context(), "tiny", anthropic.ModelGetParams{})
	if err != nil || one.ID != "tiny" || one.CreatedAt.IsZero() {
		t.Fatalf("%+v, %v", one, err)
	}
}

func TestAnthropicErrors(t *testing.T) {
	for name, tt := range map[string]struct {
		params  anthropic.MessageNewParams
		opts    []option.RequestOption
		status  int
		kind    string
		message string
	}{
		"range": {messageParams("Hi", func(p *anthropic.MessageNewParams) { p.Temperature = anthropic.Float(9) }), nil, 400,
			"invalid_request_error", "temperature"},
		"context": {messageParams(strings.Repeat("many words ", 9000)), nil, 400, "invalid_request_error",
			"prompt is too long: "},
		"key": {messageParams("Hi"), []option.RequestOption{option.WithAPIKey("wrong")}, 401, "authentication_error", ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := anthropicClient(t, tt.opts...)
			_, err := c.Messages.New(t.Context(), tt.params)
			stream := c.Messages.NewStreaming(t.Context(), tt.params)
			for stream.Next() {
				t.Errorf("an event before the error: %s", stream.Current().RawJSON())
			}
			for kind, err := range map[string]error{"whole": err, "streamed": stream.Err()} {
				var e *anthropic.Error
				if !errors.As(err, &e) || e.StatusCode != tt.status || string(e.Type()) != tt.kind ||
					!strings.Contains(e.RawJSON(), tt.message) || e.RequestID == "" {
					t.Errorf("%s: %v, want %d %s %q and a request id", kind, err, tt.status, tt.kind, tt.message)
				}
			}
		})
	}
}

func TestAnthropicCancel(t *testing.T) {
	c := anthropicClient(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream := c.Messages.NewStreaming(ctx, messageParams("Count for ever"))
	for stream.Next() {
		if stream.Current().Type == "content_block_delta" {
			cancel()
		}
	}
	if !errors.Is(stream.Err(), context.Canceled) {
		t.Errorf("the stream ends with %v", stream.Err())
	}
}

func TestMessagesStructuredOutput(t *testing.T) {
	c := anthropicClient(t)
	p := messageParams("Answer in JSON", func(p *anthropic.MessageNewParams) {
		p.OutputConfig = anthropic.OutputConfigParam{Format: anthropic.JSONOutputFormatParam{Schema: citySchema}}
	})
	whole, err := c.Messages.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	structured(t, whole.Content[0].Text)
	streamed := streamMessage(t, c, p)
	structured(t, streamed.Content[0].Text)
}
