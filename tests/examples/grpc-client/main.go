// Command grpc-client asks a Tandem gateway one question over gRPC and prints the answer as it comes.
//
//	go run ./tests/examples/grpc-client -address 127.0.0.1:8103 "What is DDTree?"
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"strings"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

func main() {
	address := flag.String("address", "127.0.0.1:8103", "gRPC address of the gateway")
	flag.Parse()
	question := strings.Join(flag.Args(), " ")
	if question == "" {
		question = "What is DDTree?"
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := ask(ctx, os.Stdout, *address, question); err != nil {
		log.Fatal(err)
	}
}

// ask streams one answer to w. Cancelling ctx frees the gateway's slot within one step.
func ask(ctx context.Context, w io.Writer, address, question string) error {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	stream, err := tandemv1.NewInferenceServiceClient(conn).Generate(ctx, &tandemv1.GenerateRequest{
		Input: &tandemv1.GenerateRequest_Chat{Chat: &tandemv1.Chat{
			Messages: []*tandemv1.Message{{Role: "user", Content: question}},
		}},
		MaxTokens: 200,
	})
	if err != nil {
		return err
	}
	for {
		message, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if status.Code(err) == codes.Unavailable {
			return fmt.Errorf("no gateway answers at %s (-address names another): %w", address, err)
		}
		if err != nil {
			return err
		}
		fmt.Fprint(w, message.GetText())
		if t := message.GetTimings(); t != nil { // in the last message only
			fmt.Fprintf(w, "\n(%d tokens in %.0f ms, %d of %d drafts accepted)\n",
				message.GetUsage().GetCompletionTokens(), t.GetTotalMs(), t.GetAcceptedTokens(), t.GetDraftedTokens())
		}
	}
}
