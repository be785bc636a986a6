package main

import (
	"net"
	"strings"
	"testing"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"google.golang.org/grpc"
)

type fake struct {
	tandemv1.UnimplementedInferenceServiceServer
}

func (fake) Generate(r *tandemv1.GenerateRequest, s grpc.ServerStreamingServer[tandemv1.GenerateResponse]) error {
	if err := s.Send(&tandemv1.GenerateResponse{Text: "You asked: "}); err != nil {
		return err
	}
	return s.Send(&tandemv1.GenerateResponse{
		Text:         r.GetChat().GetMessages()[0].GetContent(),
		FinishReason: tandemv1.FinishReason_FINISH_REASON_STOP,
		Usage:        &tandemv1.Usage{CompletionTokens: 4},
		Timings:      &tandemv1.Timings{TotalMs: 20, AcceptedTokens: 3, DraftedTokens: 5},
	})
}

func TestAsk(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	tandemv1.RegisterInferenceServiceServer(server, fake{})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	var out strings.Builder
	if err := ask(t.Context(), &out, listener.Addr().String(), "Why?"); err != nil {
		t.Fatal(err)
	}
	if want := "You asked: Why?\n(4 tokens in 20 ms, 3 of 5 drafts accepted)\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}
