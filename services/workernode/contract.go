package workernode

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/tandem-inference/tandem/services/engine"
)

// contractVersion is raised when the worker's part of the arithmetic changes: the cuts of prompts and how tokens
// are replayed.
const contractVersion = 1

// Contract returns the contract id of an open engine, 32 hex digits: workers with equal ids compute the same bits for
// the same request, drafted or not. It is a digest over the digest of the model file, the engine's arithmetic, the
// types of cached keys and values, the layers and, where prompts have bits of their own, the cuts of prompts.
// prefillChunk is the worker's setting in rows, 0 = the engine's widest step.
func Contract(digest string, info engine.Info, prefillChunk int) string {
	// Where a prompt is cut changes bits only if a step can be wider than what has the bits of decoding.
	chunk := info.MaxBatchRows
	if prefillChunk > 0 {
		chunk = min(chunk, prefillChunk)
	}
	rows := info.PromptRows
	if rows == 0 || chunk <= rows {
		rows, chunk = 0, 0
	}
	sum := sha256.Sum256(fmt.Appendf(nil,
		"tandem contract %d\nmodel %s\nnumerics %q\nkv %d %d\nprompt %d %d\nlayers %d %d\n",
		contractVersion, digest, info.Numerics, info.KVTypeK, info.KVTypeV, rows, chunk, info.LayerFirst, info.LayerLast))
	return hex.EncodeToString(sum[:16])
}
