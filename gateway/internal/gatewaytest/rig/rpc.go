package rig

import (
	"context"
	"errors"
	"io"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
)

// RPC is a client of the public gRPC port.
func (r *Rig) RPC() tandemv1.InferenceServiceClient {
	r.T.Helper()
	return tandemv1.NewInferenceServiceClient(r.Conn(r.App.GRPCAddr().String()))
}

// Conn is a connection that ends with the test.
func (r *Rig) Conn(addr string) *grpc.ClientConn {
	r.T.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		r.T.Fatal(err)
	}
	r.T.Cleanup(func() { conn.Close() })
	return conn
}

// Generated is what the stream of a Generate call held.
type Generated struct {
	Text, Reasoning string
	Tokens          int
	Last            *tandemv1.GenerateResponse
}

// RunRPC calls Generate and reads the stream to its end.
func RunRPC(ctx context.Context, api tandemv1.InferenceServiceClient,
	req *tandemv1.GenerateRequest) (g Generated, err error) {
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
		g.Text, g.Reasoning, g.Tokens, g.Last = g.Text+m.GetText(), g.Reasoning+m.GetReasoning(),
			g.Tokens+len(m.GetTokens()), m
	}
}

// ChatInput is a chat of one user message.
func ChatInput(text string, thinking bool) *tandemv1.GenerateRequest_Chat {
	return &tandemv1.GenerateRequest_Chat{Chat: &tandemv1.Chat{Messages: []*tandemv1.Message{{Role: "user",
		Content: text}}, EnableThinking: proto.Bool(thinking)}}
}
