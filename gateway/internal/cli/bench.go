package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/tandem-inference/tandem/gateway/internal/benchcard"
	"github.com/tandem-inference/tandem/gateway/internal/top"
	"github.com/tandem-inference/tandem/services/config"
)

// BenchCmd is tandem bench.
type BenchCmd struct {
	Run     BenchRunCmd     `cmd:"" default:"withargs" help:"Measure, as tandem bench alone does; --help after it lists the flags."`
	Compare BenchCompareCmd `cmd:"" help:"Show how the results in one file relate to those in another."`
}

// BenchRunCmd measures a server.
type BenchRunCmd struct {
	Target string `arg:"" optional:"" name:"model" help:"A model (*.gguf, or OWNER/NAME:FILE of tandem pull) to load here; default: that of the running gateway, without one the demonstration models."`

	Server string        `placeholder:"URL" help:"HTTP address of a running gateway; none loads the model here. Default: the one at http://127.0.0.1:8000, if it is there and serves the model."`
	APIKey config.Secret `name:"api-key" placeholder:"KEY" help:"Key for --server."`
	TrustFlags

	Quick   bool   `env:"-" help:"Less of everything: about a minute on small models. Without it: minutes."`
	Repeats int    `env:"-" default:"0" help:"How often everything is measured, 0 = 3 with --quick, else 5."`
	JSON    string `name:"json" env:"-" type:"path" placeholder:"FILE" help:"Write the results to a file, too, for tandem bench compare."`
	SVG     string `name:"svg" env:"-" type:"path" placeholder:"FILE" help:"Draw the results into a file, too."`

	Other        string `env:"-" placeholder:"URL" help:"Another server with OpenAI's API, measured in turns with the first: its base address, before /v1."`
	OtherModel   string `env:"-" placeholder:"NAME" help:"Model to ask --other for."`
	OtherKeyFile string `env:"-" type:"existingfile" placeholder:"PATH" help:"File that holds the key for --other."`

	Quiet          bool   `env:"-" short:"q" help:"Print nothing but the result."`
	PrefillDrafter string `type:"path" placeholder:"PATH" help:"Scorer model for the compression of long prompts."`
	WorkerFlags

	run RunCmd
}

// AfterApply notes which flags the command line holds, as that of tandem run does.
func (c *BenchRunCmd) AfterApply(ctx *kong.Context) error { return c.run.AfterApply(ctx) }

// Validate reports what cannot work.
func (c *BenchRunCmd) Validate() error {
	c.run.Server, c.run.APIKey, c.run.TrustFlags, c.run.Quiet = c.Server, c.APIKey, c.TrustFlags, c.Quiet
	c.run.WorkerFlags, c.run.PrefillDrafter = c.WorkerFlags, c.PrefillDrafter
	c.run.Speculation, c.run.LogLevel = "auto", "error"
	if c.Target != "" {
		c.run.Args = []string{c.Target}
	}
	if err := c.run.Validate(); err != nil {
		return err
	}
	switch {
	case len(c.run.prompt) > 0:
		return fmt.Errorf("%s is no model: a *.gguf file, or a name of tandem pull with its file", c.Target)
	case c.Repeats < 0:
		return fmt.Errorf("--repeats: %d is negative", c.Repeats)
	case c.Other == "" && (c.OtherModel != "" || c.OtherKeyFile != ""):
		return errors.New("--other-model and --other-key-file need --other")
	case c.Other != "" && c.OtherModel == "":
		return errors.New("--other: needs --other-model, the name to ask for there")
	}
	return nil
}

// plan is that of the flags.
func (c *BenchRunCmd) plan() benchcard.Plan {
	plan := benchcard.Full()
	if c.Quick {
		plan = benchcard.Quick()
	}
	if c.Repeats > 0 {
		plan.Repeats = c.Repeats
	}
	return plan
}

// Run measures and shows what came of it.
func (c *BenchRunCmd) Run(e *env) error {
	card := benchcard.New(config.Version(), c.plan(), time.Now())
	err := c.run.with(e, func(ctx context.Context, client *chatClient) (err error) {
		endpoints := []benchcard.Endpoint{gatewayEndpoint(client)}
		if c.Other != "" {
			other, err := c.other()
			if err != nil {
				return err
			}
			endpoints = append(endpoints, other)
		}
		stage := newStage(e, c.Quiet)
		defer stage.end()
		card.Servers, err = benchcard.Run(ctx, card.Plan, endpoints, stage.show)
		return err
	})
	if err != nil {
		return err
	}
	if err := card.Write(e.out); err != nil {
		return err
	}
	if c.JSON != "" {
		if err := card.WriteJSON(c.JSON); err != nil {
			return fmt.Errorf("--json: %w", err)
		}
	}
	if c.SVG != "" {
		if err := card.WriteSVG(c.SVG); err != nil {
			return fmt.Errorf("--svg: %w", err)
		}
	}
	return card.Err()
}

// gatewayEndpoint is a gateway to measure.
func gatewayEndpoint(client *chatClient) benchcard.Endpoint {
	page := benchcard.Page(top.Asker(client.http, client.base, client.apiKey))
	return benchcard.Endpoint{Name: "tandem", Address: client.base, Ask: client.measured(""),
		Describe: benchcard.Describer(page)}
}

// other is the server of --other.
func (c *BenchRunCmd) other() (benchcard.Endpoint, error) {
	client := &chatClient{http: http.DefaultClient, base: strings.TrimSuffix(baseURL(c.Other), "/v1")}
	if c.OtherKeyFile != "" {
		data, err := os.ReadFile(c.OtherKeyFile)
		if err != nil {
			return benchcard.Endpoint{}, fmt.Errorf("--other-key-file: %w", err)
		}
		client.apiKey = strings.TrimSpace(string(data))
	}
	page := benchcard.Page(top.Asker(client.http, client.base, client.apiKey))
	return benchcard.Endpoint{Name: "other", Address: client.base, Ask: client.measured(c.OtherModel),
		Describe: benchcard.OtherDescriber(page, c.OtherModel)}, nil
}

// measured returns a function that asks greedily for a model and notes when the text comes.
func (c *chatClient) measured(model string) func(context.Context, benchcard.Question) (benchcard.Reply, error) {
	return func(ctx context.Context, q benchcard.Question) (benchcard.Reply, error) {
		greedy := 0.0
		request := chatRequest{Model: model, Messages: []chatMessage{{Role: "user", Content: q.Prompt}},
			MaxTokens: q.MaxTokens, Temperature: &greedy}
		if q.Mode != benchcard.ModeDefault {
			request.Speculation = &speculationJSON{Mode: q.Mode}
		}
		var reply benchcard.Reply
		began := time.Now()
		a, err := c.stream(ctx, request, func(string, bool) { reply.Pieces = append(reply.Pieces, time.Since(began)) })
		if err != nil {
			return reply, err
		}
		reply.Total, reply.Text = time.Since(began), a.reasoning+a.text
		if u := a.usage; u != nil {
			reply.PromptTokens, reply.Tokens, reply.CachedTokens = u.PromptTokens, u.CompletionTokens, u.PromptDetails.Cached
			reply.Steps, reply.Drafted, reply.Accepted = u.Timings.VerifySteps, u.Timings.Drafted, u.Timings.Accepted
			reply.ServerMS = u.Timings.TotalMillis
		}
		return reply, nil
	}
}

// stage is the line on a terminal that says what is being measured.
type stage struct {
	e       *env
	visible bool
}

func newStage(e *env, quiet bool) *stage { return &stage{e, !quiet && isTerminal(e.err)} }

func (s *stage) show(text string) {
	if s.visible {
		fmt.Fprintf(s.e.err, "\r\x1b[K%s …", text)
	}
}

func (s *stage) end() {
	if s.visible {
		fmt.Fprint(s.e.err, "\r\x1b[K")
	}
}

// BenchCompareCmd is tandem bench compare.
type BenchCompareCmd struct {
	A string `arg:"" type:"existingfile" help:"Results of tandem bench --json."`
	B string `arg:"" type:"existingfile" help:"Those to compare with them."`
}

// Run compares two cards.
func (c *BenchCompareCmd) Run(e *env) error {
	a, err := benchcard.Read(c.A)
	if err != nil {
		return err
	}
	b, err := benchcard.Read(c.B)
	if err != nil {
		return err
	}
	return benchcard.Compare(e.out, a, b)
}
