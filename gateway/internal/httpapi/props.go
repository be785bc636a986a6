package httpapi

import (
	"net/http"
	"path/filepath"

	"github.com/tandem-inference/tandem/gateway/internal/modelcard"
	"github.com/tandem-inference/tandem/gateway/internal/toolcall"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/registry"
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

// or is the value of a default that may be absent.
func or[T any](v *T, fallback T) T {
	if v == nil {
		return fallback
	}
	return *v
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

// samplers are the fields of the request that choose tokens; all of them work.
var samplers = []string{"temperature", "top_p", "top_k", "min_p", "repetition_penalty", "rep_window", "frequency_penalty", "presence_penalty", "logit_bias", "seed"}

// props serves /props. Features that are not there hold null; what is reported is what runs.
func (s *Server) props(w http.ResponseWriter, r *http.Request) error {
	p := s.cfg.Props
	top := s.workers()
	var name, path, arch, tokID, card any
	ctx := 0
	reasoning, tools := false, false
	var limits modelcard.Envelope
	var defaults modelcard.Sampling
	if m, err := s.Model(); err == nil {
		name, arch, tokID, path = m.Name, m.Arch, m.Tokenizer.PreTokenizer(), m.Path
		if !s.cfg.Keys.Open() && !s.hasKey(r) {
			path = filepath.Base(m.Path)
		}
		ctx, reasoning, tools = s.Context(m), m.ThinkOpen >= 0, true
		limits = s.Envelope(m)
		if limits.Card != nil {
			card, defaults = limits.Card.Raw, limits.Card.Sampling
		}
	}
	backend, targetDevice, draftDevice, draftModel := any(nil), any(nil), any(nil), any(nil)
	speculative := false
	for _, wk := range s.Cluster.Workers() {
		if wk.State == registry.StateLost {
			continue
		}
		switch wk.Registration.GetRole() {
		case tandemv1.Role_ROLE_TARGET:
			backend, targetDevice = wk.Registration.GetBackend(), wk.Registration.GetDevice()
			speculative = speculative || len(wk.Heartbeat.GetAttached()) > 0
		case tandemv1.Role_ROLE_DRAFT:
			draftDevice, draftModel = wk.Registration.GetDevice(), wk.Registration.GetModel().GetName()
		}
	}
	mode := "off"
	if speculative {
		mode = "dflash"
	}
	scorer := s.ScorerReady != nil && s.ScorerReady()
	sampling := map[string]bool{}
	for _, f := range samplers {
		sampling[f] = true
	}
	return writeJSON(w, http.StatusOK, map[string]any{
		"api":        map[string]any{"endpoints": s.Endpoints()},
		"build_info": "tandem v" + p.Version + " props_schema=2",
		"budget_envelope": map[string]any{"model_card_source": limits.Source, "default_max_tokens": limits.MaxTokens,
			"hard_limit_reply_budget": limits.ReplyBudget, "think_max_tokens": limits.ThinkMax, "effort_tiers": tiers(&limits)},
		"capabilities": map[string]any{"reasoning_supported": reasoning, "speculative_supported": speculative, "tools_supported": tools},
		"daemon":       map[string]any{"alive": s.Cluster.Targets.Ready()},
		"default_generation_settings": map[string]any{"n_ctx": ctx, "temperature": or(defaults.Temperature, 0), "top_p": or(defaults.TopP, 1),
			"top_k": or(defaults.TopK, 0), "min_p": or(defaults.MinP, 0), "repeat_penalty": or(defaults.RepetitionPenalty, 1)},
		"full_cache":  nil,
		"model":       map[string]any{"arch": arch, "draft_path": draftModel, "tokenizer_id": tokID},
		"model_alias": name,
		"model_card":  card,
		"model_path":  path,
		"pflash": map[string]any{"enabled": scorer && p.PflashMode != "off", "mode": p.PflashMode, "threshold": p.PflashThreshold,
			"keep_ratio": p.PflashKeepRatio, "drafter_gguf": nil, "skip_park": nil, "bsa_enabled": nil, "bsa_alpha": nil, "lm_head_fix": nil},
		"prefix_cache": nil,
		"reasoning":    map[string]any{"supported": reasoning, "default": p.DefaultThinking, "supported_efforts": efforts(reasoning)},
		"runtime": map[string]any{"backend": backend, "fa_window": 0, "kv_cache_k": nil, "kv_cache_v": nil, "lazy_draft": false,
			"target_sharding": nil, "chunk": nil, "target_device": targetDevice, "draft_device": draftDevice},
		"sampling":         map[string]any{"capabilities": sampling},
		"server":           map[string]any{"name": "tandem", "version": p.Version, "props_schema": 2},
		"speculative":      map[string]any{"enabled": speculative, "ddtree_budget": nil},
		"speculative_mode": mode,
		"tool_replay":      s.toolReplay(),
		"tandem": map[string]any{"workers": top.Workers, "queue": map[string]any{"depth": s.Cluster.Targets.Queued(), "limit": p.MaxQueue},
			"features": map[string]any{"pflash": scorer, "speculation": speculative}},
	})
}

// toolReplay reports the memory of calls; nil when there is none.
func (s *Server) toolReplay() any {
	if s.OpenAI == nil || s.OpenAI.Turn == nil || s.OpenAI.Turn.Memory == nil {
		return nil
	}
	calls, bytes := s.OpenAI.Turn.Memory.Stats()
	return map[string]any{"max_entries": toolcall.MaxMemoryCalls, "max_bytes": toolcall.MaxMemoryBytes, "current_entries": calls, "current_bytes": bytes}
}
