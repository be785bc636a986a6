package turn_test

import (
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
)

func TestThinkingSwitchOrder(t *testing.T) {
	r := rig.Start(t, nil)
	r.Target(gatewaytest.WorkerOptions{Decode: r.Reply("ok", 1)})
	for _, tt := range []struct {
		more string
		want bool
	}{
		{``, false},
		{`"enable_thinking":true`, true},
		{`"thinking":{"type":"disabled"},"enable_thinking":true`, false},
		{`"thinking":{"type":"adaptive"},"reasoning_effort":"none"`, true},
		{`"reasoning":{"effort":"low"},"enable_thinking":false`, true},
		{`"reasoning":{},"enable_thinking":true`, true},
		{`"reasoning":null`, false},
		{`"reasoning_effort":"none","enable_thinking":true`, false},
		{`"output_config":{"effort":"high"}`, true},
		{`"chat_template_kwargs":{"enable_thinking":true}`, true},
		{`"chat_template_kwargs":{"enable_thinking":true},"enable_thinking":false`, false},
		{`"extra_body":{"enable_thinking":true}`, true},
	} {
		a := r.Post("/apply-template", rig.ChatBody(tt.more)).JSON(t)
		if a["started_in_thinking"] != tt.want {
			t.Errorf("%s: thinking %v, want %v", tt.more, a["started_in_thinking"], tt.want)
		}
	}
}
