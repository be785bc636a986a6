package pflash

type fourgram [gram]int32

// anchorHits returns, for every 4-gram of the query window that occurs 1 to maxHits times in text, the positions of its
// occurrences. The window's 4-grams are hashed, so the text is read once however long it is.
func anchorHits(text, window []int32) []int {
	if len(text) < gram || len(window) < gram {
		return nil
	}
	type hits struct {
		count int
		at    [maxHits]int
	}
	grams := make(map[fourgram]*hits, len(window))
	for q := 0; q+gram <= len(window); q++ {
		g := fourgram(window[q : q+gram])
		if grams[g] == nil {
			grams[g] = &hits{}
		}
	}
	for p := 0; p+gram <= len(text); p++ {
		if h := grams[fourgram(text[p:p+gram])]; h != nil {
			if h.count < maxHits {
				h.at[h.count] = p
			}
			h.count++
		}
	}
	var out []int
	for q := 0; q+gram <= len(window); q++ {
		g := fourgram(window[q : q+gram])
		h := grams[g]
		if h != nil && h.count <= maxHits {
			out = append(out, h.at[:h.count]...)
		}
		delete(grams, g) // a repeated query 4-gram counts once
	}
	return out
}
