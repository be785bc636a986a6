package responses_test

import (
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
)

// TestUnknownReferences: one among other items is left out with a warning, one alone leaves nothing to answer.
func TestUnknownReferences(t *testing.T) {
	r := rig.Start(t, nil)
	w := r.Target(gatewaytest.WorkerOptions{Decode: r.Reply("ok", 1)})
	for _, input := range []string{`[{"type":"item_reference","id":"msg_unknown"}]`, `[{"id":"msg_unknown"}]`,
		`[{"type":"web_search_call","id":"ws_1"}]`} {
		a := r.Post("/v1/responses", `{"input":`+input+`}`)
		if a.Status != 400 || rig.At(a.JSON(t), "error", "param") != "input" || len(w.Requests()) > 0 {
			t.Errorf("%s: %d %s", input, a.Status, a.Body)
		}
	}
	for path, body := range map[string]string{
		"/v1/responses": `{"input":[{"type":"item_reference","id":"msg_unknown"},{"type":"web_search_call"},{"type":"web_search_call"},{"role":"user","content":"Hello"}]}`,
		"/v1/messages":  `{"messages":[{"role":"user","content":"Hello"},{"role":"assistant","content":[{"type":"redacted_thinking","data":"x"},{"type":"item_reference"},{"type":"web_search_call"},{"type":"text","text":"a"}]},{"role":"user","content":"Go."}]}`,
	} {
		for _, body := range []string{body, rig.WithStream(body)} {
			if a := r.Post(path, body); a.Status != 200 ||
				a.Header.Get("X-Tandem-Warning") != "items-ignored: item_reference,web_search_call" {
				t.Errorf("%s: %d, warning %q", path, a.Status, a.Header.Get("X-Tandem-Warning"))
			}
		}
	}
}
