package tokenizer

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// firstAdded is the id of <|endoftext|>, the first added token of Qwen3.5.
const firstAdded = 248044

// TestQwenVocabularies compares ids under the real vocabularies of Qwen3 and Qwen3.5/3.6 with those of the vendors'
// reference libraries. The vocabularies are too large for the tree: tools/vocabularies.sh fetches them.
func TestQwenVocabularies(t *testing.T) {
	raw, err := os.ReadFile("testdata/qwen-encodings.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Added []string `json:"added"`
		Cases []struct {
			Text   string  `json:"text"`
			Qwen3  []int32 `json:"qwen3"`
			Qwen35 []int32 `json:"qwen3.5"`
		} `json:"cases"`
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Cases) < 200 {
		t.Fatalf("only %d cases", len(file.Cases))
	}
	for _, v := range []struct {
		name, file string
		load       func([]byte) (*Tokenizer, error)
	}{
		{"qwen3", "qwen3.json", FromJSON},
		{"qwen3.5", "qwen3.5.tiktoken", func(raw []byte) (*Tokenizer, error) { return fromRanks(raw, "qwen35", file.Added) }},
	} {
		t.Run(v.name, func(t *testing.T) {
			raw, err := os.ReadFile(filepath.Join("..", "..", "build", "vocabularies", v.file))
			if os.IsNotExist(err) {
				t.Skip("the vocabulary is not here: make vocabularies fetches it")
			}
			if err != nil {
				t.Fatal(err)
			}
			tok, err := v.load(raw)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range file.Cases {
				want := c.Qwen3
				if v.name == "qwen3.5" {
					want = c.Qwen35
				}
				got := tok.Encode(c.Text, Options{ParseSpecial: true})
				if len(got)+len(want) > 0 && !cmp.Equal(want, got) {
					t.Errorf("%q: %s", c.Text, cmp.Diff(want, got))
				}
				if got, want := tok.Decode(want, true), nfc(c.Text); got != want {
					t.Errorf("decoded %q, want %q", got, want)
				}
			}
		})
	}
}

// fromRanks builds a tokenizer from ranks in tiktoken's form: a line holds a token's bytes in Base64 and its rank,
// which is its id. Such a file has no merges. The two halves of a token are what merging its bytes by lower ranks alone
// leaves of it.
func fromRanks(raw []byte, pre string, added []string) (*Tokenizer, error) {
	ranks := map[string]int{}
	var words []string // by rank
	lines := bufio.NewScanner(bytes.NewReader(raw))
	for lines.Scan() {
		word, rank, _ := strings.Cut(lines.Text(), " ")
		b, err := base64.StdEncoding.DecodeString(word)
		if err != nil {
			return nil, err
		}
		r, err := strconv.Atoi(rank)
		if err != nil {
			return nil, err
		}
		ranks[string(b)] = r
		words = append(words, string(b))
	}
	tokens, kinds := make([]string, firstAdded+len(added)), make([]Kind, firstAdded+len(added))
	for i := range kinds {
		kinds[i] = KindUnused
	}
	type pair struct{ left, right string }
	var merges []pair
	for _, word := range words {
		rank := ranks[word]
		tokens[rank], kinds[rank] = inAlphabet(word), KindNormal
		if parts := mergeBelow(word, ranks, rank); len(parts) == 2 {
			merges = append(merges, pair{inAlphabet(parts[0]), inAlphabet(parts[1])})
		}
	}
	for i, text := range added {
		tokens[firstAdded+i], kinds[firstAdded+i] = text, KindUserDefined
		if strings.HasPrefix(text, "<|") {
			kinds[firstAdded+i] = KindControl
		}
	}
	at := func(i int) (string, string, error) { return merges[i].left, merges[i].right, nil }
	return build(pre, tokens, kinds, len(merges), at, -1)
}

// mergeBelow splits word into bytes and joins neighbours, lowest rank first, as long as the joint rank is below limit.
func mergeBelow(word string, ranks map[string]int, limit int) []string {
	parts := make([]string, 0, len(word))
	for i := range len(word) {
		parts = append(parts, word[i:i+1])
	}
	for {
		best, at := limit, -1
		for i := range len(parts) - 1 {
			if r, ok := ranks[parts[i]+parts[i+1]]; ok && r < best {
				best, at = r, i
			}
		}
		if at < 0 {
			return parts
		}
		parts[at] += parts[at+1]
		parts = append(parts[:at+1], parts[at+2:]...)
	}
}

func inAlphabet(word string) string {
	var b strings.Builder
	for _, c := range []byte(word) {
		b.WriteRune(byteRunes[c])
	}
	return b.String()
}
