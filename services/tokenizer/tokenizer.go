package tokenizer

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// Kind is the role of a token in the vocabulary, with the numbers of GGUF's token_type.
type Kind int32

// The kinds of tokens.
const (
	KindNormal      Kind = 1 // reached by merges, written in the byte alphabet
	KindUnknown     Kind = 2
	KindControl     Kind = 3 // structure of the prompt: never text of a user, hidden when decoding
	KindUserDefined Kind = 4 // literal tag such as <think>: always recognised, always shown
	KindUnused      Kind = 5 // padding of the table; must be masked before sampling
	KindByte        Kind = 6
)

// String names the kind.
func (k Kind) String() string {
	switch k {
	case KindNormal:
		return "normal"
	case KindUnknown:
		return "unknown"
	case KindControl:
		return "control"
	case KindUserDefined:
		return "user-defined"
	case KindUnused:
		return "unused"
	case KindByte:
		return "byte"
	}
	return fmt.Sprintf("kind %d", int32(k))
}

// Tokenizer holds one vocabulary. Make it with FromGGUF or FromJSON.
type Tokenizer struct {
	split   *splitter
	pre     string
	added   *addedSet
	merges  *merges
	byteIDs [256]int32
	cache   *pieceCache
	scratch sync.Pool // of *bpeScratch

	kinds   []Kind
	blob    []byte   // plain bytes of all tokens, one after the other
	offsets []uint32 // len(kinds)+1 positions in blob
	ids     map[string]int32

	eos   int32
	stops []int32

	longestOnce  sync.Once
	longestBytes int
}

// Options control how text is encoded.
type Options struct {
	// ParseSpecial recognises control tokens such as <|im_start|> in the text. User-defined tags such as <tool_call> are
	// recognised either way. Leave it off for text that comes from users.
	ParseSpecial bool
}

// Segment is a part of a prompt. Special marks the template's own text, in which control tokens are recognised.
type Segment struct {
	Text    string
	Special bool
}

// largeText is the size from which texts wait for each other: such a text costs a tenth of a second and more of a core.
const largeText = 256 << 10 // bytes

// largeSlots bounds how many large texts are encoded at a time, to half of the cores, so that the other half stays free
// for other work.
var largeSlots = make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))

// slotFor waits until a text of size bytes may be encoded and returns the function that releases its slot. Call it
// before memory for the ids is allocated, so that texts that wait hold none.
func slotFor(size int) (release func()) {
	if size <= largeText {
		return func() {}
	}
	largeSlots <- struct{}{}
	return func() { <-largeSlots }
}

// MinTokens returns the least number of tokens that the encoding of the joined texts can have, much faster than
// encoding them. It follows from the longest token of the vocabulary. NFC is assumed to shorten text that is not ASCII
// to a quarter, which is more than it can.
func (t *Tokenizer) MinTokens(texts ...string) int {
	ascii, size := 0, 0
	for _, text := range texts {
		size += len(text)
		for i := range len(text) {
			if text[i] < utf8.RuneSelf {
				ascii++
			}
		}
	}
	least := ascii + (size-ascii)/4
	return (least + t.longest() - 1) / t.longest()
}

// longest is the number of bytes of the longest token, at least 1.
func (t *Tokenizer) longest() int {
	t.longestOnce.Do(func() {
		t.longestBytes = 1
		for i := 1; i < len(t.offsets); i++ {
			t.longestBytes = max(t.longestBytes, int(t.offsets[i]-t.offsets[i-1]))
		}
	})
	return t.longestBytes
}

// Encode returns the token ids of text.
func (t *Tokenizer) Encode(text string, opt Options) []int32 {
	defer slotFor(len(text))()
	return t.appendText(make([]int32, 0, len(text)/3+1), text, opt)
}

func (t *Tokenizer) appendText(dst []int32, text string, opt Options) []int32 {
	var special spanCursor
	if opt.ParseSpecial {
		special.spans = []span{{0, len(text)}}
	}
	return t.appendEncode(dst, text, &special)
}

// EncodeSegments returns the token ids of the joined text of segs, with control tokens recognised only where they lie
// wholly in special text: a user who types <|im_end|> gets its characters, not the token. Otherwise segment borders do
// not matter, so without such input the ids equal those of Encode on the joined text with ParseSpecial.
func (t *Tokenizer) EncodeSegments(segs []Segment) []int32 {
	var special spanCursor
	var b strings.Builder
	size := 0
	for _, s := range segs {
		size += len(s.Text)
	}
	defer slotFor(size)()
	b.Grow(size)
	for _, s := range segs {
		start := b.Len()
		b.WriteString(s.Text)
		if !s.Special || s.Text == "" {
			continue
		}
		if n := len(special.spans); n > 0 && special.spans[n-1].end == start {
			special.spans[n-1].end = b.Len()
		} else {
			special.spans = append(special.spans, span{start, b.Len()})
		}
	}
	return t.appendEncode(make([]int32, 0, size/3+1), b.String(), &special)
}

func (t *Tokenizer) appendEncode(dst []int32, text string, special *spanCursor) []int32 {
	sc := t.scratch.Get().(*bpeScratch)
	defer func() {
		if cap(sc.ids) <= largeText { // a window that had to grow is not kept
			t.scratch.Put(sc)
		}
	}()
	for pos := 0; pos < len(text); {
		start, end, id := t.added.find(text, pos, special)
		if end < 0 {
			return t.appendPieces(dst, nfc(text[pos:]), sc)
		}
		if start > pos {
			dst = t.appendPieces(dst, nfc(text[pos:start]), sc)
		}
		dst = append(dst, id)
		pos = end
	}
	return dst
}

// appendPieces encodes text without added tokens.
func (t *Tokenizer) appendPieces(dst []int32, text string, sc *bpeScratch) []int32 {
	for pos := 0; pos < len(text); {
		end := t.split.next(text, pos)
		piece := text[pos:end]
		pos = end
		if cap(dst)-len(dst) < min(len(piece), longWindow) {
			// Hard text has up to a token a byte. Growth by the usual steps would leave several times that behind.
			dst = slices.Grow(dst, len(text)-pos+len(piece))
		}
		if len(piece) == 1 {
			dst = append(dst, t.byteIDs[piece[0]])
			continue
		}
		if len(piece) > longWindow {
			dst = t.appendLong(dst, piece, longWindow, sc)
			continue
		}
		cached := len(piece) <= maxCachedBytes
		if cached {
			if ids := t.cache.get(piece); ids != nil {
				dst = append(dst, ids...)
				continue
			}
		}
		t.spell(sc, piece)
		t.merges.apply(sc)
		if cached {
			t.cache.put(piece, sc.ids)
		}
		dst = append(dst, sc.ids...)
	}
	return dst
}

// spell sets the symbols of a merge run to the bytes of piece.
func (t *Tokenizer) spell(sc *bpeScratch, piece string) {
	sc.ids = slices.Grow(sc.ids[:0], len(piece))
	for i := range len(piece) {
		sc.ids = append(sc.ids, t.byteIDs[piece[i]])
	}
}

// VocabSize is the number of ids, padding included: the width of the model's logits.
func (t *Tokenizer) VocabSize() int { return len(t.kinds) }

// PreTokenizer is the name of the splitting rule, "qwen35" or "qwen2".
func (t *Tokenizer) PreTokenizer() string { return t.pre }

// TokenKind returns the role of a token; ids outside the vocabulary are unused.
func (t *Tokenizer) TokenKind(id int32) Kind {
	if id < 0 || int(id) >= len(t.kinds) {
		return KindUnused
	}
	return t.kinds[id]
}

// TokenBytes returns the bytes that a token stands for: possibly not whole characters, for control tokens their literal
// text, for unused ids nothing. The caller must not change them.
func (t *Tokenizer) TokenBytes(id int32) []byte {
	if id < 0 || int(id) >= len(t.kinds) || t.kinds[id] == KindUnused {
		return nil
	}
	a, b := t.offsets[id], t.offsets[id+1]
	return t.blob[a:b:b]
}

// ID finds the token that stands for exactly this text: an added token by its literal text, another by its bytes.
func (t *Tokenizer) ID(text string) (int32, bool) {
	id, ok := t.ids[text]
	return id, ok
}

// EOS is the end token that the vocabulary file names, or -1.
func (t *Tokenizer) EOS() int32 { return t.eos }

// StopTokens lists the ids that end a generation, in increasing order: the file's end token and the known turn and
// document ends of the family that the vocabulary has.
func (t *Tokenizer) StopTokens() []int32 { return slices.Clone(t.stops) }

// stopTexts are the tokens that end a generation whatever the file names as its end token.
var stopTexts = []string{"<|im_end|>", "<|endoftext|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"}

// controlTexts are control tokens even if a file lists them as normal ones; <|endoftext|> is known to occur as such.
var controlTexts = []string{"<|endoftext|>", "<|im_start|>", "<|im_end|>"}

// build makes a Tokenizer from the parts that both file forms share. tokens[i] is the vocabulary text of id i: literal
// for added tokens, in the byte alphabet for the others.
func build(pre string, tokens []string, kinds []Kind, mergeCount int, mergeAt func(int) (left, right string, err error),
	eos int32) (*Tokenizer, error) {
	t := &Tokenizer{pre: pre, kinds: kinds, eos: eos, cache: newPieceCache()}
	t.scratch.New = func() any { return new(bpeScratch) }
	var ok bool
	if t.split, ok = newSplitter(pre); !ok {
		return nil, fmt.Errorf("tokenizer: pre-tokenizer %q is not supported (known: qwen35, qwen2)", pre)
	}
	if eos >= int32(len(tokens)) {
		return nil, fmt.Errorf("tokenizer: end token %d is outside the vocabulary of %d", eos, len(tokens))
	}
	vocab := make(map[string]int32, len(tokens)) // normal tokens by vocabulary text
	t.ids = make(map[string]int32, len(tokens))
	var added []addedToken
	for i, text := range tokens {
		if kinds[i] == KindNormal && slices.Contains(controlTexts, text) {
			kinds[i] = KindControl
		}
		t.offsets = append(t.offsets, uint32(len(t.blob)))
		switch kinds[i] {
		case KindControl, KindUserDefined:
			if text == "" {
				return nil, fmt.Errorf("tokenizer: added token %d is empty", i)
			}
			added = append(added, addedToken{text, int32(i), kinds[i] == KindControl})
			t.blob = append(t.blob, text...)
		case KindUnused:
		case KindNormal, KindUnknown, KindByte:
			if _, dup := vocab[text]; !dup {
				vocab[text] = int32(i)
			}
			t.blob = appendPlain(t.blob, text)
		default:
			return nil, fmt.Errorf("tokenizer: token %d has unknown type %d", i, kinds[i])
		}
	}
	t.offsets = append(t.offsets, uint32(len(t.blob)))
	for i := range tokens {
		plain := string(t.TokenBytes(int32(i)))
		if _, dup := t.ids[plain]; !dup && plain != "" {
			t.ids[plain] = int32(i)
		}
	}
	for _, a := range added {
		t.ids[a.text] = a.id // the literal tag wins over a normal token with the same bytes
	}
	t.added = newAddedSet(added)
	for b := range t.byteIDs {
		id, ok := vocab[string(byteRunes[b])]
		if !ok {
			return nil, fmt.Errorf("tokenizer: the vocabulary has no token for byte %#02x", b)
		}
		t.byteIDs[b] = id
	}
	if err := t.buildMerges(vocab, mergeCount, mergeAt); err != nil {
		return nil, err
	}
	t.findStops()
	return t, nil
}

func (t *Tokenizer) buildMerges(vocab map[string]int32, n int, at func(int) (string, string, error)) error {
	t.merges = newMerges(n)
	for i := range n {
		left, right, err := at(i)
		if err != nil {
			return err
		}
		l, okL := vocab[left]
		r, okR := vocab[right]
		both, okB := vocab[left+right]
		if !okL || !okR || !okB {
			return fmt.Errorf("tokenizer: merge %d (%q + %q): a half or the result is not in the vocabulary", i, left, right)
		}
		if err := t.merges.add(l, r, both); err != nil {
			return fmt.Errorf("tokenizer: merge %d (%q + %q): %w", i, left, right, err)
		}
	}
	return nil
}

func (t *Tokenizer) findStops() {
	if t.eos >= 0 {
		t.stops = append(t.stops, t.eos)
	}
	for _, text := range stopTexts {
		if id, ok := t.ids[text]; ok && t.kinds[id] == KindControl {
			t.stops = append(t.stops, id)
		}
	}
	slices.SortFunc(t.stops, cmp.Compare[int32])
	t.stops = slices.Compact(t.stops)
}
