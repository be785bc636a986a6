package prefix

import (
	"slices"
	"strings"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/worker-target/internal/disk"
)

// mostReported bounds the entries that heartbeats name.
const mostReported = 1024

// Space returns the namespace of a contract id and an isolation.
func Space(contract, isolation string) string { return contract + " " + isolation }

// isolationOf returns the isolation of a namespace.
func isolationOf(space string) string {
	_, isolation, _ := strings.Cut(space, " ")
	return isolation
}

// Report lists the states in memory and then those on disk alone for the gateway, the most recently used first, as of
// the last change; nil when the cache is off. It is made once for a version and must not be changed.
func (c *Cache) Report() *tandemv1.Prefixes {
	if c == nil {
		return nil
	}
	onDisk, perToken := uint64(0), float64(0)
	if c.tier != nil {
		onDisk = c.tier.disk.Store.Version()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tier != nil {
		perToken = float64(c.tier.perToken(c.perKV)) / float64(time.Millisecond)
	}
	if version := c.version + onDisk + 1; c.report.GetVersion() == version {
		if c.report.DiskTokenMs != perToken { // a message that was handed out stays as it is
			c.report = &tandemv1.Prefixes{Version: version, States: c.report.States, DiskTokenMs: perToken}
		}
		return c.report
	}
	all := make([]*Entry, 0, len(c.entries))
	for e := range c.entries {
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b *Entry) int { return b.used.Compare(a.used) })
	p := &tandemv1.Prefixes{DiskTokenMs: perToken}
	known := map[uint64]bool{}
	for _, e := range all[:min(len(all), mostReported)] {
		p.States = append(p.States, &tandemv1.PrefixState{Digest: e.digest, Tokens: int32(e.length)})
		known[e.digest] = true
	}
	if c.tier != nil {
		var held []disk.Held
		held, onDisk = c.tier.disk.Store.Held()
		for _, h := range held {
			if len(p.States) < mostReported && !known[h.Number] {
				p.States = append(p.States, &tandemv1.PrefixState{Digest: h.Number, Tokens: int32(h.Tokens), OnDisk: true})
			}
		}
	}
	p.Version = c.version + onDisk + 1
	c.report = p
	return p
}
