package auto

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/services/ddtree"
)

// TestAnyBlock: whatever block size a draft announces, plans stay within what was announced, what a step verifies and
// what is wanted, and nothing that was learnt of one draft harms requests after it.
func TestAnyBlock(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	m := New()
	for _, rows := range []int{1, 8, 32} {
		m.SetVerify(rows, time.Duration(rows)*time.Millisecond)
	}
	blocks := []int{-1 << 31, -1, 0, 1, 1 << 30, 1<<31 - 1}
	for block := range 4096 {
		blocks = append(blocks, block+1)
	}
	for _, block := range blocks {
		for _, maxRows := range []int{0, 1, 2, 16, 64, 128, 5000} {
			p := m.NewRequest(0, maxRows, []int32{1, 2, 3, 4})
			p.Attach(block)
			limit := rng.IntN(300) - 10
			p.Held(100, limit)
			for range 3 {
				plan := p.Next(100, limit, rng.IntN(3))
				if plan.Kind == Plain && !plan.Probe {
					p.Observe(&Round{Plan: plan, Length: 100, Rows: 1, Verify: time.Millisecond})
					continue
				}
				if plan.Block < 2 || plan.Block > min(MaxBlock, max(maxRows, 1), limit) ||
					plan.Kind.Drafts() && plan.Block > block {
					t.Fatalf("block %d, %d rows, %d wanted: plan %+v", block, maxRows, limit, plan)
				}
				var tree ddtree.Tree
				tree.Reset(0)
				for node := range min(plan.Budget, plan.Block-1) {
					tree.Add(int32(node), int32(node), -float32(node)/10)
				}
				if plan.Probe {
					p.Probed(&tree, min(1, tree.Nodes()), []int32{0}, 100)
					continue
				}
				p.Cut(&tree, plan, 100)
				p.Observe(&Round{Plan: plan, Length: 100, Rows: tree.Len(), Verify: time.Millisecond, Draft: 2 * time.Millisecond,
					Tree: &tree, Path: []int32{0}})
			}
			if d := m.Deadline(block, time.Millisecond, time.Second); d < time.Millisecond || d > time.Second {
				t.Fatalf("block %d: deadline %v", block, d)
			}
		}
	}
}
