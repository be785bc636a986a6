package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/gateway/internal/hub"
	"github.com/tandem-inference/tandem/services/config"
	"github.com/tandem-inference/tandem/services/telemetry"
)

// RunCmd is tandem run: a chat in the terminal, or one answer in a pipe.
type RunCmd struct {
	Args []string `arg:"" optional:"" name:"model|prompt" help:"A model (*.gguf, or OWNER/NAME:FILE of tandem pull; default: the demonstration models) and a prompt. \"-\" stands for standard input. Without a prompt: a chat on a terminal, else the prompt is read from standard input."`

	Server string        `placeholder:"URL" help:"HTTP address of a running gateway; none loads the model here. Default: the one at http://127.0.0.1:8000, if it is there and serves the model."`
	APIKey config.Secret `name:"api-key" placeholder:"KEY" help:"Key for --server."`
	TrustFlags

	System      string   `help:"System message."`
	MaxTokens   int      `default:"0" help:"Longest answer in tokens, 0 = the gateway's default."`
	Temperature *float64 `help:"0 = always the likeliest token."`
	TopP        *float64 `name:"top-p" help:"Share of probability that tokens are drawn from."`
	TopK        *int64   `name:"top-k" help:"Number of tokens that are drawn from, 0 = all."`
	Seed        *int64   `help:"Seed of the sampler: the same seed gives the same answer."`
	Thinking    *bool    `negatable:"" help:"Let the model reason before it answers."`
	Speculation string   `default:"auto" placeholder:"MODE" help:"auto, off, lookup, chain, tree or tree:BUDGET. It changes speed, never the answer."`
	Quiet       bool     `short:"q" help:"Print nothing but the result."`
	NoMarkdown  bool     `help:"Show answers as the model writes them. On a terminal, Markdown is rendered unless NO_COLOR is set."`
	HistoryFile string   `placeholder:"PATH" help:"Where lines of chats are kept for the arrow keys; none keeps none. Default: tandem/history in $$XDG_STATE_HOME or ~/.local/state."`

	PrefillDrafter string `type:"path" placeholder:"PATH" help:"Scorer model for the compression of long prompts."`
	WorkerFlags
	LogLevel string `default:"error" enum:"auto,debug,info,warn,error" help:"Least severe messages shown: debug, info, warn, error, or auto: warn on a terminal, info otherwise."`

	models trio
	prompt []string
	mode   *speculationJSON
	given  []string // flags of the command line
	typed  []byte   // while the model was loading
}

// Validate sorts the arguments and reports what cannot work.
func (c *RunCmd) Validate() error {
	if err := c.StoreFlags.resolveAll(&c.Draft, &c.PrefillDrafter); err != nil {
		return err
	}
	c.models, c.prompt = trio{draft: c.Draft, prefill: c.PrefillDrafter}, c.Args
	if len(c.Args) > 0 {
		// A question may look like the name of a model, but for the colon.
		if ref, ok := hub.ParseRef(c.Args[0]); ok && ref.Choice != "" {
			path, err := c.StoreFlags.resolve(c.Args[0])
			if err != nil {
				return err
			}
			c.Args[0] = path
		}
	}
	if len(c.Args) > 0 && strings.HasSuffix(c.Args[0], ".gguf") {
		if c.Server != "" && c.Server != noServer {
			return errors.New("--server: the gateway there has its model, leave the file name away")
		}
		c.models.target, c.prompt = c.Args[0], c.Args[1:]
		if len(c.prompt) > 0 && strings.HasSuffix(c.prompt[0], ".gguf") {
			return fmt.Errorf("%s looks like a second model: a draft is given as --draft %[1]s, a scorer as "+
				"--prefill-drafter %[1]s", c.prompt[0])
		}
	} else if c.Draft != "" {
		return errors.New("--draft: needs a target model as the first argument")
	}
	var err error
	if c.mode, err = parseSpeculation(c.Speculation); err != nil {
		return err
	}
	if c.MaxTokens < 0 {
		return fmt.Errorf("--max-tokens: %d is negative", c.MaxTokens)
	}
	return c.WorkerFlags.validate()
}

// parseSpeculation reads auto, off, lookup, chain, tree, tree:22.
func parseSpeculation(text string) (*speculationJSON, error) {
	mode, budget, hasBudget := strings.Cut(text, ":")
	s := &speculationJSON{Mode: mode}
	switch mode {
	case "auto", "off", "lookup", "chain", "tree":
	default:
		return nil, fmt.Errorf("--speculation: %q is not auto, off, lookup, chain, tree or tree:BUDGET", text)
	}
	if hasBudget {
		n, err := strconv.Atoi(budget)
		if err != nil || n < 1 || mode != "tree" {
			return nil, fmt.Errorf("--speculation: %q: only tree takes a budget, a number from 1", text)
		}
		s.Budget = n
	}
	return s, nil
}

// Run chats with the gateway at --server, with the one that runs on this machine, or with a cluster of its own.
func (c *RunCmd) Run(e *env) error {
	return c.with(e, func(ctx context.Context, client *chatClient) error {
		return reached(client.base, c.chat(ctx, e, client))
	})
}

// with calls f with a client of the gateway at --server, of the one that runs on this machine, or of a cluster that is
// started for it.
func (c *RunCmd) with(e *env, f func(ctx context.Context, client *chatClient) error) error {
	if c.Server == "" || c.Server == noServer {
		found, err := c.choose(e)
		if err != nil {
			return err
		}
		if found != nil {
			defer found.http.CloseIdleConnections()
			return f(e.ctx, &chatClient{http: found.http, base: found.url, apiKey: c.APIKey.Reveal()})
		}
	} else {
		client, err := c.client(c.Server)
		if err != nil {
			return err
		}
		defer client.CloseIdleConnections()
		return f(e.ctx, &chatClient{http: client, base: baseURL(c.Server), apiKey: c.APIKey.Reveal()})
	}
	models := c.models
	var err error
	if models.target == "" {
		models, err = demoTrio()
	} else {
		err = models.check()
	}
	if err != nil {
		return err
	}
	level := telemetry.ChooseLevel(c.LogLevel, e.err)
	log, err := telemetry.NewLogger(level, telemetry.FormatConsole, e.err)
	if err != nil {
		return err
	}
	progress := newProgress(e.err, c.Quiet, "loading the model")
	cluster, err := newCluster(clusterConfig{
		models: models, workers: c.WorkerFlags, gateway: app.Defaults(), private: true,
		logLevel: level, logFormat: telemetry.FormatConsole, log: log, output: e.err, onReady: progress.step,
	})
	if err != nil {
		return err
	}
	progress.start(len(cluster.names), cluster.gateway.Loading)
	defer progress.stop()
	// What is typed meanwhile is shown after the bar, not in it.
	typed := holdEcho(e.in, progress.visible)
	defer typed.release()

	ctx, stop := context.WithCancel(e.ctx)
	defer stop()
	ready := make(chan struct{})
	served := make(chan error, 1)
	go func() { served <- cluster.run(ctx, func() { close(ready) }) }()
	select {
	case err := <-served:
		return err
	case <-ready:
	}
	progress.stop()
	c.typed = typed.release()
	at := cluster.endpoint()
	err = f(ctx, &chatClient{http: at.client(), base: at.url()})
	stop()
	return errors.Join(err, <-served)
}

// chat answers the prompt of the command line or of standard input, or holds a conversation on a terminal.
func (c *RunCmd) chat(ctx context.Context, e *env, client *chatClient) error {
	if terminal, ok := e.in.(*os.File); ok && len(c.prompt) == 0 && isTerminal(e.in) {
		return c.converse(ctx, e, client, terminal)
	}
	prompt, err := c.readPrompt(e.in)
	if err != nil {
		return err
	}
	settings := c.settings()
	_, err = c.answer(ctx, e, client, settings.request([]chatMessage{{Role: "user", Content: prompt}}))
	return err
}

// readPrompt joins the arguments; "-" or no argument at all stands for standard input.
func (c *RunCmd) readPrompt(in io.Reader) (string, error) {
	parts := c.prompt
	if len(parts) == 0 {
		parts = []string{"-"}
	}
	var b strings.Builder
	for i, part := range parts {
		if i > 0 {
			b.WriteByte(' ')
		}
		if part != "-" {
			b.WriteString(part)
			continue
		}
		data, err := io.ReadAll(in)
		if err != nil {
			return "", fmt.Errorf("standard input: %w", err)
		}
		b.Write(data)
	}
	prompt := strings.TrimSpace(b.String())
	if prompt == "" {
		return "", errors.New("the prompt is empty: give it as an argument or on standard input")
	}
	return prompt, nil
}

// answer streams one reply to the terminal. Ctrl-C ends the reply; outside a chat, a second one ends the program.
func (c *RunCmd) answer(ctx context.Context, e *env, client *chatClient, request chatRequest) (answer, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if isTerminal(e.in) {
		defer e.onInterrupt(cancel)()
	}
	view := newAnswerView(e.out, c.Quiet, !c.NoMarkdown)
	waits := noteWaiting(ctx, e.err, client, c.Quiet)
	defer waits.stop()
	reply, err := client.stream(ctx, request, func(text string, reasoning bool) {
		waits.stop()
		view.show(text, reasoning)
	})
	view.end()
	if err != nil && ctx.Err() != nil && e.ctx.Err() == nil {
		fmt.Fprintln(e.err, "(stopped)")
		return reply, nil
	}
	if err != nil {
		return reply, err
	}
	if reply.usage != nil && !c.Quiet {
		errStyle := newStyle(e.err)
		fmt.Fprintf(e.err, "%s%s%s\n", errStyle.dim, statistics(reply), errStyle.plain)
	}
	return reply, nil
}

// statistics is the line below an answer.
func statistics(a answer) string {
	u := a.usage
	t := &u.Timings
	line := fmt.Sprintf("%d tokens, %.1f tokens/s, first after %.0f ms", u.CompletionTokens, t.TokensPerSec, t.TTFTMillis)
	if t.Drafted > 0 {
		var shares []string
		for _, s := range []struct {
			source            string
			drafted, accepted int64
		}{{"drafts", t.Drafted - t.LookupDrafted, t.Accepted - t.LookupAccepted},
			{"lookups", t.LookupDrafted, t.LookupAccepted}} {
			if s.drafted > 0 {
				shares = append(shares, fmt.Sprintf("%.0f %% of %s", 100*float64(s.accepted)/float64(s.drafted), s.source))
			}
		}
		line += fmt.Sprintf(", %s accepted, %.1f tokens per step", strings.Join(shares, " and "), t.AcceptLength)
	}
	if a.finish == "length" {
		line += ", cut by the token limit"
	}
	return line
}
