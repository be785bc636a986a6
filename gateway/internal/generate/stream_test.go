package generate_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestCancelReachesWorker(t *testing.T) {
	for _, stream := range []bool{true, false} {
		t.Run(fmt.Sprintf("stream %v", stream), func(t *testing.T) {
			r := rig.Start(t, nil)
			b := gatewaytest.NewBlock()
			w := r.Target(gatewaytest.WorkerOptions{Slots: 1, Decode: b.Script(r.Tok, "one two three")})
			ctx, cancel := context.WithCancel(t.Context())
			done := r.Send(ctx, rig.ChatBody(fmt.Sprintf(`"stream":%v`, stream)))
			rig.Receive(t, b.Admitted, "admission")
			cancel()
			rig.Receive(t, b.Cancelled, "cancel at the worker")
			rig.Receive(t, done, "end of the request")
			w.SetDecode(r.Reply("again", 1))
			if a := r.Post("/v1/chat/completions", rig.ChatBody("")); a.Status != 200 {
				t.Errorf("slot was not freed: %d %s", a.Status, a.Body)
			}
		})
	}
}

func TestFailoverOfAStream(t *testing.T) {
	text := "alpha beta gamma delta epsilon"
	r := rig.Start(t, nil)
	b := gatewaytest.NewBlock()
	w := r.Target(gatewaytest.WorkerOptions{ID: "a", Decode: b.Script(r.Tok, text)})
	done := r.Send(t.Context(), rig.ChatBody(`"stream":true`))
	rig.Receive(t, b.Admitted, "stream runs")
	w.Kill()
	r.Target(gatewaytest.WorkerOptions{ID: "b", Decode: r.Reply(text, 2)})
	a := rig.Receive(t, done, "end of the stream")
	c, _ := rig.ReadChat(t, a.Body, 1, true)
	if c[0].Content != text {
		t.Errorf("content %q, want %q", c[0].Content, text)
	}
}

func TestFailureAfterTheFirstEventIsAnEvent(t *testing.T) {
	r := rig.Start(t, func(c *app.Config) { c.FailoverTimeoutS = 0.1 })
	r.Target(gatewaytest.WorkerOptions{Decode: gatewaytest.DieAt(r.Tok, "one two three", 1, 99,
		status.Error(codes.Internal, "fault"))})
	a := r.Post("/v1/chat/completions", rig.ChatBody(`"stream":true`))
	evs := rig.Events(t, a.Body)
	if last := evs[len(evs)-1]; a.Status != 200 || rig.At(last, "error", "code") != "worker_failed" {
		t.Errorf("status %d, last event %v", a.Status, last)
	}
}
