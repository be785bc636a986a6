package tokenizer

import (
	"encoding/json"
	"fmt"
)

// maxJSONVocab bounds the ids of a tokenizer.json, which size the tables.
const maxJSONVocab = 1 << 24

type jsonFile struct {
	AddedTokens []jsonAdded `json:"added_tokens"`
	Normalizer  *struct {
		Type string `json:"type"`
	} `json:"normalizer"`
	PreTokenizer json.RawMessage `json:"pre_tokenizer"`
	Model        struct {
		Type         string            `json:"type"`
		Dropout      *float64          `json:"dropout"`
		ByteFallback bool              `json:"byte_fallback"`
		IgnoreMerges bool              `json:"ignore_merges"`
		Prefix       *string           `json:"continuing_subword_prefix"`
		Suffix       *string           `json:"end_of_word_suffix"`
		Vocab        map[string]int32  `json:"vocab"`
		Merges       []json.RawMessage `json:"merges"`
	} `json:"model"`
}

type jsonAdded struct {
	ID         int32  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

// FromJSON reads a tokenizer.json (Hugging Face form). Such a file names no end token, so EOS is -1. Features that
// change the result and that this package does not have are errors.
func FromJSON(raw []byte) (*Tokenizer, error) {
	var f jsonFile
	if err := json.Unmarshal(raw, &f); err != nil {
		return nil, fmt.Errorf("tokenizer: tokenizer.json: %w", err)
	}
	m := &f.Model
	switch {
	case m.Type != "BPE":
		return nil, fmt.Errorf("tokenizer: model.type %q is not supported (want BPE)", m.Type)
	case m.ByteFallback || m.IgnoreMerges || (m.Dropout != nil && *m.Dropout != 0):
		return nil, fmt.Errorf("tokenizer: model.byte_fallback, ignore_merges and dropout are not supported")
	case (m.Prefix != nil && *m.Prefix != "") || (m.Suffix != nil && *m.Suffix != ""):
		return nil, fmt.Errorf("tokenizer: model.continuing_subword_prefix and end_of_word_suffix are not supported")
	case f.Normalizer == nil || f.Normalizer.Type != "NFC":
		return nil, fmt.Errorf("tokenizer: normalizer is not NFC")
	}
	pre, err := jsonPre(f.PreTokenizer)
	if err != nil {
		return nil, err
	}
	size := 0
	for text, id := range m.Vocab {
		if id < 0 || id >= maxJSONVocab {
			return nil, fmt.Errorf("tokenizer: model.vocab %q has id %d", text, id)
		}
		size = max(size, int(id)+1)
	}
	for _, a := range f.AddedTokens {
		if a.ID < 0 || a.ID >= maxJSONVocab {
			return nil, fmt.Errorf("tokenizer: added token %q has id %d", a.Content, a.ID)
		}
		size = max(size, int(a.ID)+1)
	}
	tokens, kinds := make([]string, size), make([]Kind, size)
	for i := range kinds {
		kinds[i] = KindUnused
	}
	for text, id := range m.Vocab {
		if kinds[id] != KindUnused {
			return nil, fmt.Errorf("tokenizer: model.vocab %q and %q share id %d", tokens[id], text, id)
		}
		tokens[id], kinds[id] = text, KindNormal
	}
	for _, a := range f.AddedTokens {
		if a.SingleWord || a.LStrip || a.RStrip || a.Normalized {
			return nil, fmt.Errorf("tokenizer: added token %q: single_word, lstrip, rstrip and normalized are not supported",
				a.Content)
		}
		tokens[a.ID], kinds[a.ID] = a.Content, KindUserDefined
		if a.Special {
			kinds[a.ID] = KindControl
		}
	}
	return build(pre, tokens, kinds, len(m.Merges),
		func(i int) (string, string, error) { return jsonMerge(i, m.Merges[i]) }, -1)
}

// jsonMerge reads a merge in either of its forms: "left right" or ["left", "right"].
func jsonMerge(i int, raw json.RawMessage) (left, right string, err error) {
	var pair []string
	if json.Unmarshal(raw, &pair) == nil && len(pair) == 2 {
		return pair[0], pair[1], nil
	}
	var line string
	if err := json.Unmarshal(raw, &line); err != nil {
		return "", "", fmt.Errorf("tokenizer: merge %d is neither a string nor a pair", i)
	}
	return cutMerge(i, line)
}

// jsonPre recognises the pre-tokeniser: a Split by one of the known patterns followed by the byte alphabet.
func jsonPre(raw json.RawMessage) (string, error) {
	var p struct {
		Type          string `json:"type"`
		PreTokenizers []struct {
			Type    string `json:"type"`
			Pattern struct {
				Regex string `json:"Regex"`
			} `json:"pattern"`
			Behavior       string `json:"behavior"`
			Invert         bool   `json:"invert"`
			AddPrefixSpace bool   `json:"add_prefix_space"`
			UseRegex       bool   `json:"use_regex"`
		} `json:"pretokenizers"`
	}
	if err := json.Unmarshal(raw, &p); err != nil {
		return "", fmt.Errorf("tokenizer: pre_tokenizer: %w", err)
	}
	if p.Type != "Sequence" || len(p.PreTokenizers) != 2 {
		return "", fmt.Errorf("tokenizer: pre_tokenizer is not a sequence of Split and ByteLevel")
	}
	split, level := p.PreTokenizers[0], p.PreTokenizers[1]
	if split.Type != "Split" || split.Behavior != "Isolated" || split.Invert || level.Type != "ByteLevel" ||
		level.AddPrefixSpace || level.UseRegex {
		return "", fmt.Errorf("tokenizer: pre_tokenizer settings are not supported")
	}
	switch split.Pattern.Regex {
	case patternQwen35:
		return "qwen35", nil
	case patternQwen2:
		return "qwen2", nil
	}
	return "", fmt.Errorf("tokenizer: pre_tokenizer pattern is not known: %s", split.Pattern.Regex)
}
