package constraint

import (
	"container/list"
	"crypto/sha256"
	"errors"
	"sync"

	"github.com/tandem-inference/tandem/services/grammar"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/tokenizer"
)

// Text is the part of a tokenizer that constraints use.
type Text struct {
	Vocabulary *grammar.Vocabulary
	// Bytes of a token, empty for control tokens.
	Bytes func(id int32) []byte
	// Encode cuts a text into tokens; nil = grammars are never guessed ahead.
	Encode func(text []byte) []int32
}

// visible tells whether a token shows something in the answer.
func (t *Text) visible(id int32) bool {
	if t == nil || t.Bytes == nil {
		return true
	}
	for _, c := range t.Bytes(id) {
		if c != ' ' && c != '\n' && c != '\t' && c != '\r' {
			return true
		}
	}
	return false
}

// FromTokenizer wraps a tokenizer for logits of vocab ids.
func FromTokenizer(t *tokenizer.Tokenizer, vocab int) *Text {
	return &Text{
		Vocabulary: grammar.FromTokenizer(t, vocab),
		Bytes: func(id int32) []byte {
			if t.TokenKind(id) == tokenizer.KindControl {
				return nil
			}
			return t.TokenBytes(id)
		},
		Encode: func(text []byte) []int32 { return t.Encode(string(text), tokenizer.Options{}) },
	}
}

// maxGrammars kept compiled.
const maxGrammars = 64

// Factory makes constraints. Grammars are compiled once. It is safe for concurrent use.
type Factory struct {
	load func(vocab int) (*Text, error)

	once sync.Once
	text *Text
	err  error

	mu       sync.Mutex // guards the cache, not what is in it
	grammars map[[sha256.Size]byte]*list.Element
	order    list.List // of *entry, newest first
}

type entry struct {
	key     [sha256.Size]byte
	once    sync.Once
	grammar *grammar.Grammar
	err     error
}

// NewFactory returns a factory that loads its tokenizer with load when it is first needed, for logits of vocab ids.
func NewFactory(load func(vocab int) (*Text, error)) *Factory {
	return &Factory{load: load, grammars: map[[sha256.Size]byte]*list.Element{}}
}

// Load loads the tokenizer now.
func (f *Factory) Load(vocab int) error {
	f.once.Do(func() { f.text, f.err = f.load(vocab) })
	return f.err
}

// compiled gives the tokenizer, nil when there is none and no grammar needs it, and the grammar of a text.
func (f *Factory) compiled(text string, vocab int) (*Text, *grammar.Grammar, error) {
	err := f.Load(vocab)
	if text == "" {
		return f.text, nil, nil
	}
	if err != nil {
		return nil, nil, rpcerr.FailedPrecondition("guide.grammar: this worker cannot follow grammars: %v", err)
	}
	e := f.entry(sha256.Sum256([]byte(text)))
	// Compiled outside the lock: two requests with one grammar wait for each other, others do not.
	e.once.Do(func() {
		s, err := grammar.Parse(text)
		if err == nil {
			e.grammar, err = s.Compile(f.text.Vocabulary)
		}
		e.err = err
	})
	if e.err != nil {
		var bad *grammar.Error
		if errors.As(e.err, &bad) {
			return nil, nil, rpcerr.InvalidArgument("guide.grammar", "line %d column %d: %s", bad.Line, bad.Column, bad.Message)
		}
		return nil, nil, rpcerr.InvalidArgument("guide.grammar", "%v", e.err)
	}
	return f.text, e.grammar, nil
}

func (f *Factory) entry(key [sha256.Size]byte) *entry {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e, ok := f.grammars[key]; ok {
		f.order.MoveToFront(e)
		return e.Value.(*entry)
	}
	e := &entry{key: key}
	f.grammars[key] = f.order.PushFront(e)
	if f.order.Len() > maxGrammars {
		last := f.order.Back()
		delete(f.grammars, last.Value.(*entry).key)
		f.order.Remove(last)
	}
	return e
}
