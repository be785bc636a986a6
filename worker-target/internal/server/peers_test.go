package server

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/racetest"
	"github.com/tandem-inference/tandem/services/testwait"
	"github.com/tandem-inference/tandem/worker-target/internal/auto"
	"github.com/tandem-inference/tandem/worker-target/internal/decode"
	"github.com/tandem-inference/tandem/worker-target/internal/decode/output"
	"github.com/tandem-inference/tandem/worker-target/internal/drafts"
	"github.com/tandem-inference/tandem/worker-target/internal/drafttest"
	"google.golang.org/grpc"
)

// direct runs requests on a slot of its own, without a server, with drafts by address.
type direct struct {
	manager *drafts.Manager
	engine  engine.Target
	model   *auto.Model
	slot    *decode.Slot
}

func newDirect(t *testing.T, ctx context.Context, group *sync.WaitGroup, o enginefake.Options,
	named map[string]*drafttest.Draft) *direct {
	t.Helper()
	engine, err := enginefake.New(o).OpenTarget(ctx, engine.OpenOptions{
		ModelPath: "target", MaxSequences: 4, KVTypeK: engine.KVDefault, KVTypeV: engine.KVDefault,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	d := &direct{engine: engine, model: auto.New()}
	var addresses []string
	for a := range named {
		addresses = append(addresses, a)
	}
	d.manager = drafts.NewManager(drafts.Config{
		Engine:       func() (drafts.Engine, error) { return engine, nil },
		TablesDigest: func(context.Context) (string, error) { return "", nil },
		TablesFile:   func(context.Context) (string, error) { return "", errors.New("not asked for") },
		CacheDir:     filepath.Join(t.TempDir(), "cache"),
		Dial:         func(a string) (*grpc.ClientConn, error) { return named[a].Dial(a) },
	}, nil)
	group.Go(func() { _ = d.manager.Run(ctx) })
	d.manager.SetPeers(addresses)
	d.slot = decode.NewSlot(decode.Config{}, d.model, managed{d.manager})
	return d
}

// calibrated is newDirect with one draft, whose passes take forward as steps of the target take step, when they are
// attached and the target's steps are measured. It ends with the test, in whose bubble it runs; until then ctx lives.
func calibrated(t *testing.T, o enginefake.Options, forward, step time.Duration) (ctx context.Context, d *direct,
	draft *drafttest.Draft) {
	t.Helper()
	draft = drafttest.New(t, o, 0)
	draft.Set(drafttest.Faults{Forward: forward})
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	o.StepDelay = step
	d = newDirect(t, ctx, &group, o, map[string]*drafttest.Draft{"a": draft})
	t.Cleanup(func() {
		cancel()
		group.Wait()
		d.engine.Close()
	})
	time.Sleep(time.Second)
	if err := decode.Calibrate(ctx, d.engine, d.model); err != nil {
		t.Fatal(err)
	}
	return ctx, d, draft
}

// collect takes a request's output and calls back.
type collect struct {
	tokens []int32
	last   time.Time
	gap    time.Duration
	on     func(total int)
}

func (c *collect) Prefilled(output.Prefill) error {
	c.last = time.Now()
	return nil
}

func (c *collect) Committed(tokens []int32, _ []*tandemv1.PositionLogprobs, _ tandemv1.CloseKind) error {
	c.gap = max(c.gap, time.Since(c.last))
	c.last = time.Now()
	c.tokens = append(c.tokens, tokens...)
	if c.on != nil {
		c.on(len(c.tokens))
	}
	return nil
}

// TestHungDraft runs in virtual time: a draft that stops answering costs one deadline, is given up after two seconds of
// silence, and is used again once it answers.
func TestHungDraft(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		o := enginefake.Options{Accept: 1, BlockSize: 8}
		draft := drafttest.New(t, o, 0)
		draft.Set(drafttest.Faults{Forward: 2 * time.Millisecond})
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		target := o
		target.StepDelay = 10 * time.Millisecond
		target.Context = 1 << 16
		d := newDirect(t, ctx, &group, target, map[string]*drafttest.Draft{"a": draft})
		time.Sleep(time.Second)
		if n := len(d.manager.Attached()); n != 1 {
			t.Fatalf("%d drafts attached", n)
		}
		var stats decode.Stats
		hung, healed, heard := false, false, 0
		out := &collect{}
		out.on = func(total int) {
			switch {
			case total > 500 && !hung:
				hung = true
				draft.Set(drafttest.Faults{Silent: 1, Forward: 2 * time.Millisecond})
			case total > 1000 && !healed:
				healed = true
				_, _, heard, _ = draft.State()
				draft.Set(drafttest.Faults{Forward: 2 * time.Millisecond})
			}
		}
		_, err := d.slot.Run(ctx, d.engine, &decode.Request{
			ID: "r", Prompt: prompt(40, 1), Sampler: engine.DefaultSampler(), Max: 4000,
			Mode:        tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN,
			TopLogprobs: -1, Arrived: time.Now(),
		}, out, &stats)
		if err != nil {
			t.Fatal(err)
		}
		_, opened, answers, epoch := draft.State()
		t.Logf("longest gap %v, %d late, %d answers after the hang, %d streams, epoch %d", out.gap, stats.Late, answers-heard, opened, epoch)
		// At most the deadline of a first proposal after a loss, 100 ms, and a step of 10 ms.
		if out.gap > 110*time.Millisecond {
			t.Errorf("the answer stopped for %v", out.gap)
		}
		if opened < 2 || answers-heard < 100 || !stats.Degraded {
			t.Errorf("%d streams, %d answers after the hang, degraded %v", opened, answers-heard, stats.Degraded)
		}
		cancel()
		group.Wait()
		d.engine.Close()
	})
}

// TestRefusedDraftIsLeftAlone: a draft that does not match is asked ever more seldom, the reason is there to be shown,
// and its restart with another model ends the pause at once.
func TestRefusedDraftIsLeftAlone(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		o := enginefake.Options{Accept: 1, BlockSize: 8}
		wide := o
		wide.Vocab = 65
		draft := drafttest.New(t, wide, 0)
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		defer group.Wait()
		defer cancel()
		d := newDirect(t, ctx, &group, o, map[string]*drafttest.Draft{"a": draft})
		defer d.engine.Close()
		time.Sleep(time.Hour)
		// At 0, 10, 30, 70, 150 and 310 seconds, then every five minutes: 16 in an hour.
		if n := draft.Asked(); n < 14 || n > 18 {
			t.Errorf("asked %d times in an hour", n)
		}
		refused := d.manager.RefusedNow()
		if len(refused) != 1 || refused[0].Address != "a" || !strings.Contains(refused[0].Reason, "vocabulary") {
			t.Errorf("refused are %+v", refused)
		}
		if n := d.manager.Refused(); n != 1 {
			t.Errorf("the refusal was told %d times", n)
		}
		before := time.Now()
		draft.Restart(t, o)
		testwait.Until(t, "attached", func() bool { return len(d.manager.Attached()) == 1 })
		if took := time.Since(before); took > 5*time.Second {
			t.Errorf("attached %v after the restart", took)
		}
		if refused := d.manager.RefusedNow(); len(refused) != 0 {
			t.Errorf("still refused: %+v", refused)
		}
	})
}

// TestSeveralDrafts: of two drafts of one model both are used; one of another model and one of another vocabulary are
// refused and counted.
func TestSeveralDrafts(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		o := enginefake.Options{Accept: 1, BlockSize: 8}
		a, b := drafttest.New(t, o, 0), drafttest.New(t, o, 0)
		foreign := drafttest.New(t, o, 0)
		foreign.Digest = "draft-2"
		wide := o
		wide.Vocab = 65
		other := drafttest.New(t, wide, 0)
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		defer group.Wait()
		defer cancel()
		named := map[string]*drafttest.Draft{"a": a, "b": b, "c": foreign, "d": other}
		target := o
		target.StepDelay = time.Millisecond
		d := newDirect(t, ctx, &group, target, named)
		defer d.engine.Close()
		d.manager.SetPeers([]string{"a", "b"})
		testwait.Until(t, "both attached", func() bool { return len(d.manager.Attached()) == 2 })
		d.manager.SetPeers([]string{"a", "b", "c", "d"})
		testwait.Until(t, "others refused", func() bool { return d.manager.Refused() >= 2 })

		var wait sync.WaitGroup
		for i := range 2 {
			slot := decode.NewSlot(decode.Config{}, auto.New(), managed{d.manager})
			wait.Go(func() {
				var stats decode.Stats
				_, err := slot.Run(ctx, d.engine, &decode.Request{
					Prompt: prompt(40, int32(i)), Sampler: engine.DefaultSampler(), Max: 400,
					Mode: tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN, TopLogprobs: -1, Arrived: time.Now(),
				}, &collect{}, &stats)
				if err != nil || stats.Accepted < 100 {
					t.Errorf("request %d: %v, %+v", i, err, stats)
				}
			})
		}
		wait.Wait()
		_, opensA, _, _ := a.State()
		_, opensB, _, _ := b.State()
		if opensA != 1 || opensB != 1 {
			t.Errorf("%d and %d streams on two drafts", opensA, opensB)
		}
		// Drafts that leave the lease are let go.
		d.manager.SetPeers(nil)
		testwait.Until(t, "drafts gone", func() bool { return len(d.manager.Attached()) == 0 })
	})
}
