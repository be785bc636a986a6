package generate_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/emit"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/stack"
	"github.com/tandem-inference/tandem/gateway/internal/generate"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/tokenizer"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// generation is a generator over scripted workers.
type generation struct {
	*stack.Stack
	gen *generate.Generator
}

func start(t *testing.T, cfg generate.Config) *generation {
	t.Helper()
	s := stack.Start(t, cfg.FailoverTimeout)
	cfg.DefaultMaxTokens = 100
	return &generation{s, generate.New(cfg, generate.Deps{Targets: s.Cluster.Targets, Metrics: s.Metrics})}
}

// request asks for one choice with seed 3.
func (r *generation) request() *generate.Request {
	return &generate.Request{
		ID: "req-1", Model: r.Model, Sampling: &tandemv1.Sampling{Seed: proto.Int64(3)}, TopLogprobs: generate.NoLogprobs,
		Prompts: []generate.Prompt{{Tokens: r.Tokenizer.Encode("Say hello.", tokenizer.Options{})}},
	}
}

// outcome is how a request ended.
type outcome struct {
	texts []string // by choice
	usage *generate.Usage
	err   error
}

func (r *generation) run(ctx context.Context, req *generate.Request) outcome {
	s := &sink{texts: make([]strings.Builder, max(1, req.N))}
	u, err := r.gen.Run(ctx, req, s)
	o := outcome{usage: u, err: err}
	for i := range s.texts {
		o.texts = append(o.texts, s.texts[i].String())
	}
	return o
}

// send is run for requests that the test does not wait for.
func (r *generation) send(ctx context.Context, req *generate.Request) <-chan outcome {
	out := make(chan outcome, 1)
	go func() { out <- r.run(ctx, req) }()
	return out
}

// sink collects the text of the choices and holds the generator to the order of its calls.
type sink struct {
	mu       sync.Mutex // guards the rest
	admitted bool
	texts    []strings.Builder
	done     map[int]bool
}

// Admitted implements generate.Sink.
func (s *sink) Admitted() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.admitted {
		return fmt.Errorf("admitted twice")
	}
	s.admitted = true
	return nil
}

// Prompt implements generate.Sink.
func (s *sink) Prompt(int, []*tandemv1.PositionLogprobs) error { return nil }

// Delta implements generate.Sink.
func (s *sink) Delta(index int, d generate.Delta) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.admitted || s.done[index] {
		return fmt.Errorf("choice %d has output before it was admitted or after its end", index)
	}
	for _, e := range d.Events {
		if e.Kind == emit.Content {
			s.texts[index].Write(e.Text)
		}
	}
	return nil
}

// Done implements generate.Sink.
func (s *sink) Done(index int, _ generate.Choice) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done == nil {
		s.done = map[int]bool{}
	}
	if s.done[index] {
		return fmt.Errorf("choice %d ended twice", index)
	}
	s.done[index] = true
	return nil
}

var _ generate.Sink = (*sink)(nil)

func say(r *generation, text string, step int) gatewaytest.Decode {
	return gatewaytest.Say(r.Tokenizer, text, step)
}
