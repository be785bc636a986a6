package turn

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"github.com/tandem-inference/tandem/gateway/internal/reqjson"
)

// cacheScope is the isolation under which workers keep the states of a key's prompts. It does not reveal the
// key's digest.
func cacheScope(scope string) string {
	sum := sha256.Sum256([]byte("prefix cache " + scope))
	return "key-" + hex.EncodeToString(sum[:16])
}

// cacheControl is the member with which clients mark the end of the part that they will send again.
const cacheControl = "cache_control"

// CacheMarked reports whether a message, or a block of its content, is marked as the end of the part that the client
// will send again.
func CacheMarked(o reqjson.Object) bool {
	if o.Has(cacheControl) {
		return true
	}
	raw, _, ok := o.Peek("content")
	if !ok || reqjson.Kind(raw) != 'a' || !bytes.Contains(raw, []byte(`"`+cacheControl+`"`)) {
		return false
	}
	var blocks []json.RawMessage
	if json.Unmarshal(raw, &blocks) != nil {
		return false
	}
	for _, b := range blocks {
		var members map[string]json.RawMessage
		if json.Unmarshal(b, &members) != nil {
			continue // a string, or a type that the content's own reader refuses
		}
		if mark := members[cacheControl]; mark != nil && string(mark) != "null" {
			return true
		}
	}
	return false
}
