package rig

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/services/testwait"
)

// Send starts a request that the caller can abandon.
func (r *Rig) Send(ctx context.Context, body string) <-chan Answer {
	out := make(chan Answer, 1)
	go func() {
		req, _ := http.NewRequestWithContext(ctx, http.MethodPost, r.URL+"/v1/chat/completions", strings.NewReader(body))
		resp, err := r.Client.Do(req)
		if err != nil {
			out <- Answer{Body: []byte(err.Error())}
			return
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		out <- Answer{resp.StatusCode, resp.Header, b}
	}()
	return out
}

// Receive waits for a value as long as Patience.
func Receive[T any](t *testing.T, ch <-chan T, what string) T {
	t.Helper()
	return testwait.For(t, ch, what)
}
