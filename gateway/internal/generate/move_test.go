package generate_test

import (
	"strings"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/generate"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/testwait"
)

// TestMove asks a request to leave its worker amid its answer. It goes on, with the same text, where the bits are the
// same, as soon as there is a slot; where there is no such worker, it stays.
func TestMove(t *testing.T) {
	const text = "one two three four five six seven eight"
	for _, tt := range []struct {
		name     string
		contract string // of the other worker
		full     bool   // the other worker has a request already
		moves    bool
	}{
		{"alike", "cpu", false, true},
		{"alike, full for a while", "cpu", true, true},
		{"unlike", "gpu", false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := start(t, generate.Config{FailoverTimeout: time.Millisecond}) // a move has no such limit
			first := gatewaytest.NewBlock()
			a := r.Target(gatewaytest.WorkerOptions{ID: "a", Slots: 1, Contract: "cpu",
				Decode: first.Script(r.Tokenizer, text)})
			got := r.send(t.Context(), r.request())
			testwait.For(t, first.Admitted, "the answer's beginning")
			release := make(chan struct{})
			b := r.Target(gatewaytest.WorkerOptions{ID: "b", Slots: 1, Contract: tt.contract,
				Decode: func(req *tandemv1.DecodeRequest, stream tandemv1.TargetService_DecodeServer) error {
					if tt.full && len(req.GetCommittedTokens()) == 0 {
						<-release
					}
					return say(r, text, 1)(req, stream)
				}})
			var other <-chan outcome
			if tt.full {
				other = r.send(t.Context(), r.request())
				testwait.Until(t, "b is full", func() bool { return len(b.Requests()) == 1 })
			}
			asked, stay := r.Cluster.Targets.Move("a")
			if asked != count(tt.moves) || stay != count(!tt.moves) {
				t.Errorf("%d were asked, %d stay", asked, stay)
			}
			if tt.full {
				close(release)
				if o := testwait.For(t, other, "the other answer"); o.err != nil || o.texts[0] != text {
					t.Errorf("the other request: %q, %v", o.texts, o.err)
				}
			}
			if !tt.moves {
				close(first.Release)
			}
			reply := testwait.For(t, got, "the answer")
			if reply.err != nil || reply.texts[0] != text {
				t.Fatalf("%q, %v", reply.texts, reply.err)
			}
			replays := 0
			for _, q := range b.Requests() {
				replays += count(len(q.GetCommittedTokens()) > 0)
			}
			if replays != count(tt.moves) || len(a.Requests()) != 1 {
				t.Errorf("%d requests at a, %d replays at b", len(a.Requests()), replays)
			}
			if strings.Contains(r.Page(), "tandem_retries_total 1") {
				t.Error("a move was counted as a failure")
			}
			testwait.Until(t, "all slots are back", func() bool {
				x, _, _ := r.Cluster.Targets.Busy("a")
				y, _, _ := r.Cluster.Targets.Busy("b")
				return x+y == 0
			})
		})
	}
}

// TestSilentWorker: a request leaves a worker that neither sends nor answers for another one with the same bits, long
// before its lease ends. It stays with one that answers, and with one that is heard again before there is a slot.
func TestSilentWorker(t *testing.T) {
	const text = "one two three four five six seven eight"
	for _, tt := range []struct {
		name       string
		mute, full bool
		moves      bool
	}{
		{"silent", true, false, true},
		{"busy", false, false, false},
		{"heard again", true, true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := start(t, generate.Config{FailoverTimeout: time.Millisecond}) // a move has no such limit
			first, second := gatewaytest.NewBlock(), gatewaytest.NewBlock()
			a := r.Target(gatewaytest.WorkerOptions{ID: "a", Slots: 1, Contract: "cpu",
				Decode: first.Script(r.Tokenizer, text)})
			got := r.send(t.Context(), r.request())
			testwait.For(t, first.Admitted, "the answer's beginning")
			script := say(r, text, 1)
			if tt.full {
				script = second.Script(r.Tokenizer, text)
			}
			b := r.Target(gatewaytest.WorkerOptions{ID: "b", Slots: 1, Contract: "cpu", Decode: script})
			var other <-chan outcome
			if tt.full {
				other = r.send(t.Context(), r.request())
				testwait.For(t, second.Admitted, "the other request")
			}
			a.Mute(tt.mute)
			switch {
			case tt.full:
				testwait.Until(t, "a slot is waited for", func() bool { return r.Cluster.Targets.Queued() == 1 })
				a.Mute(false)
				close(first.Release)
			case !tt.mute:
				testwait.Until(t, "it answered three times", func() bool { return a.Asked() > 2 })
				close(first.Release)
			}
			reply := testwait.For(t, got, "the answer")
			if reply.err != nil || reply.texts[0] != text {
				t.Errorf("%q, %v", reply.texts, reply.err)
			}
			if tt.full {
				testwait.Until(t, "nothing is waited for", func() bool { return r.Cluster.Targets.Queued() == 0 })
				close(second.Release)
				if o := testwait.For(t, other, "the other answer"); o.err != nil || o.texts[0] != text {
					t.Errorf("the other request: %q, %v", o.texts, o.err)
				}
			}
			replays := 0
			for _, q := range b.Requests() {
				replays += count(len(q.GetCommittedTokens()) > 0)
			}
			if replays != count(tt.moves) || len(a.Requests()) != 1 {
				t.Errorf("%d requests at a, %d replays at b", len(a.Requests()), replays)
			}
			if strings.Contains(r.Page(), "tandem_retries_total 1") != tt.moves {
				t.Error("the counter of retries is wrong")
			}
			testwait.Until(t, "all slots are back", func() bool {
				x, _, _ := r.Cluster.Targets.Busy("a")
				y, _, _ := r.Cluster.Targets.Busy("b")
				return x+y == 0
			})
		})
	}
}

func count(yes bool) int {
	if yes {
		return 1
	}
	return 0
}
