package app

import (
	"errors"
	"fmt"
)

// Planned are settings of features that this version does not have. They are accepted while they leave their feature off, so
// that one configuration serves several versions; a value that asks for the feature is refused rather than ignored.
type Planned struct {
	PrefixCacheSlots int    `default:"0" help:"Snapshots of the prefix cache in memory; not built yet, only 0."`
	PrefixCacheRAMMB int    `name:"prefix-cache-ram-mb" default:"0" help:"Memory of the prefix cache; not built yet, only 0."`
	KVCacheDir       string `name:"kv-cache-dir" placeholder:"DIR" help:"Folder of the prefix cache on disk; not built yet."`
	KVCacheBudget    int    `name:"kv-cache-budget" default:"0" help:"MiB of the prefix cache on disk; not built yet, only 0."`
	CacheIsolation   string `default:"shared" help:"Who may share cached prefixes; not built yet, only shared."`
	PflashAdaptive   bool   `help:"Let a session's draft acceptance set its keep ratio; not built yet."`
	PrefillSkipPark  bool   `help:"Never make room for the scorer on the target's device; not built yet."`
	LazyDraft        bool   `help:"Load the draft with the first request; not built yet."`
	FaWindow         int    `default:"0" help:"Window of the target's attention; not built yet, only 0 = full."`
	DraftSwa         int    `default:"0" help:"Window of the draft's attention; not built yet, only 0 = as its file says."`
	TargetLayerSplit string `placeholder:"LIST" help:"Layers by device of a target on several devices; not built yet."`
	PeerAccess       bool   `help:"Copy directly between devices of a split target; not built yet."`
}

// validate names every setting that asks for what is not there.
func (p *Planned) validate() error {
	var errs []error
	for _, f := range []struct {
		flag string
		on   bool
	}{
		{"prefix-cache-slots", p.PrefixCacheSlots != 0}, {"prefix-cache-ram-mb", p.PrefixCacheRAMMB != 0}, {"kv-cache-dir", p.KVCacheDir != ""},
		{"kv-cache-budget", p.KVCacheBudget != 0}, {"cache-isolation", p.CacheIsolation != "shared" && p.CacheIsolation != ""},
		{"pflash-adaptive", p.PflashAdaptive}, {"prefill-skip-park", p.PrefillSkipPark}, {"lazy-draft", p.LazyDraft}, {"fa-window", p.FaWindow != 0},
		{"draft-swa", p.DraftSwa != 0}, {"target-layer-split", p.TargetLayerSplit != ""}, {"peer-access", p.PeerAccess},
	} {
		if f.on {
			errs = append(errs, fmt.Errorf("--%s: this version does not have the feature", f.flag))
		}
	}
	return errors.Join(errs...)
}
