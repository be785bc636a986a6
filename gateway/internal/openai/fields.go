package openai

import (
	"github.com/tandem-inference/tandem/gateway/internal/generate"
	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	"github.com/tandem-inference/tandem/gateway/internal/reqjson"
	"github.com/tandem-inference/tandem/gateway/internal/turn"
	"github.com/tandem-inference/tandem/services/bounds"
)

// checkModalities refuses output other than text.
func checkModalities(o reqjson.Object) error {
	list, _, ok, err := o.Strings("modalities")
	if err != nil || !ok {
		return err
	}
	for i, m := range list {
		if m != "text" {
			return reqerr.Unsupported(reqjson.Index("modalities", i), "%q is not supported; only text is", m)
		}
	}
	return nil
}

// streamOptions are the fields about streaming.
type streamOptions struct {
	// usage: send a usage chunk at the end; usageNull: earlier chunks carry "usage":null.
	usage, usageNull bool
}

func parseStreamOptions(o reqjson.Object, usageByDefault bool) (so streamOptions, err error) {
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
	top, given, err := o.Int(bounds.Between(0, turn.MaxTopLogprobs), "top_logprobs")
	if err != nil {
		return 0, err
	}
	switch {
	case want:
		return int(top), nil
	case given && top > 0:
		return 0, reqerr.InvalidValue("top_logprobs", "needs logprobs: true")
	}
	return generate.NoLogprobs, nil
}
