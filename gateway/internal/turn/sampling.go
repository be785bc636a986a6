package turn

import (
	"math"
	"math/rand/v2"
	"strconv"

	"github.com/tandem-inference/tandem/gateway/internal/model"
	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	"github.com/tandem-inference/tandem/gateway/internal/reqjson"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"google.golang.org/protobuf/proto"
)

// sampling reads the sampler's fields and fills in the model's defaults.
func (s *Service) sampling(o reqjson.Object, m *model.Model) (*tandemv1.Sampling, error) {
	out, err := parseSampling(o, m.Tokenizer.VocabSize())
	if err == nil {
		s.FillSampling(out, m)
	}
	return out, err
}

// FillSampling gives the fields that a request left open the values of the model's card.
func (s *Service) FillSampling(out *tandemv1.Sampling, m *model.Model) {
	if s.budgets == nil {
		return
	}
	d := s.budgets.Sampling(m)
	for _, f := range []struct {
		dst  **float64
		from *float64
	}{
		{&out.Temperature, d.Temperature}, {&out.TopP, d.TopP}, {&out.MinP, d.MinP},
		{&out.PresencePenalty, d.PresencePenalty}, {&out.RepetitionPenalty, d.RepetitionPenalty},
	} {
		if *f.dst == nil && f.from != nil {
			*f.dst = f.from
		}
	}
	if out.TopK == nil && d.TopK != nil {
		out.TopK = proto.Int32(int32(*d.TopK))
	}
}

// parseSampling reads the sampler's fields. vocab bounds the ids of logit_bias. A seed is drawn when none is given, so
// that a generation can be replayed on another worker.
func parseSampling(o reqjson.Object, vocab int) (*tandemv1.Sampling, error) {
	s := &tandemv1.Sampling{}
	for _, f := range []struct {
		dst   **float64
		rng   reqjson.Range
		names []string
	}{
		{&s.Temperature, reqjson.Between(0, 2), []string{"temperature"}},
		{&s.TopP, reqjson.Positive(1), []string{"top_p"}},
		{&s.MinP, reqjson.Between(0, 1), []string{"min_p"}},
		{&s.RepetitionPenalty, reqjson.Positive(4), []string{"repetition_penalty", "rep_pen", "repeat_penalty"}},
		{&s.FrequencyPenalty, reqjson.Between(-2, 2), []string{"frequency_penalty"}},
		{&s.PresencePenalty, reqjson.Between(-2, 2), []string{"presence_penalty"}},
	} {
		v, ok, err := o.Float(f.rng, f.names...)
		if err != nil {
			return nil, err
		}
		if ok {
			*f.dst = &v
		}
	}
	for _, f := range []struct {
		dst  **int32
		rng  reqjson.Range
		name string
	}{
		{&s.TopK, reqjson.Between(math.MinInt32, math.MaxInt32), "top_k"},
		{&s.PenaltyWindow, reqjson.Between(1, 8192), "rep_window"},
	} {
		v, ok, err := o.Int(f.rng, f.name)
		if err != nil {
			return nil, err
		}
		if ok {
			*f.dst = proto.Int32(int32(v))
		}
	}
	seed, ok, err := o.Int(reqjson.Any(), "seed")
	if err != nil {
		return nil, err
	}
	if !ok {
		seed = rand.Int64()
	}
	s.Seed = &seed
	s.LogitBias, err = parseBias(o, vocab)
	return s, err
}

func parseBias(o reqjson.Object, vocab int) (map[int32]float64, error) {
	b, ok, err := o.Object("logit_bias")
	if err != nil || !ok {
		return nil, err
	}
	out := make(map[int32]float64, len(b.Members()))
	for key := range b.Members() {
		id, err := strconv.ParseInt(key, 10, 32)
		if err != nil || id < 0 || id >= int64(vocab) {
			return nil, reqerr.InvalidValue(b.Path(key), "is not a token id below %d", vocab)
		}
		v, _, err := b.Float(reqjson.Between(-100, 100), key)
		if err != nil {
			return nil, err
		}
		out[int32(id)] = v
	}
	return out, nil
}
