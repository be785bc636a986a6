// Package sdk lets the vendors' own typed clients judge the gateway: whatever they send must be understood, whatever
// comes back must fit their types. A cluster runs on the scripted engine; its rules say what the model answers.
package sdk

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/anthropics/anthropic-sdk-go"
	anthropicoption "github.com/anthropics/anthropic-sdk-go/option"
	"github.com/openai/openai-go/v3"
	openaioption "github.com/openai/openai-go/v3/option"
	"github.com/tandem-inference/tandem/tests/cluster"
	"github.com/tandem-inference/tandem/tests/sdk/rules"
)

// gateway is the cluster that the tests share, nil without programs; why says what is missing.
var (
	gateway *cluster.Cluster
	why     string
)

const greeting = rules.Greeting

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	root, err := cluster.Root()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if missing := cluster.Missing(root); len(missing) > 0 {
		why = "bin/ lacks " + strings.Join(missing, ", ") + ": run make build"
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "tandem-sdk-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	options, err := cluster.Scripted(dir, rules.All(), rules.Flags()...)
	if err != nil {
		why = err.Error()
		return m.Run()
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if gateway, err = cluster.Start(ctx, options); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer gateway.Close()
	code := m.Run()
	if code != 0 {
		fmt.Fprintf(os.Stderr, "log of the cluster:\n%s", gateway.Log())
	}
	return code
}

// needGateway skips a test when the programs are not built.
func needGateway(t *testing.T) {
	t.Helper()
	if gateway == nil {
		t.Skip(why)
	}
}

// patience bounds every request.
const patience = 20 * time.Second

// openaiClient is the OpenAI library as a user sets it up; retries would hide errors.
func openaiClient(t *testing.T, opts ...openaioption.RequestOption) openai.Client {
	t.Helper()
	needGateway(t)
	return openai.NewClient(append([]openaioption.RequestOption{openaioption.WithBaseURL(gateway.HTTP + "/v1"),
		openaioption.WithAPIKey(rules.Key), openaioption.WithMaxRetries(0),
		openaioption.WithRequestTimeout(patience)}, opts...)...)
}

// anthropicClient is Anthropic's.
func anthropicClient(t *testing.T, opts ...anthropicoption.RequestOption) anthropic.Client {
	t.Helper()
	needGateway(t)
	return anthropic.NewClient(append([]anthropicoption.RequestOption{anthropicoption.WithBaseURL(gateway.HTTP),
		anthropicoption.WithAPIKey(rules.Key), anthropicoption.WithMaxRetries(0),
		anthropicoption.WithRequestTimeout(patience)}, opts...)...)
}
