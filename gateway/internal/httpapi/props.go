package httpapi

import (
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/modelcard"
	"github.com/tandem-inference/tandem/gateway/internal/toolcall"
	"github.com/tandem-inference/tandem/gateway/internal/turn"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/registry"
	"github.com/tandem-inference/tandem/services/sampling"
)

// Props are settings that /props shows.
type Props struct {
	Version         string
	MaxQueue        int
	DefaultThinking bool
	PflashMode      string
	PflashThreshold int
	PflashKeepRatio float64
}

func tiers(e *modelcard.Envelope) map[string]int {
	out := make(map[string]int, len(modelcard.Efforts))
	for i, name := range modelcard.Efforts {
		out[name] = e.Tiers[i]
	}
	return out
}

func efforts(supported bool) []string {
	if !supported {
		return []string{}
	}
	return modelcard.Efforts[:]
}

// generationDefaults are the sampler's defaults as requests get them, by the names that readers of /props know.
func generationDefaults(ctx int, card *tandemv1.Sampling) map[string]any {
	out := map[string]any{"n_ctx": ctx}
	for _, f := range sampling.Fields() {
		name := turn.SamplerNames(&f)[0]
		if f.Name == "repetition_penalty" {
			name = "repeat_penalty" // of all its names the one that llama.cpp reports
		}
		if f.Default != nil {
			out[name] = f.Number(card)
		}
	}
	return out
}

// samplers are the fields of the request that choose tokens; all of them work.
func samplers() map[string]bool {
	out := map[string]bool{}
	for _, f := range sampling.Fields() {
		out[turn.SamplerNames(&f)[0]] = true
	}
	return out
}

// props serves /props. Features that are not there hold null; what is reported is what runs.
func (s *Server) props(w http.ResponseWriter, r *http.Request) error {
	p := s.cfg.Props
	// Without a key paths are base names.
	shown := func(path string) any {
		switch {
		case path == "":
			return nil
		case !s.cfg.Keys.Open() && !s.hasKey(r):
			return filepath.Base(path)
		}
		return path
	}
	var name, path, arch, tokID, card any
	ctx := 0
	reasoning, tools := false, false
	var limits modelcard.Envelope
	var defaults *tandemv1.Sampling
	if m, err := s.model(); err == nil {
		name, arch, tokID, path = m.Name, m.Arch, m.Tokenizer.PreTokenizer(), shown(m.Path)
		ctx, reasoning, tools = s.Context(m), m.ThinkOpen >= 0, true
		limits = s.envelope(m)
		if limits.Card != nil {
			card, defaults = limits.Card.Raw, limits.Card.Sampling
		}
	}
	run := s.reported(shown)
	speculative, settings := len(run.sources) > 0, run.settings
	scorer := s.scorerReady != nil && s.scorerReady()
	return writeJSON(w, http.StatusOK, map[string]any{
		"api":        map[string]any{"endpoints": s.Endpoints()},
		"build_info": "tandem v" + p.Version + " props_schema=2",
		"budget_envelope": map[string]any{"model_card_source": limits.Source, "default_max_tokens": limits.MaxTokens,
			"hard_limit_reply_budget": limits.ReplyBudget, "think_max_tokens": limits.ThinkMax, "effort_tiers": tiers(&limits)},
		"capabilities": map[string]any{"reasoning_supported": reasoning, "speculative_supported": speculative,
			"tools_supported": tools},
		"daemon":                      map[string]any{"alive": s.targets.Ready()},
		"default_generation_settings": generationDefaults(ctx, defaults),
		"full_cache":                  nil,
		"model":                       map[string]any{"arch": arch, "draft_path": run.draftPath, "tokenizer_id": tokID},
		"model_alias":                 name,
		"model_card":                  card,
		"model_path":                  path,
		"pflash": map[string]any{"enabled": scorer && p.PflashMode != "off", "mode": p.PflashMode,
			"threshold":  p.PflashThreshold,
			"keep_ratio": p.PflashKeepRatio, "drafter_gguf": run.drafter, "skip_park": run.skipPark, "bsa_enabled": nil,
			"bsa_alpha": nil, "lm_head_fix": nil},
		"prefix_cache": run.prefixes.props(),
		"reasoning": map[string]any{"supported": reasoning, "default": p.DefaultThinking,
			"supported_efforts": efforts(reasoning)},
		"runtime": map[string]any{"backend": run.backend, "fa_window": count(settings["fa-window"]),
			"kv_cache_k": text(settings["cache-type-k"]), "kv_cache_v": text(settings["cache-type-v"]), "lazy_draft": run.lazy,
			"target_sharding": nil, "chunk": count(settings["chunk"]),
			"max_token_gap_ms": count(settings["max-token-gap-ms"]), "target_device": run.targetDevice,
			"draft_device": run.draftDevice},
		"sampling": map[string]any{"capabilities": samplers()},
		"server":   map[string]any{"name": "tandem", "version": p.Version, "props_schema": 2},
		"speculative": map[string]any{"enabled": speculative, "ddtree_budget": count(settings["ddtree-budget"]),
			"sources":        run.sources,
			"drafted_tokens": run.drafted, "accepted_tokens": run.accepted, "accept_rate": run.acceptRate()},
		"speculative_mode": run.mode(),
		"tool_replay":      s.toolReplay(),
		"tandem": map[string]any{"workers": s.workers().Workers,
			"queue":    map[string]any{"depth": s.targets.Queued(), "limit": p.MaxQueue},
			"features": map[string]any{"pflash": scorer, "speculation": speculative}},
	})
}

// reports is what the workers say of themselves; nil where none of the role is there. Of several workers of a role
// the last one counts, except for sums.
type reports struct {
	backend, targetDevice any
	settings              map[string]string // of the target
	draftDevice           any
	draftPath             any
	lazy                  bool
	drafter, skipPark     any // of the scorer
	// sources of speculation, in alphabetical order: draft, lookup.
	sources           []string
	drafted, accepted float64
	prefixes          prefixCaches
}

// reported collects what the workers report; shown gives the form of paths.
func (s *Server) reported(shown func(path string) any) *reports {
	out := &reports{settings: map[string]string{}, sources: []string{}}
	for _, wk := range s.cluster.Workers() {
		if wk.State == registry.StateLost {
			continue
		}
		switch wk.Registration.GetRole() {
		case tandemv1.Role_ROLE_TARGET:
			out.backend, out.targetDevice = wk.Registration.GetBackend(), wk.Registration.GetDevice()
			out.settings = wk.Registration.GetSettings()
			if len(wk.Heartbeat.GetAttached()) > 0 {
				out.sources = append(out.sources, "draft")
			}
			if out.settings["lookup"] == "true" {
				out.sources = append(out.sources, "lookup")
			}
			counters := finite(wk.Heartbeat.GetCounters())
			out.drafted += counters["drafted_tokens"]
			out.accepted += counters["accepted_tokens"]
			out.prefixes.add(out.settings, counters)
		case tandemv1.Role_ROLE_DRAFT:
			out.lazy = wk.Registration.GetSettings()["lazy-draft"] == "true"
			out.draftDevice, out.draftPath = wk.Registration.GetDevice(), shown(wk.Registration.GetModel().GetPath())
		case tandemv1.Role_ROLE_PREFILL:
			out.drafter = shown(wk.Registration.GetModel().GetPath())
			if after, err := time.ParseDuration(wk.Registration.GetSettings()["park-after"]); err == nil {
				out.skipPark = after == 0
			}
		}
	}
	slices.Sort(out.sources)
	out.sources = slices.Compact(out.sources)
	return out
}

func (r *reports) mode() string {
	switch {
	case slices.Contains(r.sources, "draft"):
		return "dflash"
	case len(r.sources) > 0:
		return "lookup"
	}
	return "off"
}

// acceptRate is nil before anything was drafted.
func (r *reports) acceptRate() any {
	if r.drafted == 0 {
		return nil
	}
	return r.accepted / r.drafted
}

// text is a setting of a worker, nil when it does not say.
func text(value string) any {
	if value == "" {
		return nil
	}
	return value
}

// count is a number among a worker's settings, nil when it does not say or leaves it to the engine.
func count(value string) any {
	if n, err := strconv.Atoi(value); err == nil && n > 0 {
		return n
	}
	return nil
}

// prefixCaches are the prefix caches of all targets together.
type prefixCaches struct {
	slots, ramMB                                     int
	entries, bytes, lookups, hits, tokens, evictions float64
	diskMB                                           int
	disk                                             map[string]float64
}

// diskCounters are those of /props, as workers name them.
var diskCounters = []string{"states", "bytes", "lookups", "hits", "tokens", "writes", "evictions", "damaged"}

// add adds the cache of a target with these settings and counters, unless it keeps nothing.
func (c *prefixCaches) add(settings map[string]string, counters map[string]float64) {
	slots, err1 := strconv.Atoi(settings["prefix-cache-slots"])
	ramMB, err2 := strconv.Atoi(settings["prefix-cache-ram-mb"])
	if err1 != nil || err2 != nil || slots <= 0 || ramMB <= 0 {
		return
	}
	c.slots, c.ramMB = c.slots+slots, c.ramMB+ramMB
	for name, sum := range map[string]*float64{"entries": &c.entries, "bytes": &c.bytes, "lookups": &c.lookups,
		"hits": &c.hits, "tokens": &c.tokens, "evictions": &c.evictions} {
		*sum += counters["prefix_cache_"+name]
	}
	if diskMB, err := strconv.Atoi(settings["kv-cache-budget"]); err == nil && diskMB > 0 {
		if c.disk == nil {
			c.disk = map[string]float64{}
		}
		c.diskMB += diskMB
		for _, name := range diskCounters {
			c.disk[name] += counters["prefix_cache_disk_"+name]
		}
	}
}

// props are those of /props; nil when no target keeps anything.
func (c *prefixCaches) props() any {
	if c.slots == 0 {
		return nil
	}
	return map[string]any{
		"capacity": c.slots, "in_use": c.entries, "ram_mb": c.ramMB, "bytes": c.bytes, "lifetime_lookups": c.lookups,
		"lifetime_hits": c.hits, "lifetime_tokens": c.tokens, "lifetime_evictions": c.evictions, "disk": c.diskProps(),
	}
}

// diskProps are the files of all targets together; nil when none has any.
func (c *prefixCaches) diskProps() any {
	if c.disk == nil {
		return nil
	}
	out := map[string]any{"budget_mb": c.diskMB}
	for name, n := range c.disk {
		if name != "states" && name != "bytes" { // these may fall again
			name = "lifetime_" + name
		}
		out[name] = n
	}
	return out
}

// toolReplay reports the memory of calls; nil when there is none.
func (s *Server) toolReplay() any {
	if s.memory == nil {
		return nil
	}
	calls, bytes := s.memory.Stats()
	return map[string]any{
		"max_entries": toolcall.MaxMemoryCalls, "max_bytes": toolcall.MaxMemoryBytes,
		"current_entries": calls, "current_bytes": bytes,
	}
}
