package httpapi

import (
	"encoding/json"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"testing"

	"github.com/tandem-inference/tandem/services/gguf"
	"github.com/tandem-inference/tandem/services/tokenizer"
)

// parts notes the longest write.
type parts struct {
	*httptest.ResponseRecorder
	longest int
}

func (p *parts) Write(b []byte) (int, error) {
	p.longest = max(p.longest, len(b))
	return p.ResponseRecorder.Write(b)
}

// TestLongAnswersGoOutInParts: the answer of /tokenize, which may be 25 times as long as the text, is never in memory
// as a whole.
func TestLongAnswersGoOutInParts(t *testing.T) {
	f, err := gguf.Open(filepath.Join("..", "..", "..", "models", "tandem-tiny-target-q4_k_m.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tok, err := tokenizer.FromGGUF(f)
	if err != nil {
		t.Fatal(err)
	}
	var ids []int32
	for i := range 40_000 {
		ids = append(ids, int32(i%tok.VocabSize()))
	}
	for _, want := range [][]int32{ids, ids[:1], {}} {
		for _, withPieces := range []bool{false, true} {
			w := &parts{ResponseRecorder: httptest.NewRecorder()}
			if err := writeTokens(w, tok, want, withPieces); err != nil {
				t.Fatal(err)
			}
			var got struct {
				Tokens []json.RawMessage
				Count  int
			}
			if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || got.Count != len(want) || got.Tokens == nil {
				t.Fatalf("%v, count %d of %d", err, got.Count, len(want))
			}
			var back []int32
			var text []byte
			for _, raw := range got.Tokens {
				var p piece
				if withPieces {
					err = json.Unmarshal(raw, &p)
				} else {
					err = json.Unmarshal(raw, &p.ID)
				}
				if err != nil {
					t.Fatal(err)
				}
				back = append(back, p.ID)
				if p.Piece != nil {
					text = append(text, *p.Piece...)
				}
				for _, b := range p.Bytes {
					text = append(text, byte(b))
				}
			}
			if !slices.Equal(back, want) {
				t.Errorf("pieces %v: other ids", withPieces)
			}
			var bytes []byte
			for _, id := range want {
				bytes = append(bytes, tok.TokenBytes(id)...)
			}
			if withPieces && string(text) != string(bytes) {
				t.Error("the pieces have other bytes")
			}
			if w.longest > 2*answerPart {
				t.Errorf("pieces %v: %d bytes were written at once", withPieces, w.longest)
			}
		}
	}
}
