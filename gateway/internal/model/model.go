package model

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/tandem-inference/tandem/gateway/internal/chattemplate"
	"github.com/tandem-inference/tandem/gateway/internal/toolcall"
	"github.com/tandem-inference/tandem/services/gguf"
	"github.com/tandem-inference/tandem/services/tokenizer"
	"go.uber.org/zap"
)

// Model is a served model. It is immutable and safe for concurrent use.
type Model struct {
	Tokenizer *tokenizer.Tokenizer
	// ThinkOpen and ThinkClose are emit.None when the model has no reasoning markers.
	ThinkOpen, ThinkClose int32
	// ThinkLabel is text after the open marker that belongs to it; empty = none.
	ThinkLabel string
	// Stops are the tokens that end a turn.
	Stops []int32
	// Markup are control tokens in which the model writes calls.
	Markup []int32
	// CallOpen and CallClose are the tokens around a call in the model's own form, emit.None when they are text.
	CallOpen, CallClose int32
	// Vocab is the number of tokens that the model can choose from, 0 = unknown.
	Vocab int
	// Context is the model's own context length in tokens, 0 = unknown.
	Context int

	// Name under which it is served.
	Name string
	Path string
	Arch string
	// GeneralName is the model's own name, general.name of its file; empty when it has none.
	GeneralName string
	// Created is the file's modification time, unix seconds.
	Created int64
	// Digest of the file's content as its worker reported it, empty when nobody did.
	Digest string
	// Fingerprint names build and model, for system_fingerprint.
	Fingerprint string
	// Family decides in which formats calls are looked for; CallForm is the one that the template teaches.
	Family   toolcall.Family
	CallForm toolcall.Format
	// TakesWritten says that calls may be rendered as the model wrote them, see chat.ToolCall.
	TakesWritten bool
	// TemplateSource says where the chat template came from: file, model or built-in.
	TemplateSource string
	// LaterSystem says that the template takes system messages after others.
	LaterSystem bool

	template *chattemplate.Template
	bos, eos string
}

// Options of Load.
type Options struct {
	Path string
	// Name under which the model is served; empty = base name of the file.
	Name string
	// TemplateFile overrides the model's own template; an empty file selects the built-in one.
	TemplateFile string
	Digest       string
	Version      string
	Logger       *zap.Logger
}

// Load reads a model file.
func Load(opt Options) (*Model, error) {
	st, err := os.Stat(opt.Path)
	if err != nil {
		return nil, fmt.Errorf("model file: %w", err)
	}
	f, err := gguf.Open(opt.Path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	tok, err := tokenizer.FromGGUF(f)
	if err != nil {
		return nil, fmt.Errorf("model file %s: %w", opt.Path, err)
	}
	m := &Model{
		Name: cmp.Or(opt.Name, BaseName(opt.Path)), Path: opt.Path, Created: st.ModTime().Unix(), Digest: opt.Digest,
		Tokenizer: tok,
	}
	m.Vocab = tok.VocabSize()
	if t, ok := f.Tensor("token_embd.weight"); ok && len(t.Shape) > 1 {
		m.Vocab = max(m.Vocab, int(t.Shape[1])) // embeddings are padded beyond the tokenizer's words
	}
	if m.Arch, err = f.Architecture(); err != nil {
		return nil, fmt.Errorf("model file %s: %w", opt.Path, err)
	}
	m.Family = familyOf(m.Arch)
	m.useFamily()
	if m.GeneralName, _, err = f.String("general.name"); err != nil {
		return nil, fmt.Errorf("model file %s: %w", opt.Path, err)
	}
	if n, ok, err := f.Int(m.Arch + ".context_length"); err == nil && ok {
		m.Context = int(n)
	}
	if id, ok, err := f.Uint("tokenizer.ggml.bos_token_id"); err == nil && ok {
		m.bos = string(tok.TokenBytes(int32(id)))
	}
	if tok.EOS() >= 0 {
		m.eos = string(tok.TokenBytes(tok.EOS()))
	}
	own, _, err := f.String("tokenizer.chat_template")
	if err != nil {
		return nil, fmt.Errorf("model file %s: %w", opt.Path, err)
	}
	if err := m.chooseTemplate(own, opt); err != nil {
		return nil, err
	}
	m.CallOpen, m.CallClose = marker(tok, toolcall.Opener(m.CallForm)), marker(tok, toolcall.Closer(m.CallForm))
	m.LaterSystem, m.TakesWritten = m.laterSystem(), m.takesWritten()
	sum := sha256.Sum256([]byte(opt.Version + "\x00" + cmp.Or(opt.Digest, m.Name)))
	m.Fingerprint = "fp_" + hex.EncodeToString(sum[:6])
	return m, nil
}

// Limit returns how many tokens prompt and output of a request may have together, 0 = unknown. workers is the longest
// context that workers offer, 0 = unknown; one above the model's own is not believed.
func (m *Model) Limit(workers int) int {
	if workers > 0 && (m.Context == 0 || workers < m.Context) {
		return workers
	}
	return m.Context
}

// LoadTokenizer reads only the tokenizer of a model file.
func LoadTokenizer(path string) (*tokenizer.Tokenizer, error) {
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return tokenizer.FromGGUF(f)
}

// BaseName is the name of a model file without folder and extension.
func BaseName(path string) string {
	return strings.TrimSuffix(filepath.Base(path), ".gguf")
}
