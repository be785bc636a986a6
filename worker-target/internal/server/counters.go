package server

import (
	"context"
	"errors"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/telemetry"
	"github.com/tandem-inference/tandem/worker-target/internal/decode"
	"github.com/tandem-inference/tandem/worker-target/internal/peers"
	"go.uber.org/zap"
)

// counters of the worker since its start, for heartbeats.
type counters struct {
	requests, failed, cancelled                      float64
	prompt, tokens                                   float64
	steps, plain, drafted, accepted, late, malformed float64
	lookDrafted, lookAccepted                        float64
	degraded, readAgain                              float64
	ahead                                            float64 // tokens that were read ahead
	prefill, decode, verify, wait                    float64 // seconds
}

const (
	// mostRefusedDrafts and mostReason bound what heartbeats tell of refused drafts: number, and bytes of a reason.
	mostRefusedDrafts = 16
	mostReason        = 512
)

// plain cuts a text to at most n bytes, without control characters: a draft may have had a part in it.
func plain(text string, n int) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	for len(text) > n {
		_, size := utf8.DecodeLastRuneInString(text)
		text = text[:len(text)-size]
	}
	return text
}

// statsTimeout bounds the wait of a heartbeat for an engine that does not answer.
const statsTimeout = time.Second

// counted are the names of engine.Stat that are sent.
var counted = []string{"graph_runs", "graph_captures", "list_runs"}

// engineStats reads the counters of the engine into h. It leaves those out that no engine has sent yet.
func (s *Server) engineStats(h *tandemv1.Heartbeat) {
	now, err := s.deps.Engines.Engine()
	var stats []engine.Stat
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), statsTimeout)
		defer cancel()
		stats, err = now.Stats(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.engineTotals.Add(now, stats)
	}
	all := s.engineTotals.All()
	for _, name := range counted {
		if value, known := all[name]; known {
			h.Counters[name] = float64(value)
		}
	}
}

func (s *Server) account(stats *decode.Stats, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &s.counters
	c.requests++
	switch {
	case errors.Is(err, context.Canceled):
		c.cancelled++
	case err != nil:
		c.failed++
	}
	c.prompt += float64(stats.PrefillTokens)
	c.tokens += float64(stats.Emitted)
	c.steps += float64(stats.Steps)
	c.plain += float64(stats.Plain)
	c.drafted += float64(stats.Drafted)
	c.accepted += float64(stats.Accepted)
	c.lookDrafted += float64(stats.LookDrafted)
	c.lookAccepted += float64(stats.LookAccepted)
	c.late += float64(stats.Late)
	c.malformed += float64(stats.Malformed)
	c.readAgain += float64(stats.ReadAgain)
	if stats.Degraded {
		c.degraded++
	}
	c.prefill += stats.Prefill.Seconds()
	c.decode += stats.Decode.Seconds()
	c.verify += stats.Verify.Seconds()
	c.wait += stats.DraftWait.Seconds()
}

// Heartbeat fills in slots and counters.
func (s *Server) Heartbeat(h *tandemv1.Heartbeat) {
	h.LanesBusy = int32(s.Busy())
	s.mu.Lock()
	c := s.counters
	s.mu.Unlock()
	s.forgetLost()
	p, m := s.deps.Prefixes.Stats(), s.members.Stats()
	h.Prefixes = s.deps.Prefixes.Report()
	h.Counters = map[string]float64{
		"requests": c.requests, "requests_failed": c.failed, "requests_cancelled": c.cancelled,
		"requests_degraded": c.degraded,
		"prompt_tokens":     c.prompt, "generated_tokens": c.tokens,
		"verify_steps": c.steps, "plain_steps": c.plain, "drafted_tokens": c.drafted, "accepted_tokens": c.accepted,
		"lookup_drafted_tokens": c.lookDrafted, "lookup_accepted_tokens": c.lookAccepted,
		"proposals_late": c.late, "proposals_malformed": c.malformed,
		"prefill_seconds": c.prefill, "decode_seconds": c.decode, "verify_seconds": c.verify, "draft_wait_seconds": c.wait,
		"read_ahead_tokens": c.ahead, "read_ahead_hits": float64(p.Ahead.Hits),
		"read_ahead_used_tokens": float64(p.Ahead.Used), "read_ahead_wasted_tokens": float64(p.Ahead.Wasted),
		"read_ahead_stops":     float64(s.ahead.stopCount()),
		"prefix_cache_lookups": float64(p.Lookups), "prefix_cache_hits": float64(p.Hits),
		"prefix_cache_tokens":    float64(p.Tokens),
		"prefix_cache_evictions": float64(p.Evictions), "prefix_cache_refusals": float64(p.Refusals),
		"prefix_cache_failures": float64(p.Failures),
		"prefix_cache_entries":  float64(p.Entries), "prefix_cache_bytes": float64(p.Bytes),
		"preemptions": float64(m.Preemptions), "requests_parked": float64(m.Parked),
		"resumed_from_memory": float64(m.Restored), "resumed_by_reading": float64(m.Recomputed),
		"slow_readers": float64(m.Away), "tokens_read_again": c.readAgain,
	}
	if d, ok := s.deps.Prefixes.DiskStats(); ok {
		for name, n := range map[string]uint64{
			"lookups": d.Lookups, "hits": d.Hits, "tokens": d.Tokens, "writes": d.Writes, "refusals": d.Refusals + p.Unwritten,
			"evictions": d.Evictions, "damaged": d.Damaged, "states": uint64(d.States), "bytes": d.Bytes,
		} {
			h.Counters["prefix_cache_disk_"+name] = float64(n)
		}
	}
	s.peerStats(h)
	s.engineStats(h)
	if d := s.deps.Drafts; d != nil {
		h.Speculation = s.speculation()
		h.Attached = d.Attached()
		h.Counters["drafts_refused"] = float64(d.Refused())
		for _, r := range d.RefusedNow() {
			if len(h.RefusedDrafts) < mostRefusedDrafts {
				h.RefusedDrafts = append(h.RefusedDrafts,
					&tandemv1.RefusedDraft{Address: r.Address, Reason: plain(r.Reason, mostReason)})
			}
		}
	}
}

// peerStats adds what was fetched from other workers and sent to them.
func (s *Server) peerStats(h *tandemv1.Heartbeat) {
	if s.deps.Peers == nil {
		return
	}
	got, sent := s.deps.Peers.Stats(), s.sender.Stats()
	for name, n := range map[string]float64{
		"peer_fetches": float64(got.Fetched), "peer_fetched_tokens": float64(got.Tokens),
		"peer_fetched_bytes": float64(got.Bytes), "peer_fetch_seconds": got.Seconds,
		"peer_fetches_skipped": float64(got.Skipped),
		"peer_sends":           float64(sent.Sent), "peer_sent_tokens": float64(sent.Tokens), "peer_sent_bytes": float64(sent.Bytes),
		"peer_sends_failed": float64(sent.Failed),
	} {
		h.Counters[name] = n
	}
	for _, reason := range peers.Reasons {
		h.Counters["peer_fetches_failed_"+reason] = float64(got.Failures[reason])
	}
}

// speculation returns what automatic speculation believes, and logs when it begins and ends to hold the draft back.
func (s *Server) speculation() *tandemv1.AutoSpeculation {
	r := s.deps.Model.Report()
	s.mu.Lock()
	before := s.held
	s.held = r.Held
	s.mu.Unlock()
	switch {
	case r.Held && !before:
		s.deps.Log.Info("automatic speculation holds the draft back", zap.Int(telemetry.KeyTokens, r.Without),
			zap.String(telemetry.KeyReason, r.Why()))
	case !r.Held && before:
		s.deps.Log.Info("automatic speculation uses the draft again", zap.String(telemetry.KeyReason, r.Why()))
	}
	return r.Message()
}
