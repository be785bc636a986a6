package turn_test

import (
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
)

func TestRequestTimeout(t *testing.T) {
	r := rig.Start(t, func(c *app.Config) { c.RequestTimeoutS = 0.1 })
	b := gatewaytest.NewBlock()
	r.Target(gatewaytest.WorkerOptions{Decode: b.Script(r.Tok, "one two")})
	a := r.Post("/v1/chat/completions", rig.ChatBody(""))
	if a.Status != 504 || rig.At(a.JSON(t), "error", "code") != "deadline_exceeded" {
		t.Errorf("%d %s", a.Status, a.Body)
	}
}
