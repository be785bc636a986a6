package rig

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/model"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/tokenizer"
)

// Haystack is a document of about 25 tokens a line with one line that answers the question.
func Haystack(lines, needle int) string {
	var b strings.Builder
	for i := range lines {
		if i == needle {
			b.WriteString("The access code of raven is 40963.\n")
		}
		fmt.Fprintf(&b, "Line %d of the document says that nothing of note happened on day %d of the long trip.\n", i, i*7)
	}
	return b.String()
}

// Scorer keeps the chunks of 32 tokens that hold one of the words, and the first and last of each segment.
func Scorer(t *testing.T, words ...string) (gatewaytest.Compress, *tokenizer.Tokenizer) {
	tok, err := model.LoadTokenizer(gatewaytest.ModelPath(t, gatewaytest.Scorer))
	if err != nil {
		t.Fatal(err)
	}
	return func(_ context.Context, req *tandemv1.CompressRequest) (*tandemv1.CompressResponse, error) {
		out := &tandemv1.CompressResponse{ScoreMs: 12.5}
		for _, s := range req.GetSegments() {
			k := &tandemv1.KeptSegment{}
			for a := s.GetSpan().GetFirst(); a < s.GetSpan().GetLast(); a += 32 {
				b := min(a+32, s.GetSpan().GetLast())
				keep := a == s.GetSpan().GetFirst() || b == s.GetSpan().GetLast()
				for _, w := range words {
					keep = keep || strings.Contains(tok.Decode(req.GetTokens()[a:b], true), w)
				}
				if keep {
					k.Kept = append(k.Kept, &tandemv1.Span{First: a, Last: b})
				}
			}
			out.Segments = append(out.Segments, k)
		}
		return out, nil
	}, tok
}

// Scorer joins a fake scorer and waits until the gateway compresses with it.
func (r *Rig) Scorer(script gatewaytest.Compress) *gatewaytest.Worker {
	r.T.Helper()
	w := gatewaytest.Join(r.T, r.App.RegistryAddr().String(),
		gatewaytest.WorkerOptions{ID: "s1", Role: tandemv1.Role_ROLE_PREFILL, Slots: 1, MaxContext: 65536, Compress: script})
	r.Eventually("scorer is ready",
		func() bool { return r.Parts.Cluster.Scorers.Ready() && r.Parts.ScorerTokenizer() != nil })
	return w
}

// ChatOf is the messages of a chat, given as role and content in turns.
func ChatOf(msgs ...string) string {
	var list []map[string]string
	for i := 0; i+1 < len(msgs); i += 2 {
		list = append(list, map[string]string{"role": msgs[i], "content": msgs[i+1]})
	}
	return string(JSON(list))
}
