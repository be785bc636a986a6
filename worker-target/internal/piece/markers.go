package piece

import "github.com/tandem-inference/tandem/services/tokenizer"

// headerTexts begin a role's header in the templates of the architectures that are served.
var headerTexts = []string{"<|im_start|>"}

// MarkersOf returns the markers of a model's vocabulary.
func MarkersOf(t *tokenizer.Tokenizer) Markers {
	m := Markers{Ends: t.StopTokens()}
	for _, text := range headerTexts {
		if id, ok := t.ID(text); ok && t.TokenKind(id) == tokenizer.KindControl {
			m.Headers = append(m.Headers, id)
		}
	}
	return m
}
