package grpcapi_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
)

func TestRPCGenerate(t *testing.T) {
	r := rig.Start(t, nil)
	r.Target(gatewaytest.WorkerOptions{Decode: r.Reply("because\n</think>\n\nYes, it is.", 3)})
	api := r.RPC()
	g, err := rig.RunRPC(t.Context(), api,
		&tandemv1.GenerateRequest{Input: rig.ChatInput("Is it?", true), Stop: []string{" is"}, TopLogprobs: proto.Int32(1)})
	if err != nil {
		t.Fatal(err)
	}
	if g.Reasoning != "because" || g.Text != "Yes, it" || g.Last.GetStopSequence() != " is" ||
		g.Last.GetFinishReason() != tandemv1.FinishReason_FINISH_REASON_STOP {
		t.Errorf("got %+v", g)
	}
	if int64(g.Tokens) != g.Last.GetUsage().GetCompletionTokens() || g.Last.GetUsage().GetReasoningTokens() == 0 {
		t.Errorf("%d tokens, usage %v", g.Tokens, g.Last.GetUsage())
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
	r := rig.Start(t, func(c *app.Config) { c.StrictModel = true })
	api := r.RPC()
	if _, err := rig.RunRPC(t.Context(), api,
		&tandemv1.GenerateRequest{Input: rig.ChatInput("x", false)}); rpcerr.Code(err) != codes.Unavailable ||
		rpcerr.Reason(err) != "NO_WORKER" {
		t.Errorf("without a worker: %v", err)
	}
	r.Target(gatewaytest.WorkerOptions{MaxContext: 64, Decode: r.Reply("x", 1)})
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
		{"temperature", &tandemv1.GenerateRequest{Input: rig.ChatInput("x", false),
			Sampling: &tandemv1.Sampling{Temperature: proto.Float64(3)}}, codes.InvalidArgument, "INVALID_ARGUMENT",
			"sampling.temperature"},
		{"token", &tandemv1.GenerateRequest{
			Input: &tandemv1.GenerateRequest_Tokens{Tokens: &tandemv1.TokenIds{Ids: []int32{-1}}},
		}, codes.InvalidArgument, "INVALID_ARGUMENT", "tokens.ids"},
		{"too long", &tandemv1.GenerateRequest{Input: rig.ChatInput(strings.Repeat("long ", 200), false)},
			codes.InvalidArgument,
			"CONTEXT_LENGTH", "input"},
		{"model", &tandemv1.GenerateRequest{Model: "gpt", Input: rig.ChatInput("x", false)}, codes.NotFound, "UNKNOWN_MODEL",
			""},
		{"session", &tandemv1.GenerateRequest{Input: rig.ChatInput("x", false), SessionId: strings.Repeat("s", 257)},
			codes.InvalidArgument, "INVALID_ARGUMENT", "session_id"},
		{"compression", &tandemv1.GenerateRequest{Input: rig.ChatInput("x", false),
			Compression: &tandemv1.Compression{Mode: "some"}}, codes.InvalidArgument, "INVALID_ARGUMENT", "compression.mode"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := rig.RunRPC(t.Context(), api, tt.req)
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
	r := rig.Start(t, func(c *app.Config) { c.APIKey = append(c.APIKey, "secret") })
	api := r.RPC()
	if _, err := api.ListModels(t.Context(), &tandemv1.ListModelsRequest{}); rpcerr.Code(err) != codes.Unauthenticated {
		t.Errorf("without a key: %v", err)
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer secret")
	if _, err := api.ListModels(ctx, &tandemv1.ListModelsRequest{}); err != nil {
		t.Errorf("with a key: %v", err)
	}
	// Health checks need no key. Without a target only the registry serves.
	for addr, want := range map[string]grpc_health_v1.HealthCheckResponse_ServingStatus{
		r.App.GRPCAddr().String():     grpc_health_v1.HealthCheckResponse_NOT_SERVING,
		r.App.RegistryAddr().String(): grpc_health_v1.HealthCheckResponse_SERVING,
	} {
		h, err := grpc_health_v1.NewHealthClient(r.Conn(addr)).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
		if err != nil || h.GetStatus() != want {
			t.Errorf("health at %s: %v %v", addr, h, err)
		}
	}
}

// TestRPCRequestID: an id of the right form is the request's, as over HTTP; any other is replaced.
func TestRPCRequestID(t *testing.T) {
	r := rig.Start(t, nil)
	ids := make(chan string, 1)
	w := r.Reply("ok", 1)
	r.Target(gatewaytest.WorkerOptions{Decode: func(req *tandemv1.DecodeRequest,
		s tandemv1.TargetService_DecodeServer) error {
		ids <- req.GetRequestId()
		return w(req, s)
	}})
	for id, kept := range map[string]bool{"mine-1": true, "a b": false, "slash/and!": false,
		strings.Repeat("x", 129): false} {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "x-request-id", id)
		if _, err := rig.RunRPC(ctx, r.RPC(), &tandemv1.GenerateRequest{Input: rig.ChatInput("x", false)}); err != nil {
			t.Fatal(err)
		}
		if got := rig.Receive(t, ids, "request"); (got == id) != kept || !kept && !strings.HasPrefix(got, "req-") {
			t.Errorf("%q: the worker was given %q", id, got)
		}
	}
}

func TestRPCCancel(t *testing.T) {
	r := rig.Start(t, nil)
	b := gatewaytest.NewBlock()
	r.Target(gatewaytest.WorkerOptions{Decode: b.Script(r.Tok, "one two")})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := rig.RunRPC(ctx, r.RPC(), &tandemv1.GenerateRequest{Input: rig.ChatInput("x", false)})
		done <- err
	}()
	rig.Receive(t, b.Admitted, "admission")
	cancel()
	rig.Receive(t, b.Cancelled, "cancel at the worker")
	if err := rig.Receive(t, done, "end"); rpcerr.Code(err) != codes.Canceled {
		t.Error(err)
	}
}

// TestRPCTools: calls, forced calls and formats by gRPC are those of HTTP.
func TestRPCTools(t *testing.T) {
	r := rig.Start(t, nil)
	w := r.Target(gatewaytest.WorkerOptions{Decode: r.Reply("Look:\n<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>\nDone.", 3)})
	api := r.RPC()
	input := rig.ChatInput("Call it.", false)
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
	if prompt := r.Tok.Decode(req.GetPromptTokens(), true); !strings.Contains(prompt, "<parameter=n>\n1\n</parameter>") ||
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
		in := &tandemv1.GenerateRequest{Input: rig.ChatInput("Call it.", false)}
		change(in)
		_, err := rig.RunRPC(t.Context(), api, in)
		if v := rpcerr.From(err).Violations(); rpcerr.Code(err) != codes.InvalidArgument ||
			len(v) == 0 || v[0].Field != name {
			t.Errorf("%s: %v, %v", name, err, v)
		}
	}
}

// TestRPCCutCall: the parts of a call that the token limit cuts off come as far as it came, without an end.
func TestRPCCutCall(t *testing.T) {
	r := rig.Start(t, nil)
	const text = "<tool_call>\n<function=f>\n<parameter=list>\n[\"some long text that goes on"
	r.Target(gatewaytest.WorkerOptions{Decode: gatewaytest.Script{Tokens: r.Encode(text + " and on"), Step: 3}.Run})
	in := rig.ChatInput("x", false)
	in.Chat.Tools = []*tandemv1.Tool{{Name: "f", ParametersJson: `{"properties":{"list":{"type":"array"}}}`}}
	stream, err := r.RPC().Generate(t.Context(),
		&tandemv1.GenerateRequest{Input: in, MaxTokens: int32(len(r.Encode(text)))})
	if err != nil {
		t.Fatal(err)
	}
	args, reason := "", tandemv1.FinishReason_FINISH_REASON_UNSPECIFIED
	for {
		msg, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range msg.GetToolCalls() {
			args += c.GetArguments()
			if c.GetDone() {
				t.Errorf("the call is done with %s", args)
			}
		}
		reason = max(reason, msg.GetFinishReason())
	}
	if args != `{"list": ["some long text that goes on` || reason != tandemv1.FinishReason_FINISH_REASON_LENGTH {
		t.Errorf("arguments %s, %v", args, reason)
	}
}
