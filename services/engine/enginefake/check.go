package enginefake

import (
	"fmt"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/stepcheck"
)

// groupField names a field of a group.
func groupField(i int, name string) string { return fmt.Sprintf("groups[%d].%s", i, name) }

// check holds a step to the contract and fills e.w.groups, before anything changes.
func (e *Engine) check(step *engine.Step) error {
	groups, err := e.w.checker.Check(&e.info, step, func(id engine.Sequence) (*sequence, bool) {
		s, ok := e.sequences[id]
		return s, ok
	})
	if err != nil {
		return err
	}
	e.w.groups = e.w.groups[:0]
	for _, g := range groups {
		e.w.groups = append(e.w.groups, group{Group: g.Group, index: g.Index, s: g.S, rows: g.Rows, first: g.First})
	}
	return e.checkPages()
}

// Length implements stepcheck.Sequence, as do the methods below.
func (s *sequence) Length() int { return s.length() }

// Broken tells whether a cancelled step broke it.
func (s *sequence) Broken() bool { return s.broken }

// Pending counts the rows that wait for a commit.
func (s *sequence) Pending() int { return len(s.pending) }

// PendingRow describes one of them.
func (s *sequence) PendingRow(i int) (parent int32, kept bool) {
	return s.pending[i].parent, s.pending[i].kept
}

// Kept are the features that can be read.
func (s *sequence) Kept() stepcheck.Span { return s.kept.Span }
