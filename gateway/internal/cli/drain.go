package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/tandem-inference/tandem/services/config"
	"github.com/tandem-inference/tandem/services/pause"
)

// DrainCmd is tandem drain: a worker gets no new work, and the command waits until it has none left.
type DrainCmd struct {
	Worker  string        `arg:"" help:"Id of the worker, as tandem top and /cluster show it."`
	Undo    bool          `env:"-" help:"Let the worker take work again, and end."`
	Move    bool          `env:"-" help:"Let its requests go on, with the same tokens, at other workers with its contract id, instead of waiting for their end."`
	Timeout time.Duration `env:"-" placeholder:"DURATION" help:"Move requests that are still at work after this time; 0 = wait for their end."`
	Stop    bool          `env:"-" help:"End the worker's process when it is empty. Whoever started it may start it again."`
	Server  string        `default:"${gateway}" help:"HTTP address of the gateway."`
	APIKey  config.Secret `name:"api-key" placeholder:"KEY" help:"Trusted key for --server."`
	TrustFlags
}

// Validate reports what cannot work.
func (c *DrainCmd) Validate() error {
	switch {
	case c.Timeout < 0:
		return fmt.Errorf("--timeout: must be at least 0, got %v", c.Timeout)
	case c.Undo && (c.Move || c.Stop || c.Timeout > 0):
		return errors.New("--undo: goes with none of --move, --timeout and --stop")
	}
	return nil
}

// drainLook is the pause between two looks at a worker that drains, and drainCall the longest wait for an answer.
const (
	drainLook = 200 * time.Millisecond
	drainCall = 10 * time.Second
)

// drained is what a gateway says of a worker.
type drained struct {
	ID        string
	State     string
	Empty     bool
	LanesBusy int `json:"lanes_busy"`
}

// Run asks, and waits.
func (c *DrainCmd) Run(e *env) error {
	client, err := c.client(c.Server)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	if c.Undo {
		if _, err := c.ask(e.ctx, client, map[string]any{"worker": c.Worker, "undo": true}); err != nil {
			return err
		}
		fmt.Fprintf(e.out, "%s takes work again\n", c.Worker)
		return nil
	}
	detail, err := c.ask(e.ctx, client, map[string]any{"worker": c.Worker, "move": c.Move})
	if err != nil {
		return err
	}
	fmt.Fprintf(e.out, "%s takes no new work\n", c.Worker)
	if detail != "" {
		fmt.Fprintf(e.err, "tandem: %s\n", detail)
	}
	if err := c.empty(e, client); err != nil {
		if e.ctx.Err() != nil {
			return fmt.Errorf("%s drains on; tandem drain --undo %s takes that back", c.Worker, c.Worker)
		}
		return err
	}
	fmt.Fprintf(e.out, "%s is empty\n", c.Worker)
	if !c.Stop {
		return nil
	}
	if _, err := c.ask(e.ctx, client, map[string]any{"worker": c.Worker, "stop": true}); err != nil {
		return err
	}
	return c.ended(e, client)
}

// empty waits until the worker has no work left.
func (c *DrainCmd) empty(e *env, client *http.Client) error {
	began, moved, busy := time.Now(), c.Move, -1
	for {
		w, err := c.look(e.ctx, client)
		switch {
		case err != nil:
			return err
		case w == nil || w.State == "lost":
			return fmt.Errorf("%s is gone: its requests went on elsewhere", c.Worker)
		case w.State != "draining":
			return fmt.Errorf("%s is %s: somebody lets it take work again", c.Worker, w.State)
		case w.Empty:
			return nil
		}
		if w.LanesBusy != busy {
			busy = w.LanesBusy
			fmt.Fprintf(e.err, "tandem: %d requests are at work there\n", busy)
		}
		if c.Timeout > 0 && !moved && time.Since(began) >= c.Timeout {
			moved = true
			detail, err := c.ask(e.ctx, client, map[string]any{"worker": c.Worker, "move": true})
			if err != nil {
				return err
			}
			if detail != "" {
				fmt.Fprintf(e.err, "tandem: %s\n", detail)
			}
		}
		if !pause.For(e.ctx, drainLook) {
			return e.ctx.Err()
		}
	}
}

// ended waits until the worker has left the gateway.
func (c *DrainCmd) ended(e *env, client *http.Client) error {
	for {
		w, err := c.look(e.ctx, client)
		if err != nil {
			return err
		}
		if w == nil || w.State != "draining" {
			fmt.Fprintf(e.out, "%s has ended\n", c.Worker)
			return nil
		}
		if !pause.For(e.ctx, drainLook) {
			return e.ctx.Err()
		}
	}
}

// look finds the worker in /cluster, nil when it is not there.
func (c *DrainCmd) look(ctx context.Context, client *http.Client) (*drained, error) {
	ctx, cancel := context.WithTimeout(ctx, drainCall)
	defer cancel()
	status, body, err := get(ctx, client, baseURL(c.Server)+"/cluster", c.APIKey.Reveal(), 64<<20)
	if err != nil {
		return nil, reached(c.Server, err)
	}
	if status != http.StatusOK {
		return nil, fmt.Errorf("/cluster: the gateway answers %d %s", status, http.StatusText(status))
	}
	var page struct{ Workers []drained }
	if err := json.Unmarshal(body, &page); err != nil {
		return nil, fmt.Errorf("/cluster: %w", err)
	}
	for i, w := range page.Workers {
		if w.ID == c.Worker {
			return &page.Workers[i], nil
		}
	}
	return nil, nil
}

// ask sends a request to drain, and returns what the gateway says besides.
func (c *DrainCmd) ask(ctx context.Context, client *http.Client, what map[string]any) (detail string, err error) {
	ctx, cancel := context.WithTimeout(ctx, drainCall)
	defer cancel()
	status, text, err := post(ctx, client, baseURL(c.Server)+"/cluster/drain", c.APIKey.Reveal(), what, mostPage)
	if err != nil {
		return "", reached(c.Server, err)
	}
	var reply struct {
		Detail string
		Error  struct{ Message string }
	}
	_ = json.Unmarshal(text, &reply)
	switch {
	case status == http.StatusOK:
		return reply.Detail, nil
	case status == http.StatusUnauthorized:
		return "", errors.New("--api-key: the gateway asks for a key")
	case reply.Error.Message != "":
		return "", errors.New(reply.Error.Message)
	}
	return "", fmt.Errorf("the gateway answers %d %s", status, http.StatusText(status))
}
