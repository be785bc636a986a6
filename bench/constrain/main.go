// Command constrain measures what constrained decoding costs besides the model: for every generated token a mask
// and a step of the automaton, as one row of a decode step needs them, with JSON schemas and tool calls over a
// large vocabulary.
//
//	go run ./bench/constrain [-vocabulary 151936] [-model models/tandem-tiny-target-q4_k_m.gguf] [-documents 20]
package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"github.com/tandem-inference/tandem/bench/report"
	"github.com/tandem-inference/tandem/services/gguf"
	"github.com/tandem-inference/tandem/services/grammar"
	"github.com/tandem-inference/tandem/services/grammar/grammartest"
	"github.com/tandem-inference/tandem/services/tokenizer"
)

// Steps of decoding to compare with: a 27B model on an H200 (measured, native/SPEED.md) and on an RTX 3090 (predicted).
const (
	stepH200 = 7 * time.Millisecond
	step3090 = 22 * time.Millisecond
)

func main() {
	size := flag.Int("vocabulary", 151_936, "tokens of the generated vocabulary")
	model := flag.String("model", "", "GGUF file whose tokenizer is taken instead")
	documents := flag.Int("documents", 20, "outputs of each kind")
	flag.Parse()
	if err := run(*size, *model, *documents); err != nil {
		report.Exit(err)
	}
}

func run(size int, model string, documents int) error {
	voc, err := generated(size)
	if model != "" {
		voc, err = ofModel(model)
	}
	if err != nil {
		return err
	}
	fmt.Printf("Vocabulary of %d tokens, a mask of %d bytes; built in %d ms.\n", voc.size, (voc.size+31)/32*4,
		voc.built.Milliseconds())
	cost := report.Table{Title: "Mask and step of a generated token, µs",
		Header: []string{"output", "tokens", "compile, ms", "cold mean", "cold p99", "reused mean", "reused p99",
			"known mean", "known p99", "masks kept"}}
	share := report.Table{Title: "Share of a decode step, %",
		Header: []string{"output", "cold, 7 ms", "reused, 7 ms", "cold, 22 ms", "reused, 22 ms"}}
	for _, k := range kinds {
		r, err := measure(voc, k, documents)
		if err != nil {
			return fmt.Errorf("%s: %w", k.name, err)
		}
		cost.Add(k.name, r.tokens, r.compile.Seconds()*1e3, mean(r.cold), p99(r.cold), mean(r.reused), p99(r.reused),
			mean(r.known), p99(r.known), r.masks)
		of := func(list []time.Duration, step time.Duration) float64 {
			return mean(list) * 1e3 / float64(step.Nanoseconds()) * 100
		}
		share.Add(k.name, of(r.cold, stepH200), of(r.reused, stepH200), of(r.cold, step3090), of(r.reused, step3090))
	}
	cost.Write(os.Stdout)
	share.Write(os.Stdout)
	fmt.Println("\nCold: the first output of a grammar. Reused: further outputs of other content with the same grammar. Known: the same output once more.")
	return nil
}

// vocabulary with a way to cut text into its tokens.
type vocabulary struct {
	*grammar.Vocabulary
	size   int
	built  time.Duration
	encode func(text string) []int32
}

// generated is a vocabulary in the shape of a large model's; text is cut into the longest tokens that fit.
func generated(size int) (vocabulary, error) {
	list := grammartest.Vocabulary(size)
	ids := make(map[string]int32, size)
	longest := 0
	for i, s := range list {
		ids[s] = int32(i)
		longest = max(longest, len(s))
	}
	return build(size, grammar.Source{Size: size, Bytes: func(id int32) []byte { return []byte(list[id]) },
		Named: func(text string) (int32, bool) { id, ok := ids[text]; return id, ok }}, func(text string) (out []int32) {
		for len(text) > 0 {
			n := min(longest, len(text))
			for ; n > 1; n-- {
				if _, ok := ids[text[:n]]; ok {
					break
				}
			}
			out, text = append(out, ids[text[:n]]), text[n:]
		}
		return out
	}), nil
}

func build(size int, src grammar.Source, encode func(string) []int32) vocabulary {
	began := time.Now()
	v := grammar.NewVocabulary(src)
	return vocabulary{v, size, time.Since(began), encode}
}

func ofModel(path string) (vocabulary, error) {
	f, err := gguf.Open(path)
	if err != nil {
		return vocabulary{}, err
	}
	defer f.Close()
	t, err := tokenizer.FromGGUF(f)
	if err != nil {
		return vocabulary{}, err
	}
	began := time.Now()
	v := grammar.FromTokenizer(t, 0)
	return vocabulary{v, t.VocabSize(), time.Since(began),
		func(text string) []int32 { return t.Encode(text, tokenizer.Options{}) }}, nil
}

// result of one kind of output; the lists hold the time of every token.
type result struct {
	tokens, masks       int
	compile             time.Duration
	cold, reused, known []time.Duration
}

func measure(v vocabulary, k kind, documents int) (r result, err error) {
	text, err := k.grammar()
	if err != nil {
		return r, err
	}
	began := time.Now()
	syntax, err := grammar.Parse(text)
	if err != nil {
		return r, err
	}
	g, err := syntax.Compile(v.Vocabulary)
	if err != nil {
		return r, err
	}
	r.compile = time.Since(began)
	rng := rand.New(rand.NewPCG(1, 1))
	masks := map[*grammar.Mask]bool{}
	for i := range documents {
		tokens := v.encode(k.output(rng))
		took, err := follow(g, tokens, masks)
		if err != nil {
			return r, err
		}
		r.tokens += len(tokens)
		if i == 0 {
			r.cold = append(r.cold, took...)
		} else {
			r.reused = append(r.reused, took...)
		}
		if took, err = follow(g, tokens, masks); err != nil {
			return r, err
		}
		r.known = append(r.known, took...)
	}
	r.masks = len(masks)
	return r, nil
}

// follow writes the mask of every place into a row, as a decode step hands it to the engine, and takes the token.
func follow(g *grammar.Grammar, tokens []int32, masks map[*grammar.Mask]bool) ([]time.Duration, error) {
	var row []uint32
	took := make([]time.Duration, len(tokens))
	s := g.Start()
	for i, id := range tokens {
		began := time.Now()
		m, err := g.Mask(s)
		if err != nil {
			return nil, err
		}
		row = append(row[:0], m.Bits...)
		s = g.Advance(s, id)
		took[i] = time.Since(began)
		if s == nil || row[id/32]>>(id%32)&1 == 0 {
			return nil, fmt.Errorf("token %d of %d is not allowed", i, len(tokens))
		}
		masks[m] = true
	}
	if !g.Accepts(s) {
		return nil, fmt.Errorf("the output is not complete")
	}
	return took, nil
}

func mean(list []time.Duration) float64 {
	var sum time.Duration
	for _, d := range list {
		sum += d
	}
	return float64(sum.Nanoseconds()) / 1e3 / float64(max(1, len(list)))
}

func p99(list []time.Duration) float64 {
	if len(list) == 0 {
		return 0
	}
	list = slices.Clone(list)
	slices.Sort(list)
	return float64(list[len(list)*99/100].Nanoseconds()) / 1e3
}
