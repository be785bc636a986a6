package openai

import (
	"math"
	"math/rand/v2"
	"strconv"

	"github.com/tandem-inference/tandem/gateway/internal/apierror"
	"github.com/tandem-inference/tandem/gateway/internal/generate"
	"github.com/tandem-inference/tandem/gateway/internal/reqjson"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"google.golang.org/protobuf/proto"
)

// Limits of stop strings and log-probabilities.
const (
	maxStops       = 16
	maxStopBytes   = 256
	maxTopLogprobs = 20
	maxSessionID   = 256
)

// parseSampling reads the sampler's fields. vocab bounds the ids of logit_bias. A seed is drawn when none is given, so that a
// generation can be replayed on another worker.
func parseSampling(o reqjson.Object, vocab int) (*tandemv1.Sampling, error) {
	s := &tandemv1.Sampling{}
	for _, f := range []struct {
		dst   **float64
		rng   reqjson.Range
		names []string
	}{
		{&s.Temperature, reqjson.Between(0, 2), []string{"temperature"}},
		{&s.TopP, reqjson.Above(0, 1), []string{"top_p"}},
		{&s.MinP, reqjson.Between(0, 1), []string{"min_p"}},
		{&s.RepetitionPenalty, reqjson.Above(0, 4), []string{"repetition_penalty", "rep_pen", "repeat_penalty"}},
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
			return nil, apierror.InvalidValue(b.Path(key), "is not a token id below %d", vocab)
		}
		v, _, err := b.Float(reqjson.Between(-100, 100), key)
		if err != nil {
			return nil, err
		}
		out[int32(id)] = v
	}
	return out, nil
}

func parseStops(o reqjson.Object) ([]string, error) {
	list, name, ok, err := o.Strings("stop", "stop_sequences")
	if err != nil || !ok {
		return nil, err
	}
	var out []string
	for i, s := range list {
		if s == "" {
			continue
		}
		if len(s) > maxStopBytes {
			return nil, apierror.InvalidValue(reqjson.Index(name, i), "has %d bytes, at most %d are allowed", len(s), maxStopBytes)
		}
		out = append(out, s)
	}
	if len(list) > maxStops {
		return nil, apierror.InvalidValue(name, "has %d entries, at most %d are allowed", len(list), maxStops)
	}
	return out, nil
}

func parseSpeculation(o reqjson.Object) (*tandemv1.Speculation, error) {
	s, ok, err := o.Object("speculation")
	if err != nil || !ok {
		return nil, err
	}
	out := &tandemv1.Speculation{}
	mode, ok, err := s.String("mode")
	if err != nil {
		return nil, err
	}
	if ok {
		modes := map[string]tandemv1.SpeculationMode{
			"auto": tandemv1.SpeculationMode_SPECULATION_MODE_AUTO, "off": tandemv1.SpeculationMode_SPECULATION_MODE_OFF,
			"chain": tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN, "tree": tandemv1.SpeculationMode_SPECULATION_MODE_TREE,
		}
		if out.Mode, ok = modes[mode]; !ok {
			return nil, apierror.InvalidValue("speculation.mode", "must be auto, off, chain or tree, got %q", mode)
		}
	}
	for name, dst := range map[string]*int32{"budget": &out.Budget, "block": &out.Block} {
		v, _, err := s.Int(reqjson.Between(0, 4096), name)
		if err != nil {
			return nil, err
		}
		*dst = int32(v)
	}
	return out, nil
}

// parseMaxTokens reads max_tokens or an alias; least is 1, or 0 for legacy completions, which allow it with echo.
func parseMaxTokens(o reqjson.Object, least float64) (n int, given bool, err error) {
	v, ok, err := o.Int(reqjson.Between(least, math.MaxInt32), "max_tokens", "max_completion_tokens", "max_output_tokens")
	return int(v), ok, err
}

// checkIgnored looks at fields that are accepted without effect, so that a wrong type is still reported where it has a meaning.
func checkIgnored(o reqjson.Object) error {
	for _, name := range []string{"parallel_tool_calls", "cache_prompt", "store"} {
		if _, _, err := o.Bool(name); err != nil {
			return err
		}
	}
	for _, name := range []string{"session_id", "prompt_cache_key"} {
		s, ok, err := o.String(name)
		if err != nil {
			return err
		}
		if ok && len(s) > maxSessionID {
			return apierror.InvalidValue(name, "has %d bytes, at most %d are allowed", len(s), maxSessionID)
		}
	}
	return nil
}

// checkFormat refuses constrained output, which does not exist yet.
func checkFormat(o reqjson.Object) error {
	f, ok, err := o.Object("response_format")
	if err != nil || !ok {
		return err
	}
	kind, ok, err := f.String("type")
	if err != nil || !ok || kind == "text" {
		return err
	}
	switch kind {
	case "json_object", "json_schema":
		return apierror.Unsupported("response_format.type", "%q is not supported yet; only text is", kind)
	}
	return apierror.InvalidValue("response_format.type", "must be text, json_object or json_schema, got %q", kind)
}

// checkModalities refuses output other than text.
func checkModalities(o reqjson.Object) error {
	list, _, ok, err := o.Strings("modalities")
	if err != nil || !ok {
		return err
	}
	for i, m := range list {
		if m != "text" {
			return apierror.Unsupported(reqjson.Index("modalities", i), "%q is not supported; only text is", m)
		}
	}
	return nil
}

// streamOptions are the fields about streaming.
type streamOptions struct {
	stream bool
	// usage: send a usage chunk at the end; usageNull: earlier chunks carry "usage":null.
	usage, usageNull bool
}

func parseStream(o reqjson.Object, usageByDefault bool) (so streamOptions, err error) {
	if so.stream, _, err = o.Bool("stream"); err != nil {
		return so, err
	}
	opts, ok, err := o.Object("stream_options")
	if err != nil {
		return so, err
	}
	so.usage = usageByDefault
	if ok {
		include, given, err := opts.Bool("include_usage")
		if err != nil {
			return so, err
		}
		if given {
			so.usage, so.usageNull = include, include
		}
	}
	return so, nil
}

// parseChatLogprobs reads logprobs and top_logprobs of chat requests.
func parseChatLogprobs(o reqjson.Object) (int, error) {
	want, _, err := o.Bool("logprobs")
	if err != nil {
		return 0, err
	}
	top, given, err := o.Int(reqjson.Between(0, maxTopLogprobs), "top_logprobs")
	if err != nil {
		return 0, err
	}
	switch {
	case want:
		return int(top), nil
	case given && top > 0:
		return 0, apierror.InvalidValue("top_logprobs", "needs logprobs: true")
	}
	return generate.NoLogprobs, nil
}
