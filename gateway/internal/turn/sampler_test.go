package turn_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
	"github.com/tandem-inference/tandem/gateway/internal/turn"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/sampling"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/testing/protocmp"
)

// samplerValue is v as the field of a message and as a JSON value.
func samplerValue(t *testing.T, f *sampling.Field, v float64) (*tandemv1.Sampling, string) {
	t.Helper()
	m := &tandemv1.Sampling{}
	var shown any = v
	switch {
	case f.Map():
		f.SetMap(m, map[int32]float64{5: v})
		shown = map[string]float64{"5": v}
	case f.Whole():
		f.SetInt(m, int64(v))
	default:
		f.SetFloat(m, v)
	}
	text, err := json.Marshal(shown)
	if err != nil {
		t.Fatal(err)
	}
	return m, string(text)
}

// notSampled are the endpoints without the sampler's fields, and why.
var notSampled = map[string]string{
	"/v1/messages/count_tokens": "counts", "/apply-template": "renders",
	"/tokenize": "encodes", "/detokenize": "decodes",
}

// TestSamplerFields walks the declared fields of the sampler through every way in. No dialect lacks one: the ends of
// its range reach the worker under every name that it has there, and what lies beyond is refused with its name and
// range.
func TestSamplerFields(t *testing.T) {
	r := rig.Start(t, nil)
	w := r.Target(gatewaytest.WorkerOptions{Decode: r.Reply("ok", 1)})
	api := r.RPC()
	const messages = `"messages":[{"role":"user","content":"x"}]`
	ways := map[string]string{"/v1/chat/completions": messages, "/v1/completions": `"prompt":"x"`,
		"/v1/responses": `"input":"x"`, "/v1/messages": messages}
	call := func(m *tandemv1.Sampling) error {
		_, err := rig.RunRPC(t.Context(), api, &tandemv1.GenerateRequest{Input: rig.ChatInput("x", false), Sampling: m})
		return err
	}
	for _, d := range dialectFields() {
		if ways[d.endpoint] == "" && notSampled[d.endpoint] == "" {
			t.Errorf("%s: has it the sampler's fields?", d.endpoint)
		}
	}
	// last is the field of the newest request as the worker got it, alone.
	last := func(f *sampling.Field) *tandemv1.Sampling {
		requests := w.Requests()
		got := requests[len(requests)-1].GetSampling().ProtoReflect()
		out := &tandemv1.Sampling{}
		if field := got.Descriptor().Fields().ByName(protoreflect.Name(f.Name)); got.Has(field) {
			out.ProtoReflect().Set(field, got.Get(field))
		}
		return out
	}
	for _, f := range sampling.Fields() {
		least, most := f.Range.Ends()
		good, bad := []float64{least, most}, []float64{beyond(&f, least, -1), beyond(&f, most, 1)}
		if math.IsInf(least, 0) {
			good, bad = []float64{-1 << 53, 1 << 53}, nil // a seed: every number of its type
		}
		for _, v := range good {
			want, text := samplerValue(t, &f, v)
			for path, base := range ways {
				for _, name := range turn.SamplerNames(&f) {
					if a := r.Post(path, "{"+base+`,"`+name+`":`+text+"}"); a.Status != 200 {
						t.Errorf("%s, %s %s: %d %s", path, name, text, a.Status, a.Body)
					} else if d := cmp.Diff(want, last(&f), protocmp.Transform()); d != "" {
						t.Errorf("%s, %s %s: the worker got %s", path, name, text, d)
					}
				}
			}
			if err := call(want); err != nil {
				t.Errorf("gRPC: %v", err)
			} else if d := cmp.Diff(want, last(&f), protocmp.Transform()); d != "" {
				t.Errorf("gRPC: the worker got %s", d)
			}
		}
		for _, v := range bad {
			m, text := samplerValue(t, &f, v)
			for path, base := range ways {
				for _, name := range turn.SamplerNames(&f) {
					a := r.Post(path, "{"+base+`,"`+name+`":`+text+"}")
					said := fmt.Sprint(rig.At(a.JSON(t), "error", "message"))
					if a.Status != 400 || !strings.Contains(said, name) || !strings.Contains(said, f.Range.String()) {
						t.Errorf("%s, %s %s: %d %s, the range is %v", path, name, text, a.Status, a.Body, f.Range)
					}
				}
			}
			if f.Whole() && f.Interval == "any" {
				continue // the field of the message holds nothing else
			}
			if err := call(m); rpcerr.Code(err) != codes.InvalidArgument ||
				!strings.Contains(err.Error(), "sampling."+f.Name) || !strings.Contains(err.Error(), f.Range.String()) {
				t.Errorf("gRPC: %v, the range of %s is %v", err, f.Name, f.Range)
			}
		}
	}
}

// beyond is the number next to the end of a range, outside it.
func beyond(f *sampling.Field, end, step float64) float64 {
	if f.Whole() {
		return end + step
	}
	return math.Nextafter(end, end+step)
}

// TestSamplerDefaults: /props reports the declared default of every field that has one, or the card's, and both are
// what requests that say nothing get.
func TestSamplerDefaults(t *testing.T) {
	card := map[string]any{}
	inCard := &tandemv1.Sampling{}
	for _, f := range sampling.Fields() {
		if f.InCard {
			_, most := f.Range.Ends()
			m, _ := samplerValue(t, &f, min(most, 40))
			card[f.Name] = min(most, 40)
			proto.Merge(inCard, m)
		}
	}
	if len(card) < 6 {
		t.Fatalf("cards hold %v", card)
	}
	path := filepath.Join(t.TempDir(), "card.json")
	text := rig.JSON(map[string]any{"name": "C", "source": "http://x.example", "verified_at": "2026-01-01",
		"max_tokens": 8000, "sampling": card})
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*app.Config){
		"declared": nil, "card": func(c *app.Config) { c.ModelCard = path },
	} {
		t.Run(name, func(t *testing.T) {
			from := map[string]*tandemv1.Sampling{"declared": {}, "card": inCard}[name]
			r := rig.Start(t, change)
			w := r.Target(gatewaytest.WorkerOptions{MaxContext: 512, Decode: r.Reply("ok", 1)})
			want := map[string]any{"n_ctx": 512.0}
			able := map[string]any{}
			for _, f := range sampling.Fields() {
				shown := turn.SamplerNames(&f)[0]
				able[shown] = true
				if f.Name == "repetition_penalty" {
					shown = "repeat_penalty"
				}
				if f.Default != nil {
					want[shown] = f.Number(from)
				}
			}
			v := r.Do("GET", "/props", "").JSON(t)
			if d := cmp.Diff(want, rig.At(v, "default_generation_settings")); d != "" {
				t.Error(d)
			}
			if d := cmp.Diff(able, rig.At(v, "sampling", "capabilities")); d != "" {
				t.Error(d)
			}
			if a := r.Post("/v1/chat/completions", rig.ChatBody("")); a.Status != 200 {
				t.Fatalf("%d %s", a.Status, a.Body)
			}
			plain := &tandemv1.GenerateRequest{Input: rig.ChatInput("x", false)}
			if _, err := rig.RunRPC(t.Context(), r.RPC(), plain); err != nil {
				t.Fatal(err)
			}
			for _, req := range w.Requests() {
				got := proto.Clone(req.GetSampling()).(*tandemv1.Sampling)
				if got.Seed == nil {
					t.Error("no seed was drawn")
				}
				got.Seed = nil
				if d := cmp.Diff(from, got, protocmp.Transform()); d != "" {
					t.Error(d)
				}
			}
			if len(w.Requests()) != 2 {
				t.Errorf("%d requests", len(w.Requests()))
			}
		})
	}
}
