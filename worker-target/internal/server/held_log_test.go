package server

import (
	"testing"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/ddtree"
	"github.com/tandem-inference/tandem/worker-target/internal/auto"
	"github.com/tandem-inference/tandem/worker-target/internal/decode"
	"github.com/tandem-inference/tandem/worker-target/internal/drafts"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// TestHeldBackIsTold: heartbeats carry what automatic speculation believes, and one line says that the draft is held
// back, one that it is used again.
func TestHeldBackIsTold(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	model := auto.New()
	for _, rows := range []int{1, 2, 4, 8, 16, 24, 32} {
		model.SetVerify(rows, time.Duration(rows)*time.Millisecond)
	}
	s := New("target", decode.Config{}, Deps{Engines: &oneEngine{}, Model: model,
		Drafts: drafts.NewManager(drafts.Config{}, nil), Log: zap.New(core)})
	beat := func() *tandemv1.AutoSpeculation {
		var h tandemv1.Heartbeat
		s.Heartbeat(&h)
		return h.Speculation
	}
	lines := func() (texts []string) {
		for _, e := range logs.TakeAll() {
			texts = append(texts, e.Message)
		}
		return texts
	}
	if c := beat(); c.HeldBack || c.Steps[4].Rows != 16 || c.Steps[4].Ms != 16 || len(lines()) != 0 {
		t.Fatalf("at the start: %v", c)
	}
	p := model.NewRequest(16, 32, nil)
	p.Next(100, 16, 0)
	for range 600 {
		p.Observe(&auto.Round{Plan: auto.Plan{Kind: auto.Plain}, Length: 100, Rows: 1, Verify: time.Millisecond})
	}
	for range 3 {
		if c := beat(); !c.HeldBack || c.TokensSinceDraft != 600 || c.Reason == "" {
			t.Fatalf("after 600 plain tokens: %v", c)
		}
	}
	if got := lines(); len(got) != 1 || got[0] != "automatic speculation holds the draft back" {
		t.Errorf("log: %q", got)
	}
	var tree ddtree.Tree
	tree.Reset(0)
	tree.Add(1, 0, -0.1)
	p.Observe(&auto.Round{Plan: auto.Plan{Kind: auto.Chain, Block: 2, Budget: 1}, Length: 100, Rows: 2,
		Verify: time.Millisecond, Draft: time.Millisecond, Tree: &tree, Path: []int32{0, 1}})
	for range 3 {
		if c := beat(); c.HeldBack || c.DraftMs != 1 {
			t.Fatalf("after a drafted round: %v", c)
		}
	}
	if got := lines(); len(got) != 1 || got[0] != "automatic speculation uses the draft again" {
		t.Errorf("log: %q", got)
	}
}
