package registry

import (
	"slices"
	"strings"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
)

// Compatible reports whether a draft can serve a target: same vocabulary, trained on the target's hidden size, and
// every captured layer exists. A draft that does not know one of these facts (empty digest, zero size) is not refused
// here: the two compare again when the target attaches.
func Compatible(target, draft *tandemv1.ModelInfo) bool {
	if t, d := target.GetTokenizerDigest(), draft.GetTokenizerDigest(); t != "" && d != "" && t != d {
		return false
	}
	if t, d := target.GetHidden(), draft.GetHidden(); t != 0 && d != 0 && t != d {
		return false
	}
	if t, d := target.GetVocab(), draft.GetVocab(); t != 0 && d != 0 && t != d {
		return false
	}
	for _, l := range draft.GetCaptureLayers() {
		if n := target.GetNLayers(); n != 0 && (l < 0 || l >= n) {
			return false
		}
	}
	return true
}

// assign shares the drafts out among the targets and pokes the targets whose list changed; the caller holds mu.
//
// Rules: pairs that still fit are kept, because an attached draft holds features that another would have to be sent
// again. A free draft goes to the target with the fewest. A target without any takes one from a target that has two or
// more, else it shares the draft that serves the fewest targets. Lost and draining drafts are given to nobody.
func (s *Server) assign() {
	targets, drafts := s.live(tandemv1.Role_ROLE_TARGET), s.live(tandemv1.Role_ROLE_DRAFT)
	have := make(map[*entry][]string, len(targets))
	serves := make(map[string]int, len(drafts))
	fits := func(t, d *entry) bool { return Compatible(t.w.Registration.GetModel(), d.w.Registration.GetModel()) }
	give := func(t *entry, id string) {
		have[t] = append(have[t], id)
		serves[id]++
	}
	for _, t := range targets {
		for _, d := range drafts {
			if s.keeps(t, d) && fits(t, d) {
				give(t, d.w.ID)
			}
		}
	}
	for _, d := range drafts {
		if serves[d.w.ID] > 0 {
			continue
		}
		if t := fewest(targets, func(t *entry) (int, bool) { return len(have[t]), fits(t, d) }); t != nil {
			give(t, d.w.ID)
		}
	}
	for _, t := range targets {
		if len(have[t]) > 0 {
			continue
		}
		if d, from := spare(targets, drafts, have, func(d *entry) bool { return fits(t, d) }); d != nil {
			have[from] = slices.DeleteFunc(have[from], func(id string) bool { return id == d.w.ID })
			serves[d.w.ID]--
			give(t, d.w.ID)
		} else if d := fewest(drafts, func(d *entry) (int, bool) { return serves[d.w.ID], fits(t, d) }); d != nil {
			give(t, d.w.ID)
		}
	}
	for _, e := range s.workers {
		list := have[e]
		slices.Sort(list)
		if !slices.Equal(list, e.drafts) {
			e.drafts = list
			poke(e)
		}
	}
}

// live returns the workers of a role that may be paired, ordered by id. Starting drafts count: their address is known,
// and the target attaches when they answer. A worker that is lost or draining has no pairs.
func (s *Server) live(role tandemv1.Role) []*entry {
	var out []*entry
	for _, e := range s.workers {
		if e.w.Registration.GetRole() == role && (e.w.State == StateReady || e.w.State == StateStarting) {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b *entry) int { return strings.Compare(a.w.ID, b.w.ID) })
	return out
}

// fewest returns the entry with the smallest count among those that fit, the first on ties, or nil.
func fewest(list []*entry, count func(*entry) (int, bool)) *entry {
	var best *entry
	least := 0
	for _, e := range list {
		if n, ok := count(e); ok && (best == nil || n < least) {
			best, least = e, n
		}
	}
	return best
}

// spare finds a fitting draft at a target that has more than one, and that target.
func spare(targets, drafts []*entry, have map[*entry][]string, fits func(*entry) bool) (draft, from *entry) {
	for _, t := range targets {
		if len(have[t]) < 2 {
			continue
		}
		for _, d := range drafts {
			if slices.Contains(have[t], d.w.ID) && fits(d) {
				return d, t
			}
		}
	}
	return nil, nil
}
