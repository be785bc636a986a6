package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// waitingAfter is how long nothing may be said while a request waits, and how often the gateway is asked why.
const waitingAfter = 2 * time.Second

// waiting says on a terminal's error stream why an answer does not begin.
type waiting struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
}

// noteWaiting starts to ask the gateway for its health when the answer has not begun after waitingAfter, and writes
// what it says, each time that it changes.
func noteWaiting(ctx context.Context, w io.Writer, client *chatClient, quiet bool) *waiting {
	n := &waiting{}
	ctx, n.cancel = context.WithCancel(ctx)
	if quiet {
		return n
	}
	n.done.Go(func() {
		said := ""
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(waitingAfter):
			}
			state := client.health(ctx)
			if state != "" && state != said && ctx.Err() == nil {
				fmt.Fprintf(w, "waiting for a target: /health says %s\n", state)
			}
			said = state
		}
	})
	return n
}

// stop ends the notes; nothing is written after it. It may be called again.
func (n *waiting) stop() {
	n.cancel()
	n.done.Wait()
}

// health is what keeps a gateway from serving, empty when nothing does or when that cannot be found out.
func (c *chatClient) health(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, waitingAfter)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+"/health", nil)
	if err != nil {
		return ""
	}
	response, err := c.http.Do(request)
	if err != nil {
		return ""
	}
	defer response.Body.Close()
	var reply struct{ Status, Detail string }
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<16))
	if err != nil || json.Unmarshal(body, &reply) != nil || response.StatusCode == http.StatusOK {
		return ""
	}
	return strings.TrimSuffix(reply.Status+": "+reply.Detail, ": ")
}
