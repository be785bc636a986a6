package workernode

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/tandem-inference/tandem/services/engine"
)

// contractVersion is raised when the worker's part of the arithmetic changes: how the rule of cuts is obeyed and how
// tokens are replayed.
const contractVersion = 2

// cutUnit is the number of positions at whose multiples a prompt piece may be cut into steps without a change of bits.
const cutUnit = 64

// Contract returns the contract id of an open engine, 32 hex digits: workers with equal ids compute the same bits for
// the same request, drafted or not. It is a digest over the digest of the model file, the engine's arithmetic, the
// types of cached keys and values, the layers and, where prompts have bits of their own, the rule of their cuts.
// cuts names that rule (worker-target/internal/piece).
func Contract(digest string, info engine.Info, cuts string) string {
	widest := 0
	switch {
	case info.PromptRows == 0:
		cuts = ""
	case info.MaxBatchRows < cutUnit:
		widest = info.MaxBatchRows // such steps cut pieces where no other worker does
	}
	sum := sha256.Sum256(fmt.Appendf(nil,
		"tandem contract %d\nmodel %s\nnumerics %q\nkv %d %d\nprompt %d %q %d\nlayers %d %d\n",
		contractVersion, digest, info.Numerics, info.KVTypeK, info.KVTypeV, info.PromptRows, cuts, widest,
		info.LayerFirst, info.LayerLast))
	return hex.EncodeToString(sum[:16])
}
