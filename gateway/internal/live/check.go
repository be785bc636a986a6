package live

import (
	"math"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
)

// Bounds of events. They are checked here, and not by package bounds like other messages: its reflection took longer
// than everything else that an event costs.
const (
	mostEvents = 64      // of a message
	mostNodes  = 128     // of a round's tree
	mostTokens = 1 << 16 // of an event
	mostVocab  = 1 << 24
	mostRows   = 1 << 20
	mostUS     = int64(1e12)
)

// check reports whether the numbers of an event are in bounds, and its lists belong together.
func check(m *tandemv1.WatchEvent) bool {
	if m == nil || kinds[m.GetKind()] == "" {
		return false
	}
	for _, us := range [...]int64{m.GetProposedUs(), m.GetDraftUs(), m.GetStepBeginUs(), m.GetStepEndUs(), m.GetEngineUs(),
		m.GetEndUs()} {
		if us < 0 || us > mostUS {
			return false
		}
	}
	for _, n := range [...]struct{ value, most int32 }{
		{m.GetNumber(), math.MaxInt32}, {m.GetRows(), mostRows}, {m.GetBatchRows(), mostRows},
		{m.GetPosition(), math.MaxInt32}, {m.GetOutputIndex(), math.MaxInt32}, {m.GetCommitted(), mostTokens},
		{m.GetSkipped(), math.MaxInt32},
	} {
		if n.value < 0 || n.value > n.most {
			return false
		}
	}
	return checkTree(m) && len(m.GetTokens()) <= mostTokens && checkTokens(m.GetTokens(), m.GetOrigins())
}

// checkTree checks the nodes of a round and the path in them.
func checkTree(m *tandemv1.WatchEvent) bool {
	n := len(m.GetNodeTokens())
	if n > mostNodes || len(m.GetNodeParents()) != n || !checkTokens(m.GetNodeTokens(), m.GetNodeOrigins()) {
		return false
	}
	for i, p := range m.GetNodeParents() {
		if int(p) >= i || p < -1 || i > 0 && p < 0 {
			return false
		}
	}
	for _, node := range m.GetPath() {
		if node < 0 || int(node) >= n {
			return false
		}
	}
	return len(m.GetPath()) <= n
}

// checkTokens checks tokens with their origins.
func checkTokens(tokens []int32, of []tandemv1.TokenOrigin) bool {
	if len(of) != len(tokens) {
		return false
	}
	for i, token := range tokens {
		if token < 0 || token > mostVocab || origin(of[i]) == "" {
			return false
		}
	}
	return true
}
