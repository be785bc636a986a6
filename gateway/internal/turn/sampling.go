package turn

import (
	"math/rand/v2"
	"strconv"

	"github.com/tandem-inference/tandem/gateway/internal/model"
	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	"github.com/tandem-inference/tandem/gateway/internal/reqjson"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/sampling"
)

// samplerNames are the JSON names of the sampler's fields for which clients use other names than the declaration. The
// first that a request has wins, and the first is the one that is reported.
var samplerNames = map[string][]string{
	"repetition_penalty": {"repetition_penalty", "rep_pen", "repeat_penalty"},
	"penalty_window":     {"rep_window"},
}

// SamplerNames returns the names that a sampler field has in JSON requests.
func SamplerNames(f *sampling.Field) []string {
	if names, ok := samplerNames[f.Name]; ok {
		return names
	}
	return []string{f.Name}
}

// sampling reads the sampler's fields and fills in the model's defaults.
func (s *Service) sampling(o reqjson.Object, m *model.Model) (*tandemv1.Sampling, error) {
	out, err := parseSampling(o, m.Tokenizer.VocabSize())
	if err == nil {
		s.FillSampling(out, m)
	}
	return out, err
}

// FillSampling sets the fields that a request left open to the values of the model's card, and draws a seed when there
// is none, so that a generation can be replayed on another worker.
func (s *Service) FillSampling(out *tandemv1.Sampling, m *model.Model) {
	if s.budgets != nil {
		sampling.Fill(out, s.budgets.Sampling(m))
	}
	if out.Seed == nil {
		seed := rand.Int64()
		out.Seed = &seed
	}
}

// parseSampling reads the sampler's fields. vocab bounds the ids of logit_bias.
func parseSampling(o reqjson.Object, vocab int) (*tandemv1.Sampling, error) {
	out := &tandemv1.Sampling{}
	for _, f := range sampling.Fields() {
		if err := parseSetting(o, &f, vocab, out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func parseSetting(o reqjson.Object, f *sampling.Field, vocab int, out *tandemv1.Sampling) error {
	names := SamplerNames(f)
	switch {
	case f.Map():
		values, err := parseBias(o, f, vocab, names)
		if err != nil || values == nil {
			return err
		}
		f.SetMap(out, values)
	case f.Whole():
		v, ok, err := o.Int(f.Range, names...)
		if err != nil || !ok {
			return err
		}
		f.SetInt(out, v)
	default:
		v, ok, err := o.Float(f.Range, names...)
		if err != nil || !ok {
			return err
		}
		f.SetFloat(out, v)
	}
	return nil
}

// parseBias reads an object whose keys are token ids below vocab; nil when it is absent.
func parseBias(o reqjson.Object, f *sampling.Field, vocab int, names []string) (map[int32]float64, error) {
	b, ok, err := o.Object(names...)
	if err != nil || !ok {
		return nil, err
	}
	out := make(map[int32]float64, len(b.Members()))
	for key := range b.Members() {
		id, err := strconv.ParseInt(key, 10, 32)
		if err != nil || id < 0 || id >= int64(vocab) {
			return nil, reqerr.InvalidValue(b.Path(key), "is not a token id below %d", vocab)
		}
		v, _, err := b.Float(f.Range, key)
		if err != nil {
			return nil, err
		}
		out[int32(id)] = v
	}
	return out, nil
}
