// Package modelcard reads model cards: small JSON files that say how a model wants to be used (output and reply
// lengths, sampling, reasoning efforts), finds the card of a model, and resolves what holds for it together with flags
// and the model's family. Format, lookup and arithmetic: docs/spec/http-api.md §19.
package modelcard

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/url"
	"regexp"
	"slices"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/bounds"
	"github.com/tandem-inference/tandem/services/sampling"
)

// Efforts are the reasoning efforts of tiers, in ascending order.
var Efforts = [...]string{"low", "medium", "high", "x-high", "max"}

// Card is a model card. Zero values of optional members mean that the card lacks them.
type Card struct {
	Name       string
	Source     string // URI
	VerifiedAt string // YYYY-MM-DD
	MaxTokens  int

	DownloadURLs            map[string]string
	ComplexProblemMaxTokens int
	HardLimitReplyBudget    int
	ThinkingMarker          string
	ThinkingTerminatorHint  string
	Sampling                *tandemv1.Sampling // defaults of the sampler; nil = the card says nothing
	Tiers                   [len(Efforts)]int  // reasoning_effort_tiers
	Notes                   string

	// Raw is the file's content.
	Raw json.RawMessage
}

// member describes one root key of a card.
type member struct {
	key      string
	required bool
	read     func(raw json.RawMessage, c *Card) error
}

var members = []member{
	{"name", true, func(raw json.RawMessage, c *Card) error { return text(raw, &c.Name) }},
	{"source", true, func(raw json.RawMessage, c *Card) error {
		if err := text(raw, &c.Source); err != nil {
			return err
		}
		return uri(c.Source)
	}},
	{"verified_at", true, func(raw json.RawMessage, c *Card) error {
		if err := text(raw, &c.VerifiedAt); err != nil {
			return err
		}
		if _, err := time.Parse(time.DateOnly, c.VerifiedAt); err != nil {
			return errors.New("must be a date YYYY-MM-DD")
		}
		return nil
	}},
	{"max_tokens", true, func(raw json.RawMessage, c *Card) error { return whole(raw, 1, &c.MaxTokens) }},
	{"download_urls", false, func(raw json.RawMessage, c *Card) error {
		if err := json.Unmarshal(raw, &c.DownloadURLs); err != nil {
			return errors.New("must be an object of URIs")
		}
		for tag, u := range c.DownloadURLs {
			if err := uri(u); err != nil {
				return fmt.Errorf("%s: %w", tag, err)
			}
		}
		return nil
	}},
	{"complex_problem_max_tokens", false,
		func(raw json.RawMessage, c *Card) error { return whole(raw, 1, &c.ComplexProblemMaxTokens) }},
	{"hard_limit_reply_budget", false,
		func(raw json.RawMessage, c *Card) error { return whole(raw, 256, &c.HardLimitReplyBudget) }},
	{"thinking_marker", false, func(raw json.RawMessage, c *Card) error { return text(raw, &c.ThinkingMarker) }},
	{"thinking_terminator_hint", false,
		func(raw json.RawMessage, c *Card) error { return text(raw, &c.ThinkingTerminatorHint) }},
	{"sampling", false, readSampling},
	{"reasoning_effort_tiers", false, readTiers},
	{"notes", false, func(raw json.RawMessage, c *Card) error { return text(raw, &c.Notes) }},
}

// Parse reads a card. Problems of optional members leave that member out and are reported in warnings, each naming its
// key; err is set when the card cannot be used at all: no JSON object, or a required member missing or wrong.
func Parse(data []byte) (c *Card, warnings []error, err error) {
	var root map[string]json.RawMessage
	if err := json.Unmarshal(data, &root); err != nil {
		return nil, nil, fmt.Errorf("is not a JSON object: %w", err)
	}
	if root == nil {
		return nil, nil, errors.New("is not a JSON object")
	}
	c = &Card{Raw: bytes.Clone(data)}
	var fatal []error
	for _, m := range members {
		raw, ok := root[m.key]
		delete(root, m.key)
		if !ok {
			if m.required {
				fatal = append(fatal, fmt.Errorf("%s: is required", m.key))
			}
			continue
		}
		if err := m.read(raw, c); err != nil {
			if err = fmt.Errorf("%s: %w", m.key, err); m.required {
				fatal = append(fatal, err)
			} else {
				warnings = append(warnings, err)
			}
		}
	}
	unknown := make([]string, 0, len(root))
	for key := range root {
		unknown = append(unknown, key)
	}
	slices.Sort(unknown)
	for _, key := range unknown {
		warnings = append(warnings, fmt.Errorf("%s: is no key of a model card", key))
	}
	if len(fatal) > 0 {
		return nil, warnings, errors.Join(fatal...)
	}
	return c, warnings, nil
}

func text(raw json.RawMessage, out *string) error {
	var s *string
	if err := json.Unmarshal(raw, &s); err != nil || s == nil {
		return errors.New("must be a string")
	}
	*out = *s
	return nil
}

func whole(raw json.RawMessage, least int, out *int) error {
	var f *float64
	if err := json.Unmarshal(raw, &f); err != nil || f == nil || *f != math.Trunc(*f) ||
		*f < float64(least) || *f > math.MaxInt32 {
		return fmt.Errorf("must be an integer of at least %d", least)
	}
	*out = int(*f)
	return nil
}

func uri(s string) error {
	if u, err := url.Parse(s); err != nil || u.Scheme == "" {
		return fmt.Errorf("%q is no URI", s)
	}
	return nil
}

// readSampling reads defaults of the sampler's fields, those that services/sampling says a card may hold.
func readSampling(raw json.RawMessage, c *Card) error {
	var given map[string]json.RawMessage
	if err := json.Unmarshal(raw, &given); err != nil || given == nil {
		return errors.New("must be an object")
	}
	out := &tandemv1.Sampling{}
	var faults []error
	for _, name := range slices.Sorted(maps.Keys(given)) {
		f, ok := sampling.Named(name)
		if !ok || !f.InCard {
			faults = append(faults, fmt.Errorf("%s: is no sampler field of a model card", name))
			continue
		}
		var v *float64
		switch err := json.Unmarshal(given[name], &v); {
		case err != nil:
			faults = append(faults, fmt.Errorf("%s: must be a number", name))
		case v == nil:
		case f.Whole() && *v != math.Trunc(*v):
			faults = append(faults, fmt.Errorf("%s: must be an integer", name))
		case !f.Range.Has(*v):
			faults = append(faults, fmt.Errorf("%s: %s is not in %s", name, bounds.Number(*v), f.Range.Interval()))
		case f.Whole():
			f.SetInt(out, int64(*v))
		default:
			f.SetFloat(out, *v)
		}
	}
	if len(faults) > 0 {
		return errors.Join(faults...)
	}
	c.Sampling = out
	return nil
}

func readTiers(raw json.RawMessage, c *Card) error {
	var given map[string]json.RawMessage
	if err := json.Unmarshal(raw, &given); err != nil || given == nil {
		return errors.New("must be an object of integers")
	}
	var tiers [len(Efforts)]int
	for key, v := range given {
		i := slices.Index(Efforts[:], key)
		if i < 0 {
			return fmt.Errorf("%s: is no effort", key)
		}
		if err := whole(v, 1, &tiers[i]); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
	}
	c.Tiers = tiers
	return nil
}

var notInNames = regexp.MustCompile(`[^a-z0-9.-]`)

// FileName is the name of the card file of a model with the given general.name.
func FileName(model string) string {
	b := []byte(model)
	for i, ch := range b {
		switch {
		case ch == ' ' || ch == '\t' || ch == '_':
			b[i] = '-'
		case ch >= 'A' && ch <= 'Z':
			b[i] = ch + 'a' - 'A'
		}
	}
	return string(notInNames.ReplaceAll(b, nil)) + ".json"
}
