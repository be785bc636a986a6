package app

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
)

func (r *rig) rpc() tandemv1.InferenceServiceClient {
	r.t.Helper()
	return tandemv1.NewInferenceServiceClient(r.conn(r.app.GRPCAddr().String()))
}

func (r *rig) conn(addr string) *grpc.ClientConn {
	r.t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { conn.Close() })
	return conn
}

type generated struct {
	text, reasoning string
	tokens          int
	last            *tandemv1.GenerateResponse
}

func runRPC(ctx context.Context, api tandemv1.InferenceServiceClient,
	req *tandemv1.GenerateRequest) (g generated, err error) {
	stream, err := api.Generate(ctx, req)
	if err != nil {
		return g, err
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return g, nil
		}
		if err != nil {
			return g, err
		}
		g.text, g.reasoning, g.tokens, g.last = g.text+m.GetText(), g.reasoning+m.GetReasoning(),
			g.tokens+len(m.GetTokens()), m
	}
}

func chatInput(text string, thinking bool) *tandemv1.GenerateRequest_Chat {
	return &tandemv1.GenerateRequest_Chat{Chat: &tandemv1.Chat{Messages: []*tandemv1.Message{{Role: "user",
		Content: text}}, EnableThinking: proto.Bool(thinking)}}
}

func TestRPCGenerate(t *testing.T) {
	r := start(t, nil)
	r.target(gatewaytest.WorkerOptions{Decode: r.reply("because\n</think>\n\nYes, it is.", 3)})
	api := r.rpc()
	g, err := runRPC(t.Context(), api,
		&tandemv1.GenerateRequest{Input: chatInput("Is it?", true), Stop: []string{" is"}, TopLogprobs: proto.Int32(1)})
	if err != nil {
		t.Fatal(err)
	}
	if g.reasoning != "because" || g.text != "Yes, it" || g.last.GetStopSequence() != " is" ||
		g.last.GetFinishReason() != tandemv1.FinishReason_FINISH_REASON_STOP {
		t.Errorf("got %+v", g)
	}
	if int64(g.tokens) != g.last.GetUsage().GetCompletionTokens() || g.last.GetUsage().GetReasoningTokens() == 0 {
		t.Errorf("%d tokens, usage %v", g.tokens, g.last.GetUsage())
	}
	ids, err := api.Tokenize(t.Context(), &tandemv1.TokenizeRequest{Input: &tandemv1.TokenizeRequest_Text{Text: "Hello"}})
	if err != nil {
		t.Fatal(err)
	}
	text, err := api.Detokenize(t.Context(), &tandemv1.DetokenizeRequest{Ids: ids.GetIds()})
	if err != nil || text.GetText() != "Hello" {
		t.Errorf("round trip: %v %v", text, err)
	}
	if m, err := api.ListModels(t.Context(), &tandemv1.ListModelsRequest{}); err != nil ||
		m.GetModels()[0].GetId() != "tiny" {
		t.Errorf("models: %v %v", m, err)
	}
	if c, err := api.GetCluster(t.Context(), &tandemv1.GetClusterRequest{}); err != nil ||
		c.GetWorkers()[0].GetState() != "ready" {
		t.Errorf("cluster: %v %v", c, err)
	}
}

func TestRPCErrors(t *testing.T) {
	r := start(t, func(c *Config) { c.StrictModel = true })
	api := r.rpc()
	if _, err := runRPC(t.Context(), api,
		&tandemv1.GenerateRequest{Input: chatInput("x", false)}); rpcerr.Code(err) != codes.Unavailable ||
		rpcerr.Reason(err) != "NO_WORKER" {
		t.Errorf("without a worker: %v", err)
	}
	r.target(gatewaytest.WorkerOptions{MaxContext: 64, Decode: r.reply("x", 1)})
	for _, tt := range []struct {
		name   string
		req    *tandemv1.GenerateRequest
		code   codes.Code
		reason string
		field  string
	}{
		{"no input", &tandemv1.GenerateRequest{}, codes.InvalidArgument, "INVALID_ARGUMENT", "input"},
		{"no messages", &tandemv1.GenerateRequest{Input: &tandemv1.GenerateRequest_Chat{Chat: &tandemv1.Chat{}}},
			codes.InvalidArgument, "INVALID_ARGUMENT", "chat.messages"},
		{"temperature", &tandemv1.GenerateRequest{Input: chatInput("x", false),
			Sampling: &tandemv1.Sampling{Temperature: proto.Float64(3)}}, codes.InvalidArgument, "INVALID_ARGUMENT",
			"sampling.temperature"},
		{"token", &tandemv1.GenerateRequest{
			Input: &tandemv1.GenerateRequest_Tokens{Tokens: &tandemv1.TokenIds{Ids: []int32{-1}}},
		}, codes.InvalidArgument, "INVALID_ARGUMENT", "tokens.ids"},
		{"too long", &tandemv1.GenerateRequest{Input: chatInput(strings.Repeat("long ", 200), false)}, codes.InvalidArgument,
			"CONTEXT_LENGTH", "input"},
		{"model", &tandemv1.GenerateRequest{Model: "gpt", Input: chatInput("x", false)}, codes.NotFound, "UNKNOWN_MODEL", ""},
		{"session", &tandemv1.GenerateRequest{Input: chatInput("x", false), SessionId: strings.Repeat("s", 257)},
			codes.InvalidArgument, "INVALID_ARGUMENT", "session_id"},
		{"compression", &tandemv1.GenerateRequest{Input: chatInput("x", false),
			Compression: &tandemv1.Compression{Mode: "some"}}, codes.InvalidArgument, "INVALID_ARGUMENT", "compression.mode"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := runRPC(t.Context(), api, tt.req)
			e := rpcerr.From(err)
			if e == nil || e.Code() != tt.code || e.Reason() != tt.reason {
				t.Fatalf("error %v, want %v %s", err, tt.code, tt.reason)
			}
			if tt.field != "" && (len(e.Violations()) == 0 || e.Violations()[0].Field != tt.field) {
				t.Errorf("violations %v, want %s", e.Violations(), tt.field)
			}
		})
	}
}

func TestRPCKeysAndHealth(t *testing.T) {
	r := start(t, func(c *Config) { c.APIKey = append(c.APIKey, "secret") })
	api := r.rpc()
	if _, err := api.ListModels(t.Context(), &tandemv1.ListModelsRequest{}); rpcerr.Code(err) != codes.Unauthenticated {
		t.Errorf("without a key: %v", err)
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer secret")
	if _, err := api.ListModels(ctx, &tandemv1.ListModelsRequest{}); err != nil {
		t.Errorf("with a key: %v", err)
	}
	// Health checks need no key. Without a target only the registry serves.
	for addr, want := range map[string]grpc_health_v1.HealthCheckResponse_ServingStatus{
		r.app.GRPCAddr().String():     grpc_health_v1.HealthCheckResponse_NOT_SERVING,
		r.app.RegistryAddr().String(): grpc_health_v1.HealthCheckResponse_SERVING,
	} {
		h, err := grpc_health_v1.NewHealthClient(r.conn(addr)).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
		if err != nil || h.GetStatus() != want {
			t.Errorf("health at %s: %v %v", addr, h, err)
		}
	}
}

// TestRPCRequestID: an id of the right form is the request's, as over HTTP; any other is replaced.
func TestRPCRequestID(t *testing.T) {
	r := start(t, nil)
	ids := make(chan string, 1)
	w := r.reply("ok", 1)
	r.target(gatewaytest.WorkerOptions{Decode: func(req *tandemv1.DecodeRequest,
		s tandemv1.TargetService_DecodeServer) error {
		ids <- req.GetRequestId()
		return w(req, s)
	}})
	for id, kept := range map[string]bool{"mine-1": true, "a b": false, "slash/and!": false,
		strings.Repeat("x", 129): false} {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "x-request-id", id)
		if _, err := runRPC(ctx, r.rpc(), &tandemv1.GenerateRequest{Input: chatInput("x", false)}); err != nil {
			t.Fatal(err)
		}
		if got := receive(t, ids, "request"); (got == id) != kept || !kept && !strings.HasPrefix(got, "req-") {
			t.Errorf("%q: the worker was given %q", id, got)
		}
	}
}

func TestRPCCancel(t *testing.T) {
	r := start(t, nil)
	b := gatewaytest.NewBlock()
	r.target(gatewaytest.WorkerOptions{Decode: b.Script(r.tok, "one two")})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := runRPC(ctx, r.rpc(), &tandemv1.GenerateRequest{Input: chatInput("x", false)})
		done <- err
	}()
	receive(t, b.Admitted, "admission")
	cancel()
	receive(t, b.Cancelled, "cancel at the worker")
	if err := receive(t, done, "end"); rpcerr.Code(err) != codes.Canceled {
		t.Error(err)
	}
}

// TestRPCTools: calls, forced calls and formats by gRPC are those of HTTP.
func TestRPCTools(t *testing.T) {
	r := start(t, nil)
	w := r.target(gatewaytest.WorkerOptions{Decode: r.reply("Look:\n<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>\nDone.", 3)})
	api := r.rpc()
	input := chatInput("Call it.", false)
	input.Chat.Tools = []*tandemv1.Tool{{Name: "f",
		ParametersJson: `{"type":"object","properties":{"a":{"type":"string"},"n":{"type":"integer"}}}`}}
	input.Chat.ToolChoice = &tandemv1.ToolChoice{Mode: tandemv1.ToolMode_TOOL_MODE_REQUIRED}
	input.Chat.Messages = append(input.Chat.Messages,
		&tandemv1.Message{Role: "assistant", ToolCalls: []*tandemv1.ToolCall{{Id: "c", Name: "f", ArgumentsJson: `{"n":1}`}}},
		&tandemv1.Message{Role: "tool", ToolCallId: "c", Content: "one"})
	stream, err := api.Generate(t.Context(), &tandemv1.GenerateRequest{Input: input})
	if err != nil {
		t.Fatal(err)
	}
	var story strings.Builder
	var last *tandemv1.GenerateResponse
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		story.WriteString(m.GetText())
		for _, c := range m.GetToolCalls() {
			if c.GetName() != "" {
				story.WriteString("[" + c.GetName())
			}
			story.WriteString(c.GetArguments())
			if c.GetDone() {
				story.WriteString("]")
			}
		}
		last = m
	}
	if got, want := story.String(), "Look:\n[f{\"a\": \"x\", \"n\": 3}]\nDone."; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if last.GetFinishReason() != tandemv1.FinishReason_FINISH_REASON_TOOL_CALLS || last.GetToolParseError() != "" {
		t.Errorf("last message %v", last)
	}
	req := w.Requests()[0]
	if prompt := r.tok.Decode(req.GetPromptTokens(), true); !strings.Contains(prompt, "<parameter=n>\n1\n</parameter>") ||
		!strings.Contains(prompt, "<tool_response>\none") ||
		!strings.Contains(req.GetGuide().GetGrammar(), "function=f") {
		t.Errorf("the worker was asked %v, prompt %q", req.GetGuide(), prompt)
	}
	for name, change := range map[string]func(*tandemv1.GenerateRequest){
		"chat.tool_choice.name": func(in *tandemv1.GenerateRequest) {
			in.GetChat().ToolChoice = &tandemv1.ToolChoice{Mode: tandemv1.ToolMode_TOOL_MODE_NAMED, Name: "g"}
		},
		"chat.tools[0]": func(in *tandemv1.GenerateRequest) { in.GetChat().Tools = []*tandemv1.Tool{{Name: "no name"}} },
		"format.grammar": func(in *tandemv1.GenerateRequest) {
			in.GetChat().Tools, in.GetChat().ToolChoice = nil, nil
			in.Format = &tandemv1.Format{Kind: &tandemv1.Format_Grammar{Grammar: "root ::= ("}}
		},
	} {
		in := &tandemv1.GenerateRequest{Input: chatInput("Call it.", false)}
		change(in)
		_, err := runRPC(t.Context(), api, in)
		if v := rpcerr.From(err).Violations(); rpcerr.Code(err) != codes.InvalidArgument ||
			len(v) == 0 || v[0].Field != name {
			t.Errorf("%s: %v, %v", name, err, v)
		}
	}
}
