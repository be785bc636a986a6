package httpapi_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
)

// TestRefusedDraftIsTold: a draft that its target refuses makes the cluster degraded, which still serves, and both
// /health and /cluster name the draft and the reason.
func TestRefusedDraftIsTold(t *testing.T) {
	r := rig.Start(t, nil)
	d := gatewaytest.Join(t, r.App.RegistryAddr().String(), gatewaytest.WorkerOptions{ID: "d1",
		Role: tandemv1.Role_ROLE_DRAFT, Slots: 1, Model: &tandemv1.ModelInfo{Name: "draft", Path: "/models/draft.gguf"}})
	address := ""
	r.Eventually("draft", func() bool {
		for _, w := range r.Parts.Cluster.Workers() {
			if w.ID == d.ID {
				address = w.Registration.GetAddress()
			}
		}
		return address != ""
	})
	r.Target(gatewaytest.WorkerOptions{ID: "t1", Decode: r.Reply("ok", 1), Refused: []*tandemv1.RefusedDraft{
		{Address: address, Reason: "block_size: the draft reports 1"}, {Address: "other:1", Reason: "vocabulary 65"}}})
	var health rig.Answer
	r.Eventually("degraded", func() bool {
		health = r.Do("GET", "/health", "")
		return strings.Contains(string(health.Body), "degraded")
	})
	if detail := rig.At(health.JSON(t), "detail"); health.Status != 200 ||
		detail != "target worker t1 refuses draft worker d1: block_size: the draft reports 1" {
		t.Errorf("/health is %d %s", health.Status, health.Body)
	}
	for _, w := range r.Do("GET", "/cluster", "").JSON(t)["workers"].([]any) {
		want := any(nil)
		if rig.At(w, "id") == "t1" {
			want = []any{map[string]any{"draft": "d1", "reason": "block_size: the draft reports 1"},
				map[string]any{"draft": "other:1", "reason": "vocabulary 65"}}
		}
		if d := cmp.Diff(want, rig.At(w, "refused_drafts")); d != "" {
			t.Errorf("/cluster of %v: %s", rig.At(w, "id"), d)
		}
	}
}
