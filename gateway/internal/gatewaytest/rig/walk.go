package rig

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

const (
	// Changes: the worker's request, the scorer's, or the answer is another one, and nothing warns of the field.
	Changes = "changes"
	// Refused: 400, and the error names the field.
	Refused = "refused"
	// Warned: nothing changes, and x-tandem-warning names the field or what was left out.
	Warned = "warned"
	// ByRule: nothing changes and nothing warns; §5.1 of the specification lists the field.
	ByRule = "ignored by rule"
	// Queued: nothing of this request changes and nothing warns: the field orders the queue (§4.3), or its effect shows
	// elsewhere only.
	Queued = "shows elsewhere"
	// Echoed: the answer repeats the field or a word takes its place in the prompt, and x-tandem-warning names what was
	// left out.
	Echoed = "echoed"
)

// Walk is a gateway with a target and a scorer, whose requests are seen.
type Walk struct {
	*Rig
	Target, Scorer *gatewaytest.Worker
	// Known is the id of an item that the gateway keeps.
	Known string
	// Sealed and Signed hold reasoning as answers of Responses and Messages carry it.
	Sealed, Signed string
}

// labels is a template that shows what others leave out: names and ids.
const labels = `{% for m in messages %}<|im_start|>{{ m.role }} {{ m.name }} {{ m.tool_call_id }}
{{ m.content }}{% for c in m.tool_calls %}[{{ c.id }} {{ c.function.name }}]{% endfor %}<|im_end|>
{% endfor %}<|im_start|>assistant
`

// StartWalk starts a gateway with both workers, and lets it answer once for the ids and seals of a Walk.
func StartWalk(t *testing.T, change func(*app.Config)) *Walk {
	r := Start(t, change)
	w := &Walk{Rig: r}
	// Two calls and repeated text, so that parallel calls, stops and limits show.
	w.Target = r.Target(gatewaytest.WorkerOptions{Decode: r.Reply("<think>\nwhy\n</think>\n\nok", 1)})
	answer := w.Post("/v1/responses",
		`{"input":"Go.","enable_thinking":true,"include":["reasoning.encrypted_content"]}`).JSON(t)
	w.Known, _ = At(answer, "output", 1, "id").(string)
	w.Sealed, _ = At(answer, "output", 0, "encrypted_content").(string)
	w.Signed, _ = At(w.Post("/v1/messages",
		`{"messages":[{"role":"user","content":"Go."}],"thinking":{"type":"enabled","display":"omitted"}}`).JSON(t),
		"content", 0, "signature").(string)
	if w.Known == "" || w.Sealed == "" || w.Signed == "" {
		t.Fatalf("item %q, sealed %q, signed %q", w.Known, w.Sealed, w.Signed)
	}
	w.Target.SetDecode(gatewaytest.Script{
		Tokens: r.Encode("Sure, one two.\n" + WeatherCall + "\n" + strings.ReplaceAll(WeatherCall, "Rome", "Bern")), Step: 4,
		Stop: r.Tok.StopTokens()[0], Logprobs: true}.Run)
	script, _ := Scorer(t, "raven")
	w.Scorer = r.Scorer(script)
	return w
}

// StartLabels is StartWalk with the template labels.
func StartLabels(t *testing.T) *Walk {
	path := filepath.Join(t.TempDir(), "labels")
	if err := os.WriteFile(path, []byte(labels), 0o600); err != nil {
		t.Fatal(err)
	}
	return StartWalk(t, func(c *app.Config) { c.ChatTemplateFile = path })
}

// CompactProto is a message as JSON that is the same for equal messages.
func CompactProto(m proto.Message) string {
	b, err := protojson.Marshal(m)
	if err != nil {
		panic(err)
	}
	var buf bytes.Buffer
	if err := json.Compact(&buf, b); err != nil { // protojson varies its spaces
		panic(err)
	}
	return buf.String()
}
