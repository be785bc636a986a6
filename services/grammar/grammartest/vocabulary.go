package grammartest

import (
	"math/rand/v2"
	"strings"
)

// Vocabulary draws n distinct texts of tokens in the shape of a vocabulary of a large model: words with and without a
// leading space, code, numbers, other scripts, and all bytes.
func Vocabulary(n int) []string {
	r := rand.New(rand.NewPCG(1, 2))
	seen := map[string]bool{}
	var list []string
	add := func(s string) {
		if !seen[s] {
			seen[s] = true
			list = append(list, s)
		}
	}
	for i := range 256 {
		add(string([]byte{byte(i)}))
	}
	letters := func(n int, from, span rune) string {
		out := make([]rune, n)
		for i := range out {
			// Squared: some letters are frequent, so that words share beginnings.
			x := r.Float64()
			out[i] = from + rune(x*x*float64(span))
		}
		return string(out)
	}
	marks := []string{`"`, `":`, `",`, `"}`, `"]`, "\n", "\n\n", "{", "}", "[", "]", ":", ",", "(", ")", ";", "\\", "\n",
		"<", ">", "</", "\t", "  "}
	for len(list) < n {
		size := 1 + r.IntN(4) + r.IntN(5)
		switch k := r.IntN(100); {
		case k < 40:
			add(" " + letters(size, 'a', 26))
		case k < 62:
			add(letters(size, 'a', 26))
		case k < 70:
			add(strings.ToUpper(letters(1, 'a', 26)) + letters(size, 'a', 26))
		case k < 78:
			add(letters(1+size/3, 0x4E00, 0x3000))
		case k < 86:
			add(letters(size, 0x430, 32))
		case k < 94:
			s := ""
			for range 1 + r.IntN(3) {
				s += marks[r.IntN(len(marks))]
			}
			if r.IntN(2) == 0 {
				s += letters(1+r.IntN(4), 'a', 26)
			}
			add(s)
		case k < 96:
			add(strings.Repeat(" ", 1+r.IntN(80)) + letters(r.IntN(2), 'a', 26))
		case k < 98:
			s := []byte(letters(1, 0x4E00, 0x5000))
			add(string(s[:1+r.IntN(2)]))
		default:
			add(letters(1+r.IntN(2), '!', 15) + letters(r.IntN(3), 'a', 26))
		}
	}
	return list
}
