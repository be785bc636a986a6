package e2e

import (
	"errors"
	"io"
	"slices"
	"testing"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/tests/client"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

func grpcClient(t *testing.T) (*grpc.ClientConn, *client.Client) {
	t.Helper()
	cl, c := demo(t)
	conn, err := grpc.NewClient(cl.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn, c
}

func TestGRPCGenerate(t *testing.T) {
	conn, c := grpcClient(t)
	api := tandemv1.NewInferenceServiceClient(conn)
	stream, err := api.Generate(t.Context(), &tandemv1.GenerateRequest{
		Input: &tandemv1.GenerateRequest_Chat{Chat: &tandemv1.Chat{
			Messages: []*tandemv1.Message{{Role: "user", Content: "What is DDTree?"}}, EnableThinking: proto.Bool(false),
		}},
		MaxTokens: 100,
	})
	if err != nil {
		t.Fatal(err)
	}
	text := ""
	var last *tandemv1.GenerateResponse
	for {
		message, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text += message.GetText()
		last = message
	}
	off := false
	http, err := c.Do(t.Context(), client.Request{Messages: chat("What is DDTree?"), MaxTokens: 100, EnableThinking: &off})
	if err != nil {
		t.Fatal(err)
	}
	if text != http.Text || text == "" {
		t.Errorf("gRPC %q\nHTTP %q", text, http.Text)
	}
	if last.GetFinishReason() != tandemv1.FinishReason_FINISH_REASON_STOP || last.GetUsage().GetCompletionTokens() == 0 ||
		last.GetTimings().GetVerifySteps() == 0 {
		t.Errorf("last message %v", last)
	}
}

func TestGRPCOthers(t *testing.T) {
	conn, _ := grpcClient(t)
	api := tandemv1.NewInferenceServiceClient(conn)
	g := golden(t)[0]
	tokens, err := api.Tokenize(t.Context(),
		&tandemv1.TokenizeRequest{Input: &tandemv1.TokenizeRequest_Text{Text: g.Prompt}})
	if err != nil || !slices.Equal(tokens.GetIds(), g.IDs) {
		t.Errorf("Tokenize = %v, %v", tokens.GetIds(), err)
	}
	text, err := api.Detokenize(t.Context(), &tandemv1.DetokenizeRequest{Ids: g.IDs})
	if err != nil || text.GetText() != g.Prompt {
		t.Errorf("Detokenize = %q, %v", text.GetText(), err)
	}
	models, err := api.ListModels(t.Context(), &tandemv1.ListModelsRequest{})
	if err != nil || len(models.GetModels()) != 1 || !models.GetModels()[0].GetSpeculative() {
		t.Errorf("ListModels = %v, %v", models, err)
	}
	workers, err := api.GetCluster(t.Context(), &tandemv1.GetClusterRequest{})
	if err != nil || len(workers.GetWorkers()) != 3 {
		t.Errorf("GetCluster = %v, %v", workers, err)
	}
	stream, err := api.Generate(t.Context(), &tandemv1.GenerateRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("Generate of nothing: %v", err)
	}
}

func TestGRPCReflectionAndHealth(t *testing.T) {
	conn, _ := grpcClient(t)
	stream, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&reflectionv1.ServerReflectionRequest{
		MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{ListServices: "*"},
	}); err != nil {
		t.Fatal(err)
	}
	reply, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range reply.GetListServicesResponse().GetService() {
		names = append(names, s.GetName())
	}
	if !slices.Contains(names, "tandem.v1.InferenceService") {
		t.Errorf("services %v", names)
	}
	health, err := healthv1.NewHealthClient(conn).Check(t.Context(), &healthv1.HealthCheckRequest{})
	if err != nil || health.GetStatus() != healthv1.HealthCheckResponse_SERVING {
		t.Errorf("health %v, %v", health, err)
	}
}
