package cluster_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
)

// TestLeaveTheQueue: a client that leaves before a worker took its request frees its place in the queue at once, over
// every wire, and the worker is never called; neither its slot nor the memory that was asked for stays reserved.
func TestLeaveTheQueue(t *testing.T) {
	overHTTP := func(path, body string) func(*rig.Rig, context.Context) error {
		return func(r *rig.Rig, ctx context.Context) error {
			req, err := http.NewRequestWithContext(ctx, "POST", r.URL+path, strings.NewReader(body))
			if err != nil {
				return err
			}
			resp, err := r.Client.Do(req)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			b, err := io.ReadAll(resp.Body)
			if err == nil && resp.StatusCode != http.StatusOK {
				err = fmt.Errorf("%d %s", resp.StatusCode, b)
			}
			return err
		}
	}
	type wire struct {
		name string
		send func(*rig.Rig, context.Context) error
	}
	all := []wire{{"gRPC", func(r *rig.Rig, ctx context.Context) error {
		_, err := rig.RunRPC(ctx, r.RPC(), &tandemv1.GenerateRequest{Input: rig.ChatInput("Hi", false), MaxTokens: 100})
		return err
	}}}
	for _, w := range rig.Wires {
		for _, stream := range []bool{true, false} {
			all = append(all, wire{fmt.Sprintf("%s, stream %v", w.Path, stream), overHTTP(w.Path, fmt.Sprintf(w.Body, stream))})
		}
	}
	for _, early := range []bool{false, true} {
		r := rig.Start(t, func(c *app.Config) {
			c.MaxQueue, c.DefaultMaxTokens = 1, new(100)
			if early {
				// Streams have their headers before they leave.
				c.QueuedHeadersS, c.SSEKeepaliveS = 0.001, 0.002
			}
		})
		w := r.Target(gatewaytest.WorkerOptions{Slots: 2, MaxContext: 300, KVTokens: 300})
		targets := r.Parts.Cluster.Targets
		for _, wire := range all {
			t.Run(fmt.Sprintf("%s, early %v", wire.name, early), func(t *testing.T) {
				r.T = t
				b := gatewaytest.NewBlock()
				w.SetDecode(b.Script(r.Tok, "one two"))
				seen := len(w.Requests())
				first := r.Send(t.Context(), rig.ChatBody(`"max_tokens":300`))
				rig.Receive(t, b.Admitted, "first request runs")
				held, _, _ := targets.Tokens("t1")
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				ended := make(chan error, 1)
				go func() { ended <- wire.send(r, ctx) }()
				// A slot is free, memory is not.
				r.Eventually("second request waits", func() bool { return targets.Queued() == 1 })
				leave()
				if rig.Receive(t, ended, "end of the second request") == nil {
					t.Error("a request that was left has an answer")
				}
				r.Eventually("its place is free", func() bool { return targets.Queued() == 0 })
				busy, _, _ := targets.Busy("t1")
				if now, _, _ := targets.Tokens("t1"); now != held || busy != 1 {
					t.Errorf("%d tokens and %d slots are reserved, the first request has %d and 1", now, busy, held)
				}
				// The queue takes one request, so this one is refused if the place is not free.
				third := make(chan error, 1)
				go func() { third <- wire.send(r, t.Context()) }()
				r.Eventually("third request waits", func() bool { return targets.Queued() == 1 })
				close(b.Release)
				if a := rig.Receive(t, first, "first answer"); a.Status != http.StatusOK {
					t.Errorf("first: %d %s", a.Status, a.Body)
				}
				if err := rig.Receive(t, third, "third answer"); err != nil {
					t.Errorf("third: %v", err)
				}
				r.Eventually("nothing is reserved", func() bool {
					busy, _, _ := targets.Busy("t1")
					held, _, _ := targets.Tokens("t1")
					return busy == 0 && held == 0
				})
				if n := len(w.Requests()) - seen; n != 2 {
					t.Errorf("the worker saw %d requests, want 2", n)
				}
			})
		}
	}
}
