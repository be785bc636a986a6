package faults

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/tandem-inference/tandem/tests/faults/history"
)

// APIs whose streams are recorded.
const (
	chatAPI        = "/v1/chat/completions"
	completionsAPI = "/v1/completions"
	responsesAPI   = "/v1/responses"
)

// ask is a request; its answer is the same however it is decoded.
type ask struct {
	name, path string
	body       map[string]any
	// compresses: the scorer shortens the prompt first. Without a scorer the answer is the one to the whole prompt.
	compresses bool
}

// Variants of answers to an ask that compresses.
const (
	compressed = "compressed"
	whole      = "whole"
)

// modes are the ways to decode; plain is that of references.
var (
	plain = map[string]any{"mode": "off"}
	modes = []map[string]any{plain, {"mode": "chain"}, {"mode": "tree", "budget": 22}, {"mode": "auto"}}
)

// endOfTurn is the id of <|im_end|> in the demonstration models: most answers here do not end by themselves.
const endOfTurn = "8162"

// asks are the requests of a campaign: all APIs, greedy and sampled.
func asks(tokens int) (all []ask) {
	for i := range 1 {
		text := fmt.Sprintf("The access code of lilac is %d.\n", 55000+i) +
			strings.Repeat("The sky over the harbour was grey, and nothing of note was written down that day. ", 60)
		all = append(all, ask{name: fmt.Sprintf("compressed %d", i), path: chatAPI, compresses: true, body: map[string]any{
			"messages": []map[string]any{{"role": "user", "content": text + "\nWhat is the access code of lilac?"}},
			"stream":   true, "max_tokens": tokens / 4, "temperature": 0, "enable_thinking": false, "logprobs": true,
			"logit_bias":     map[string]any{endOfTurn: -100},
			"stream_options": map[string]any{"include_usage": true},
			"pflash":         map[string]any{"mode": "always", "keep_ratio": 0.2}}})
	}
	for i, question := range []string{"What is DDTree?", "Write a Go function that reverses a slice of strings.",
		"How do workers join the gateway?"} {
		for _, sampled := range []bool{false, true} {
			add := func(path string, more map[string]any) {
				body := map[string]any{"temperature": 0, "stream": true}
				name := strings.TrimPrefix(path, "/v1/") + fmt.Sprintf(" %d greedy", i)
				if sampled {
					name = strings.TrimPrefix(path, "/v1/") + fmt.Sprintf(" %d sampled", i)
					body["temperature"], body["top_p"], body["seed"] = 0.8, 0.95, 100+i
				}
				for key, value := range more {
					body[key] = value
				}
				all = append(all, ask{name: name, path: path, body: body})
			}
			usage := map[string]any{"include_usage": true}
			long := map[string]any{endOfTurn: -100}
			add(chatAPI, map[string]any{"messages": []map[string]any{{"role": "user", "content": question}},
				"max_tokens": tokens, "enable_thinking": false, "logprobs": true, "logit_bias": long, "stream_options": usage})
			add(completionsAPI, map[string]any{"prompt": "func main() {\n\t// " + question, "max_tokens": tokens,
				"logprobs": 0, "logit_bias": long, "stream_options": usage})
			add(responsesAPI, map[string]any{"input": question, "max_output_tokens": tokens, "enable_thinking": false,
				"logit_bias": long, "include": []string{"message.output_text.logprobs"}})
		}
	}
	return all
}

// with returns the body of an ask with further members.
func (a ask) with(more map[string]any) ([]byte, error) {
	body := map[string]any{"model": "campaign"}
	for _, m := range []map[string]any{a.body, more} {
		for key, value := range m {
			body[key] = value
		}
	}
	return json.Marshal(body)
}

// browser is a client of a cluster whose gateways may fail.
type browser struct {
	http  *http.Client
	bases []string
	notes *history.Recorder
}

// stream is one request of a browser.
type stream struct {
	*browser
	ask     ask
	id      string
	gateway int
	// response is the id that the Responses API gave it, sequence the number of its last event, from 1.
	response string
	sequence int
	end      history.Record
	reader   events
}

const (
	// silence is how long a client waits for an event or the start of an answer before it gives up.
	silence = 2 * time.Minute
	// resumeTime is how long a client tries to continue a response at any gateway.
	resumeTime = 20 * time.Second
	// retryPause is the pause between two tries.
	retryPause = 100 * time.Millisecond
)

// run asks and notes everything until the stream has ended; it returns its end.
func (b *browser) run(ctx context.Context, id string, a ask, mode map[string]any, gateway int) history.Record {
	s := &stream{browser: b, ask: a, id: id, gateway: gateway}
	name, _ := mode["mode"].(string)
	b.notes.Add(history.Record{Kind: history.Request, Stream: id, Ask: a.name, Mode: name, Gateway: gateway})
	err := s.post(ctx, mode)
	var refused *refusal
	if err != nil && s.response != "" && !errors.As(err, &refused) { // a response that failed is over
		err = s.resume(ctx, err)
	}
	s.end.Kind, s.end.Stream, s.end.Gateway = history.End, id, s.gateway
	if err != nil {
		s.end.Finish, s.end.Error = "", fmt.Sprintf("%.300s", err)
	}
	b.notes.Add(s.end)
	return s.end
}

// post sends the request and reads its stream.
func (s *stream) post(ctx context.Context, mode map[string]any) error {
	body, err := s.ask.with(map[string]any{"speculation": mode})
	if err != nil {
		return err
	}
	return s.exchange(ctx, http.MethodPost, s.ask.path, body)
}

// resume continues a response at the gateways in turn.
func (s *stream) resume(ctx context.Context, err error) error {
	for until := time.Now().Add(resumeTime); err != nil && time.Now().Before(until) && ctx.Err() == nil; {
		time.Sleep(retryPause)
		s.gateway = (s.gateway + 1) % len(s.bases)
		path := fmt.Sprintf("%s/%s?stream=true&starting_after=%d", responsesAPI, s.response, s.sequence-1)
		s.notes.Add(history.Record{Kind: history.Resumed, Stream: s.id, Gateway: s.gateway})
		err = s.exchange(ctx, http.MethodGet, path, nil)
		var refused *refusal
		if errors.As(err, &refused) && (refused.status == http.StatusOK || // it failed
			refused.status == http.StatusNotFound && len(s.bases) == 1) { // the only gateway has forgotten it
			return err
		}
	}
	return err
}

// refusal is an answer other than 200, or an error event of a stream.
type refusal struct {
	status int
	text   string
}

func (r *refusal) Error() string { return fmt.Sprintf("status %d: %s", r.status, r.text) }

// exchange sends one HTTP request and reads events from its answer. Silence ends it.
func (s *stream) exchange(ctx context.Context, method, path string, body []byte) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	quiet := time.AfterFunc(silence, func() { cancel(fmt.Errorf("nothing came for %v", silence)) })
	defer quiet.Stop()
	request, err := http.NewRequestWithContext(ctx, method, s.bases[s.gateway]+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Authorization", "Bearer "+apiKey)
	response, err := s.http.Do(request)
	if err != nil {
		return cmpCause(ctx, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 1024))
		return &refusal{response.StatusCode, string(text)}
	}
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data:")
		if !ok {
			continue
		}
		quiet.Reset(silence)
		over, err := s.event([]byte(strings.TrimSpace(data)))
		if err != nil || over {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return cmpCause(ctx, err)
	}
	return io.ErrUnexpectedEOF
}

// cmpCause returns why a context was cancelled, if it was, else the error.
func cmpCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// event notes an event; over says that it was the last one.
func (s *stream) event(data []byte) (over bool, err error) {
	note, over, err := s.reader.read(s.ask.path, data)
	if err != nil {
		return false, err
	}
	if s.ask.path == responsesAPI {
		if s.reader.response != "" {
			s.response = s.reader.response
		}
		s.sequence = note.Sequence
	}
	if over {
		s.end = s.reader.end()
		if s.ask.compresses {
			s.end.Variant = s.reader.variant
		}
		s.end.Sequence = note.Sequence
		return true, nil
	}
	note.Kind, note.Stream = history.Tokens, s.id
	s.notes.Add(note)
	return false, nil
}

// events reads the events of a stream of any API.
type events struct {
	response, finish, variant, contract string
	count                               int
}

// end is what the events said of the end.
func (e *events) end() history.Record {
	return history.Record{Finish: e.finish, Count: e.count, Contract: e.contract}
}

type usage struct {
	CompletionTokens int `json:"completion_tokens"`
	OutputTokens     int `json:"output_tokens"`
	Contract         string
	PFlash           struct{ Applied bool }
}

// entry is the log-probability of a token.
type entry struct {
	Token   string
	Bytes   []int
	Logprob json.Number
}

// read takes an event. The last one of a stream has no note.
func (e *events) read(path string, data []byte) (note history.Record, over bool, err error) {
	if string(data) == "[DONE]" {
		return note, true, nil
	}
	var event struct {
		Type           string
		SequenceNumber *int `json:"sequence_number"`
		Error          json.RawMessage
		Delta          json.RawMessage
		Logprobs       []entry
		Response       struct {
			ID, Status string
			Usage      *usage
		}
		Usage   *usage
		Choices []struct {
			Text         string
			FinishReason string `json:"finish_reason"`
			Delta        struct{ Content string }
			Logprobs     *struct {
				Content       []entry
				Tokens        []string
				TokenLogprobs []json.Number `json:"token_logprobs"`
			}
		}
	}
	if err := json.Unmarshal(data, &event); err != nil {
		return note, false, fmt.Errorf("event %.200q: %w", data, err)
	}
	if len(event.Error) > 0 && string(event.Error) != "null" || event.Type == "error" || event.Type == "response.failed" {
		return note, false, &refusal{http.StatusOK, string(data)}
	}
	if event.SequenceNumber != nil {
		note.Sequence = *event.SequenceNumber + 1
	}
	for _, u := range []*usage{event.Usage, event.Response.Usage} {
		if u != nil {
			e.count, e.contract, e.variant = u.CompletionTokens+u.OutputTokens, u.Contract, whole
			if u.PFlash.Applied {
				e.variant = compressed
			}
		}
	}
	if path == responsesAPI {
		if event.Response.ID != "" {
			e.response = event.Response.ID
		}
		switch event.Type {
		case "response.output_text.delta":
			var text string
			if err := json.Unmarshal(event.Delta, &text); err != nil {
				return note, false, fmt.Errorf("event %.200q: %w", data, err)
			}
			note.Tokens = spelled(event.Logprobs, text)
		case "response.completed", "response.incomplete":
			e.finish = event.Response.Status
			return note, true, nil
		}
		return note, false, nil
	}
	for _, c := range event.Choices {
		if c.FinishReason != "" {
			e.finish = c.FinishReason
		}
		switch {
		case c.Logprobs == nil:
			note.Tokens = append(note.Tokens, spelled(nil, c.Text+c.Delta.Content)...)
		case path == completionsAPI:
			for i, token := range c.Logprobs.Tokens {
				t := history.Token{Text: token}
				if i < len(c.Logprobs.TokenLogprobs) {
					t.Logprob = c.Logprobs.TokenLogprobs[i].String()
				}
				note.Tokens = append(note.Tokens, t)
			}
		default:
			note.Tokens = append(note.Tokens, spelled(c.Logprobs.Content, c.Delta.Content)...)
		}
	}
	return note, false, nil
}

// spelled are tokens as their bytes and log-probabilities; text that comes without any is one token.
func spelled(entries []entry, text string) (out []history.Token) {
	for _, e := range entries {
		token := history.Token{Text: e.Token, Logprob: e.Logprob.String()}
		if raw := make([]byte, len(e.Bytes)); len(raw) > 0 {
			for i, b := range e.Bytes {
				raw[i] = byte(b)
			}
			if string(raw) != e.Token {
				token.Text = fmt.Sprintf("%q", raw)
			}
		}
		out = append(out, token)
	}
	if len(entries) == 0 && text != "" {
		out = append(out, history.Token{Text: text})
	}
	return out
}

// references asks everything once of a cluster that nothing disturbs, cold and without speculation.
func (b *browser) references(ctx context.Context, all []ask) error {
	cold := map[string]any{"speculation": plain, "cache_prompt": false}
	for _, a := range all {
		bodies := map[string]map[string]any{"": cold}
		if a.compresses {
			bodies = map[string]map[string]any{compressed: cold, whole: {"speculation": plain, "cache_prompt": false,
				"pflash": map[string]any{"mode": "off"}}}
		}
		for variant, more := range bodies {
			private := history.NewRecorder(nil)
			s := &stream{browser: &browser{b.http, b.bases, private}, ask: a}
			body, err := a.with(more)
			if err != nil {
				return err
			}
			if err := s.exchange(ctx, http.MethodPost, a.path, body); err != nil {
				return fmt.Errorf("reference of %s: %w", a.name, err)
			}
			if s.end.Variant != variant {
				return fmt.Errorf("reference of %s: the prompt is %s, want %s", a.name, s.end.Variant, variant)
			}
			r := s.end
			r.Kind, r.Ask, r.Sequence = history.Reference, a.name, 0
			records, _ := private.Records()
			for _, one := range records {
				r.Tokens = append(r.Tokens, one.Tokens...)
			}
			if len(r.Tokens) == 0 || r.Finish == "" {
				return fmt.Errorf("reference of %s: %d tokens, finish reason %q", a.name, len(r.Tokens), r.Finish)
			}
			b.notes.Add(r)
		}
	}
	return nil
}

// underLoad takes the references, streams answers from the gateways at bases while during runs, and returns what was
// recorded and how long it took.
func (c *Config) underLoad(ctx context.Context, bases []string, during func(notes *history.Recorder) error) (
	records []history.Record, took time.Duration, err error,
) {
	notes := history.NewRecorder(c.History)
	b := &browser{bases: bases, notes: notes, http: &http.Client{Transport: &http.Transport{
		MaxIdleConnsPerHost: c.Clients, ResponseHeaderTimeout: silence}}}
	defer b.http.CloseIdleConnections()
	all := asks(c.Tokens)
	if c.Asks > 0 {
		all = all[:min(len(all), c.Asks)]
	}
	if err := b.references(ctx, all); err != nil {
		return nil, 0, err
	}
	start := time.Now()
	traffic, end := context.WithCancel(ctx)
	defer end()
	var group sync.WaitGroup
	for n := range c.Clients {
		group.Go(func() { b.traffic(ctx, traffic, n, all, rand.New(rand.NewPCG(c.Seed, uint64(n+1)))) })
	}
	err = during(notes)
	end()
	group.Wait()
	took = time.Since(start)
	if err != nil {
		return nil, took, err
	}
	if records, err = notes.Records(); err != nil {
		err = fmt.Errorf("the history: %w", err)
	}
	return records, took, err
}

// traffic asks one request after the other until until ends; streams that were begun end first.
func (b *browser) traffic(ctx, until context.Context, n int, all []ask, rng *rand.Rand) {
	for i := 0; until.Err() == nil; i++ {
		a, mode, gateway := all[rng.IntN(len(all))], modes[rng.IntN(len(modes))], rng.IntN(len(b.bases))
		if end := b.run(ctx, fmt.Sprintf("c%d-%d", n, i), a, mode, gateway); end.Error != "" {
			time.Sleep(retryPause)
		}
	}
}
