package turn_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
)

// firstOnly is a template that refuses system messages which do not stand first, as many published ones do.
const firstOnly = `{%- for m in messages -%}{%- if m.role == 'system' and not loop.first -%}{{ raise_exception('a system message must come first') }}{%- endif -%}
<{{ m.role }}>{{ m.content }}{% endfor -%}<assistant>`

// anywhere shows system messages where they stand.
const anywhere = `{%- for m in messages -%}<{{ m.role }}>{{ m.content }}{% endfor -%}<assistant>`

// TestSystemMessages: the system texts that lead a conversation are one message, and later ones stay only if the
// template takes them there, in all dialects alike.
func TestSystemMessages(t *testing.T) {
	user := func(text string) *tandemv1.Message { return &tandemv1.Message{Role: "user", Content: text} }
	for _, tt := range []struct{ name, template, want string }{
		{"first only", firstOnly, "<system>A.\n\nB.\n\nC.<user>One.<user>Two.<assistant>"},
		{"anywhere", anywhere, "<system>A.\n\nB.<user>One.<system>C.<user>Two.<assistant>"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "template")
			if err := os.WriteFile(path, []byte(tt.template), 0o600); err != nil {
				t.Fatal(err)
			}
			r := rig.Start(t, func(c *app.Config) { c.ChatTemplateFile = path })
			w := r.Target(gatewaytest.WorkerOptions{Decode: r.Reply("ok", 1)})
			const later = `{"role":"user","content":"One."},{"role":"system","content":"C."},{"role":"user","content":"Two."}]}`
			for path, body := range map[string]string{
				"/v1/chat/completions": `{"messages":[{"role":"system","content":"A."},{"role":"developer","content":[{"type":"text","text":"B."}]},` + later,
				"/v1/responses":        `{"instructions":"A.","input":[{"role":"developer","content":"B."},` + later,
				"/v1/messages":         `{"system":"A.","messages":[{"role":"system","content":"B."},` + later,
			} {
				if a := r.Post(path, body); a.Status != 200 {
					t.Errorf("%s: %d %s", path, a.Status, a.Body)
				} else if d := cmp.Diff(tt.want, r.LastPrompt(w)); d != "" {
					t.Errorf("%s: %s", path, d)
				}
			}
			in := &tandemv1.Chat{Messages: []*tandemv1.Message{{Role: "system", Content: "A."}, {Role: "system", Content: "B."},
				user("One."), {Role: "system", Content: "C."}, user("Two.")}}
			if _, err := rig.RunRPC(t.Context(), r.RPC(),
				&tandemv1.GenerateRequest{Input: &tandemv1.GenerateRequest_Chat{Chat: in}}); err != nil {
				t.Errorf("gRPC: %v", err)
			} else if d := cmp.Diff(tt.want, r.LastPrompt(w)); d != "" {
				t.Errorf("gRPC: %s", d)
			}
		})
	}
}
