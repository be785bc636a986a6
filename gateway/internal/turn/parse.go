package turn

import (
	"math"
	"net/http"

	"github.com/tandem-inference/tandem/gateway/internal/compress"
	"github.com/tandem-inference/tandem/gateway/internal/generate"
	"github.com/tandem-inference/tandem/gateway/internal/model"
	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	"github.com/tandem-inference/tandem/gateway/internal/reqjson"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/bounds"
)

// Limits of a request's fields that are not the sampler's.
const (
	// MaxStops and MaxStopBytes bound the stop strings.
	MaxStops     = 16
	MaxStopBytes = 256
	// MaxTopLogprobs is the most candidates a request may ask for per token.
	MaxTopLogprobs = 20
	// MaxSpeculation bounds the nodes and rows of a request's speculation.
	MaxSpeculation = 4096
	// MaxSessionID is in bytes.
	MaxSessionID = 256
)

// Parse reads all fields that the chat dialects share: those of Base, tools, tool choice, thinking and compression. The
// dialect adds the conversation and the fields with a shape of its own.
func (s *Service) Parse(r *http.Request, o reqjson.Object, m *model.Model) (*Request, error) {
	req, err := s.Base(r, o, m, 1)
	if err != nil {
		return nil, err
	}
	if req.Tools, req.Skipped, err = ParseTools(o); err != nil {
		return nil, err
	}
	var parallel *bool
	if req.Choice, parallel, err = ParseToolChoice(o, req.Tools); err != nil {
		return nil, err
	}
	p, given, err := o.Bool("parallel_tool_calls")
	if err != nil {
		return nil, err
	}
	if given {
		parallel = &p
	}
	req.Parallel = parallel == nil || *parallel
	if req.Thinking, req.Kwargs, err = ParseThinking(o); err != nil {
		return nil, err
	}
	req.Pflash, err = parsePflash(o)
	return req, err
}

// Base reads the fields that every generating endpoint has, legacy completions included. least is the
// smallest max_tokens.
func (s *Service) Base(r *http.Request, o reqjson.Object, m *model.Model, least float64) (*Request, error) {
	call := CallFrom(r.Context())
	req := &Request{ID: call.ID, Arrived: call.Arrived, Priority: Priority(call.Trusted, r.Header.Get("X-Priority")), N: 1,
		TopLogprobs: generate.NoLogprobs, Scope: call.Scope, Body: o}
	for _, name := range otherConstraints {
		if o.Has(name) {
			return nil, reqerr.Unsupported(name, "is not supported; response_format and grammar are")
		}
	}
	var err error
	if req.Stream, _, err = o.Bool("stream"); err != nil {
		return nil, err
	}
	if req.Sampling, err = s.sampling(o, m); err != nil {
		return nil, err
	}
	if req.Stops, err = parseStops(o); err != nil {
		return nil, err
	}
	if req.Speculation, err = parseSpeculation(o); err != nil {
		return nil, err
	}
	if req.Format, err = parseGrammar(o); err != nil {
		return nil, err
	}
	if req.MaxTokens, req.MaxTokensGiven, err = parseMaxTokens(o, least); err != nil {
		return nil, err
	}
	n, ok, err := o.Int(bounds.Between(1, float64(s.cfg.MaxN)), "n")
	if err != nil {
		return nil, err
	}
	if ok {
		req.N = int(n)
	}
	cache, given, err := o.Bool("cache_prompt")
	if err != nil {
		return nil, err
	}
	req.NoCache = given && !cache
	if _, _, err := o.Bool("store"); err != nil {
		return nil, err
	}
	if req.Model, _, err = o.String("model"); err != nil {
		return nil, err
	}
	if req.SessionID, err = sessionID(r, o); err != nil {
		return nil, err
	}
	req.Owner = call.Scope
	req.Share = Share(call.Scope, req.SessionID, r.RemoteAddr)
	return req, nil
}

// otherConstraints are fields of other servers that limit the output. They are refused, because clients rely on
// their effect.
var otherConstraints = []string{"guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs",
	"json_schema", "regex", "ebnf"}

// OneChoice refuses a number of choices above 1, for dialects that answer with one.
func (r *Request) OneChoice() error {
	if r.N > 1 {
		return reqerr.InvalidValue("n", "must be 1 here, got %d", r.N)
	}
	return nil
}

// sessionHeaders are those that clients are known to send (docs/spec/clients.md §3).
var sessionHeaders = []string{"X-Session-Id", "X-Claude-Code-Session-Id", "Session-Id", "X-Session-Affinity"}

// KeptHeaders are those of a request's headers that say more of it than its body, for a request that may have to run
// again elsewhere.
func KeptHeaders(h http.Header) http.Header {
	kept := http.Header{}
	for _, name := range append([]string{"X-Priority"}, sessionHeaders...) {
		if v := h.Get(name); v != "" && len(v) <= MaxSessionID {
			kept.Set(name, v)
		}
	}
	return kept
}

// sessionID finds the session in body or headers.
func sessionID(r *http.Request, o reqjson.Object) (string, error) {
	type source struct {
		o    reqjson.Object
		name string
	}
	sources := []source{{o, "session_id"}}
	if raw, _, ok := o.Peek("metadata"); ok && reqjson.Kind(raw) == 'o' {
		md, _, err := o.Object("metadata")
		if err != nil {
			return "", err
		}
		sources = append(sources, source{md, "session_id"})
	}
	for _, src := range append(sources, source{o, "prompt_cache_key"}) {
		id, ok, err := src.o.String(src.name)
		if err != nil {
			return "", err
		}
		if len(id) > MaxSessionID {
			return "", reqerr.InvalidValue(src.o.Path(src.name),
				"has %d bytes, at most %d are allowed", len(id), MaxSessionID)
		}
		if ok && id != "" {
			return id, nil
		}
	}
	for _, name := range sessionHeaders {
		// Clients set headers automatically, so one that is too long is ignored, not an error.
		if id := r.Header.Get(name); id != "" && len(id) <= MaxSessionID {
			return id, nil
		}
	}
	return "", nil
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
		if len(s) > MaxStopBytes {
			return nil, reqerr.InvalidValue(reqjson.Index(name, i),
				"has %d bytes, at most %d are allowed", len(s), MaxStopBytes)
		}
		out = append(out, s)
	}
	if len(list) > MaxStops {
		return nil, reqerr.InvalidValue(name, "has %d entries, at most %d are allowed", len(list), MaxStops)
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
			"lookup": tandemv1.SpeculationMode_SPECULATION_MODE_LOOKUP,
			"chain":  tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN, "tree": tandemv1.SpeculationMode_SPECULATION_MODE_TREE,
		}
		if out.Mode, ok = modes[mode]; !ok {
			return nil, reqerr.InvalidValue("speculation.mode",
				"must be auto, off, lookup, chain or tree, got %q", mode)
		}
	}
	for name, dst := range map[string]*int32{"budget": &out.Budget, "block": &out.Block} {
		v, _, err := s.Int(bounds.Between(0, MaxSpeculation), name)
		if err != nil {
			return nil, err
		}
		*dst = int32(v)
	}
	return out, nil
}

// parseMaxTokens reads max_tokens or an alias; least is 1, or 0 for legacy completions, which allow it with echo.
func parseMaxTokens(o reqjson.Object, least float64) (n int, given bool, err error) {
	v, ok, err := o.Int(bounds.Between(least, math.MaxInt32),
		"max_tokens", "max_completion_tokens", "max_output_tokens")
	return int(v), ok, err
}

// parsePflash reads the request's settings of compression.
func parsePflash(o reqjson.Object) (want compress.Settings, err error) {
	p, ok, err := o.Object("pflash")
	if err != nil || !ok {
		return want, err
	}
	mode, given, err := p.String("mode")
	if err != nil {
		return want, err
	}
	if given {
		switch mode {
		case compress.ModeOff, compress.ModeAuto, compress.ModeAlways:
			want.Mode = mode
		default:
			return want, reqerr.InvalidValue("pflash.mode", "must be off, auto or always, got %q", mode)
		}
	}
	n, _, err := p.Int(bounds.Between(1, 1<<31-1), "threshold")
	if err != nil {
		return want, err
	}
	want.Threshold = int(n)
	if want.KeepRatio, _, err = p.Float(bounds.Above(0, 1), "keep_ratio"); err != nil {
		return want, err
	}
	n, want.MinChunksGiven, err = p.Int(bounds.Between(0, 1<<20), "min_chunks")
	want.MinChunks = int(n)
	if err != nil {
		return want, err
	}
	if want.Spans, _, err = p.Bool("spans"); err != nil {
		return want, err
	}
	for _, name := range []string{"code_floor", "protect", "rescore"} {
		if p.Has(name) {
			return want, reqerr.Unsupported(p.Path(name), "is not supported yet")
		}
	}
	return want, nil
}
