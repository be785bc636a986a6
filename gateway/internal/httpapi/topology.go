package httpapi

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/cluster"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/registry"
)

type workerEntry struct {
	ID            string  `json:"id"`
	Role          string  `json:"role"`
	Address       string  `json:"address"`
	RemoteAddress string  `json:"remote_address,omitempty"` // where other hosts reach it, if address is a socket
	Backend       string  `json:"backend"`
	Device        string  `json:"device"`
	Model         string  `json:"model"`
	ModelDigest   string  `json:"model_digest,omitempty"`
	State         string  `json:"state"`
	Empty         bool    `json:"empty,omitempty"` // it drains and has no work left
	MaxCtx        int32   `json:"max_ctx"`
	Lanes         int32   `json:"lanes"`
	LanesBusy     int     `json:"lanes_busy"`
	LastHeartbeat int64   `json:"last_heartbeat_ms"`
	RTT           float64 `json:"rtt_ms"`
	Version       string  `json:"version"`
	// Contract id and the engine's arithmetic in words.
	Contract string `json:"contract,omitempty"`
	Numerics string `json:"numerics,omitempty"`
	// Stages of a target whose layers are spread over several engines.
	Stages   []stageEntry `json:"stages,omitempty"`
	Epoch    uint64       `json:"epoch"`
	Restarts int32        `json:"engine_restarts"`
	// Sequences in the engine, and those of them that belong to no request.
	Sequences int32    `json:"engine_sequences"`
	Orphans   int32    `json:"orphaned_sequences"`
	Drafts    []string `json:"drafts,omitempty"`
	Attached  []string `json:"attached,omitempty"`
	// Refused are drafts that a target cannot use.
	Refused []refusedEntry `json:"refused_drafts,omitempty"`
	// LoadedBytes of LoadBytes of weights, while a model is being loaded.
	LoadedBytes uint64             `json:"loaded_bytes,omitempty"`
	LoadBytes   uint64             `json:"load_bytes,omitempty"`
	Counters    map[string]float64 `json:"counters,omitempty"`
	Speculation *speculationEntry  `json:"speculation,omitempty"`
	Routing     *routingEntry      `json:"routing,omitempty"`
}

// stageEntry is an engine with layers from LayerFirst to before LayerLast, and how it gets hidden rows.
type stageEntry struct {
	Device     string `json:"device"`
	LayerFirst int32  `json:"layer_first"`
	LayerLast  int32  `json:"layer_last"`
	Rows       string `json:"rows,omitempty"`
}

// stagesOf lists the engines of a worker: a target in several says so itself, of others the model says it.
func stagesOf(reg *tandemv1.Registration) []stageEntry {
	var list []stageEntry
	for _, p := range reg.GetStages() {
		list = append(list, stageEntry{p.GetDevice(), p.GetLayerFirst(), p.GetLayerLast(), p.GetRows()})
	}
	if m := reg.GetModel(); list == nil && m.GetLayerLast() > m.GetLayerFirst() {
		list = []stageEntry{{Device: reg.GetDevice(), LayerFirst: m.GetLayerFirst(), LayerLast: m.GetLayerLast()}}
	}
	return list
}

// routingEntry is what decides which requests a target gets, and what became of it.
type routingEntry struct {
	States       int `json:"states"`
	StatesOnDisk int `json:"states_on_disk"`
	StateTokens  int `json:"state_tokens"`
	// Requests by how they came here.
	ByPrefix  uint64 `json:"by_prefix"`
	ByPeer    uint64 `json:"by_peer"` // it was expected to fetch a begin of the prompt
	BySession uint64 `json:"by_session"`
	ByLoad    uint64 `json:"by_load"`
	// Prompt tokens that the target was believed to hold, and those of them that it had.
	ExpectedTokens uint64 `json:"expected_tokens"`
	HadTokens      uint64 `json:"had_tokens"`
	// Requests for which the target was told of another one that holds clearly more.
	PeersNamed uint64             `json:"peers_named"`
	Fetched    transferEntry      `json:"fetched"`
	Served     transferEntry      `json:"served"`
	Skipped    float64            `json:"fetches_skipped"`
	Failed     map[string]float64 `json:"fetches_failed"` // by reason
}

// transferEntry counts states that went from one target to another.
type transferEntry struct {
	States float64 `json:"states"`
	Tokens float64 `json:"tokens"`
	Bytes  float64 `json:"bytes"`
	MS     float64 `json:"ms,omitempty"`
	Failed float64 `json:"failed,omitempty"`
}

// failedFetches begins the names of counters of fetches that failed, by reason.
const failedFetches = "peer_fetches_failed_"

// routingOf is the routing of a target, from its heartbeat and from what the gateway counts.
func routingOf(hb *tandemv1.Heartbeat, r cluster.Routed) *routingEntry {
	n := finite(hb.GetCounters())
	e := &routingEntry{
		ByPrefix: r.Prefix, ByPeer: r.Peer, BySession: r.Session, ByLoad: r.Load,
		ExpectedTokens: r.Expected, HadTokens: r.Hit, PeersNamed: r.Named,
		Fetched: transferEntry{
			States: n["peer_fetches"], Tokens: n["peer_fetched_tokens"], Bytes: n["peer_fetched_bytes"],
			MS: 1000 * n["peer_fetch_seconds"],
		},
		Served: transferEntry{
			States: n["peer_sends"], Tokens: n["peer_sent_tokens"], Bytes: n["peer_sent_bytes"], Failed: n["peer_sends_failed"],
		},
		Skipped: n["peer_fetches_skipped"], Failed: map[string]float64{},
	}
	for name, count := range n {
		if reason, ok := strings.CutPrefix(name, failedFetches); ok && count > 0 {
			e.Failed[reason] = count
			e.Fetched.Failed += count
		}
	}
	for _, s := range hb.GetPrefixes().GetStates() {
		e.States++
		e.StateTokens += int(s.GetTokens())
		if s.GetOnDisk() {
			e.StatesOnDisk++
		}
	}
	return e
}

type refusedEntry struct {
	Draft  string `json:"draft"`
	Reason string `json:"reason"`
}

// refusedOf names the drafts that a target refuses.
func refusedOf(workers []registry.Worker, drafts []*tandemv1.RefusedDraft) []refusedEntry {
	var list []refusedEntry
	for _, d := range drafts {
		list = append(list, refusedEntry{Draft: draftAt(workers, d.GetAddress()), Reason: d.GetReason()})
	}
	return list
}

// speculationEntry is what a target believes of speculation; see tandem.v1.AutoSpeculation.
type speculationEntry struct {
	StepMS           map[string]float64 `json:"step_ms"`          // by rows
	PromptMS         map[string]float64 `json:"prompt_ms"`        // by rows
	PromptBesideMS   map[string]float64 `json:"prompt_beside_ms"` // by rows
	DraftMS          float64            `json:"draft_ms"`
	DraftBlock       int32              `json:"draft_block"`
	HopMS            float64            `json:"hop_ms"`
	FirstAccepted    float64            `json:"first_accepted"`
	FourthAccepted   float64            `json:"fourth_accepted"`
	Outlook          float64            `json:"outlook"`
	WithoutDraft     float64            `json:"without_draft"`
	HeldBack         bool               `json:"held_back"`
	TokensSinceDraft int64              `json:"tokens_since_draft"`
	Reason           string             `json:"reason"`
}

func speculationOf(m *tandemv1.AutoSpeculation) *speculationEntry {
	if m == nil {
		return nil
	}
	return &speculationEntry{
		StepMS: byRows(m.Steps), PromptMS: byRows(m.Prompts), PromptBesideMS: byRows(m.PromptsBeside),
		DraftMS: m.DraftMs, DraftBlock: m.DraftBlock, HopMS: m.HopMs,
		FirstAccepted: m.FirstAccepted, FourthAccepted: m.FourthAccepted, Outlook: m.Outlook,
		WithoutDraft: m.WithoutDraft, HeldBack: m.HeldBack, TokensSinceDraft: m.TokensSinceDraft, Reason: m.Reason,
	}
}

// byRows maps numbers of rows to milliseconds.
func byRows(steps []*tandemv1.StepTime) map[string]float64 {
	ms := map[string]float64{}
	for _, s := range steps {
		ms[strconv.Itoa(int(s.GetRows()))] = s.GetMs()
	}
	return ms
}

type groupEntry struct {
	Target string   `json:"target"`
	Drafts []string `json:"drafts"`
	Model  string   `json:"model"`
	Served bool     `json:"served"`
}

type topologyBody struct {
	Workers []workerEntry `json:"workers"`
	Groups  []groupEntry  `json:"groups"`
}

// finite leaves out of a worker's counters what JSON has no number for: one worker's NaN is not to hide all others.
func finite(counters map[string]float64) map[string]float64 {
	out := make(map[string]float64, len(counters))
	for name, v := range counters {
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			out[name] = v
		}
	}
	return out
}

// roleName is the name of a role in /cluster.
func roleName(r tandemv1.Role) string {
	if r == tandemv1.Role_ROLE_PREFILL {
		return "scorer"
	}
	return registry.RoleName(r)
}

// workers lists the registry's table.
func (s *Server) workers() topologyBody {
	out := topologyBody{Workers: []workerEntry{}, Groups: []groupEntry{}}
	workers := s.cluster.Workers()
	for _, w := range workers {
		reg, hb := w.Registration, w.Heartbeat
		e := workerEntry{
			ID: w.ID, Role: roleName(reg.GetRole()), Address: reg.GetAddress(), RemoteAddress: reg.GetRemoteAddress(),
			Backend: reg.GetBackend(), Device: reg.GetDevice(), Model: reg.GetModel().GetName(),
			ModelDigest: reg.GetModel().GetDigest(), State: w.State, MaxCtx: reg.GetLimits().GetMaxContext(),
			Lanes: reg.GetLimits().GetLanes(), LanesBusy: int(hb.GetLanesBusy()),
			LastHeartbeat: time.Since(w.LastHeartbeat).Milliseconds(), RTT: hb.GetRttMs(),
			Version: reg.GetVersion(), Contract: reg.GetContract(), Numerics: reg.GetNumerics(),
			Stages: stagesOf(reg), Epoch: w.Epoch,
			Restarts: hb.GetEngineRestarts(), Drafts: w.Drafts, Attached: hb.GetAttached(),
			Refused: refusedOf(workers, hb.GetRefusedDrafts()), Sequences: hb.GetEngineSequences(),
			Orphans: hb.GetOrphanedSequences(), LoadedBytes: hb.GetLoadedBytes(),
			LoadBytes: hb.GetLoadBytes(), Counters: finite(hb.GetCounters()), Speculation: speculationOf(hb.GetSpeculation()),
		}
		busy, _, served := s.targets.Busy(w.ID)
		if served {
			e.LanesBusy = busy
		}
		e.Empty = w.Idle && busy == 0
		if routed, ok := s.targets.RoutedTo(w.ID); ok {
			e.Routing = routingOf(hb, routed)
		}
		out.Workers = append(out.Workers, e)
		if reg.GetRole() == tandemv1.Role_ROLE_TARGET {
			out.Groups = append(out.Groups,
				groupEntry{Target: w.ID, Drafts: append([]string{}, w.Drafts...), Model: e.Model, Served: served})
		}
	}
	return out
}

// topology serves /cluster.
func (s *Server) topology(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, http.StatusOK, s.workers())
}
