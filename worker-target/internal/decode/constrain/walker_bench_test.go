package constrain

import (
	"testing"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/ddtree"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/grammar"
	"github.com/tandem-inference/tandem/services/grammar/grammartest"
	"github.com/tandem-inference/tandem/worker-target/internal/constraint"
)

// document is what the model of BenchmarkRound writes, and the grammar that it writes under.
const (
	document        = `{"name": "some text here", "list": [1, 2.5, -3, {"deep": {"er": ["a", "b", null, true]}}], "more": {"k": "v"}, "last": "a longer text with several words"}`
	documentGrammar = `root ::= object
value ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" ws (pair ("," ws pair)*)? "}"
pair ::= string ":" ws value ws
array ::= "[" ws (value ws ("," ws value ws)*)? "]"
string ::= "\"" ([^"\\\x00-\x1F] | "\\" ["\\/bfnrt]){0,200} "\""
number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)?
ws ::= [ \t\n]{0,2}
`
)

// BenchmarkRound measures what a constraint adds to a round over a vocabulary of 150,000 tokens: states and masks of a
// tree of 22 nodes, seven of them the text to come. "known" has seen the document before, as the second request with
// the same format has; "fresh" knows nothing of the grammar.
func BenchmarkRound(b *testing.B) {
	const size = 150_000
	list := grammartest.Vocabulary(size)
	bytes := func(id int32) []byte { return []byte(list[id]) }
	text := &constraint.Text{Bytes: bytes, Vocabulary: grammar.NewVocabulary(grammar.Source{
		Size: size, Bytes: bytes, Named: func(string) (int32, bool) { return 0, false },
	})}
	ids := make(map[string]int32, size)
	longest := 0
	for i, s := range list {
		ids[s] = int32(i)
		longest = max(longest, len(s))
	}
	var tokens []int32
	for at := 0; at < len(document); {
		n := min(longest, len(document)-at)
		for ids[document[at:at+n]] == 0 && n > 1 {
			n--
		}
		tokens = append(tokens, ids[document[at:at+n]])
		at += n
	}
	load := func(int) (*constraint.Text, error) { return text, nil }
	for _, fresh := range []bool{false, true} {
		name := "known"
		if fresh {
			name = "fresh"
		}
		b.Run(name, func(b *testing.B) {
			factory := constraint.NewFactory(load)
			var (
				w    Walker
				tree ddtree.Tree
			)
			rounds := 0
			for b.Loop() {
				if fresh {
					b.StopTimer()
					factory = constraint.NewFactory(load)
					b.StartTimer()
				}
				g, err := factory.New(&tandemv1.Guide{Grammar: documentGrammar}, constraint.Options{Vocab: size, Max: 1 << 20,
					Stop: []int32{5}})
				if err != nil {
					b.Fatal(err)
				}
				w.Start(g, true)
				for at := 0; at < len(tokens); at += 4 {
					tree.Reset(0)
					parent := int32(0)
					for i := range min(7, len(tokens)-at) {
						for k := range int32(2) {
							tree.Add(int32(1000*i)+k, parent, -2)
						}
						parent = tree.Add(tokens[at+i], parent, -1)
					}
					w.Fit(&tree, 64)
					w.Begin()
					for i := range tree.Len() {
						row := engine.Row{Mask: -1}
						if _, err := w.Limit(&row, i, false); err != nil {
							b.Fatal(err)
						}
					}
					for i, token := range tokens[at:min(at+4, len(tokens))] {
						if err := w.Replay(token, at+i); err != nil {
							b.Fatalf("token %q is not allowed", list[token])
						}
					}
					rounds++
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(rounds), "us/round")
		})
	}
}
