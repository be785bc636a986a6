package prefix

import (
	"slices"
	"strings"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
)

// mostReported bounds the entries that heartbeats name.
const mostReported = 1024

// Space is the namespace of a contract id and of what requests are kept apart by.
func Space(contract, isolation string) string { return contract + " " + isolation }

// isolationOf is the isolation of a namespace.
func isolationOf(space string) string {
	_, isolation, _ := strings.Cut(space, " ")
	return isolation
}

// Report lists the entries in memory for the gateway, those first that were used last when one came or went; nil when
// nothing is ever kept. It is made once for a version and not to be changed.
func (c *Cache) Report() *tandemv1.Prefixes {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.report.GetVersion() == c.version+1 {
		return c.report
	}
	all := make([]*Entry, 0, len(c.entries))
	for e := range c.entries {
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b *Entry) int { return b.used.Compare(a.used) })
	p := &tandemv1.Prefixes{Version: c.version + 1}
	for _, e := range all[:min(len(all), mostReported)] {
		p.States = append(p.States, &tandemv1.PrefixState{Digest: e.digest, Tokens: int32(e.length)})
	}
	c.report = p
	return p
}
