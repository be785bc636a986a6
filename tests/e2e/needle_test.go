package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/gguf"
	"github.com/tandem-inference/tandem/services/tokenizer"
	"github.com/tandem-inference/tandem/tests/client"
	"github.com/tandem-inference/tandem/tests/cluster"
	"github.com/tandem-inference/tandem/tests/reference"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// needle is a prompt with one fact hidden in it.
type needle struct {
	Tokens       int
	Prompt       string
	Answer       string
	Keep         float64
	FullOK       bool `json:"full_ok"`
	CompressedOK bool `json:"compressed_ok"`
}

// question splits a rendered prompt into the text of its user turn.
func (n needle) question() string {
	text := strings.TrimPrefix(n.Prompt, "<|im_start|>user\n")
	text, _, _ = strings.Cut(text, "<|im_end|>")
	return text
}

// TestNeedles: facts are found in long prompts as the reference finds them, with the prompt whole and compressed. Eight
// prompts here, all of them in bench/needle.
func TestNeedles(t *testing.T) {
	_, c := demo(t)
	var all []needle
	if err := reference.Read("tandem-tiny-needle.json.gz", &all); err != nil {
		t.Fatal(err)
	}
	var chosen []needle
	for _, n := range all {
		if n.FullOK && n.CompressedOK && n.Tokens > 1500 && n.Tokens < 5000 && len(chosen) < 8 {
			chosen = append(chosen, n)
		}
	}
	if len(chosen) < 4 {
		t.Fatalf("%d prompts to try", len(chosen))
	}
	off := false
	for _, mode := range []string{"off", "always"} {
		found, kept, prompt := 0, 0, 0
		for _, n := range chosen {
			reply, err := c.Do(t.Context(), client.Request{
				Messages: chat(n.question()), MaxTokens: 24, EnableThinking: &off,
				PFlash: map[string]any{"mode": mode, "keep_ratio": 0.2},
			})
			if err != nil {
				t.Fatalf("%s, %d tokens: %v", mode, n.Tokens, err)
			}
			if strings.Contains(reply.Text, n.Answer) {
				found++
			} else {
				t.Logf("%s, %d tokens: %q lacks %s", mode, n.Tokens, reply.Text, n.Answer)
			}
			prompt += n.Tokens
			kept += n.Tokens - reply.Usage.PromptDetails.CompressedTokens
		}
		t.Logf("%s: %d of %d found, %d of %d tokens read", mode, found, len(chosen), kept, prompt)
		if found < len(chosen)-1 {
			t.Errorf("%s: %d of %d found", mode, found, len(chosen))
		}
		if mode == "always" && kept > prompt*2/3 {
			t.Errorf("compression kept %d of %d tokens", kept, prompt)
		}
	}
}

// TestScorerKeepsNeedles asks the demonstration scorer itself: the sentence that holds the answer is kept when the
// question asks. How often it is kept when the end of the prompt asks is logged.
func TestScorerKeepsNeedles(t *testing.T) {
	conn, _ := grpcClient(t)
	workers, err := tandemv1.NewInferenceServiceClient(conn).GetCluster(t.Context(), &tandemv1.GetClusterRequest{})
	if err != nil {
		t.Fatal(err)
	}
	address := ""
	for _, w := range workers.GetWorkers() {
		if w.GetRole() == tandemv1.Role_ROLE_PREFILL {
			address = w.GetAddress()
		}
	}
	direct, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatalf("scorer at %q: %v", address, err)
	}
	defer direct.Close()
	scorer, tok := tandemv1.NewPrefillServiceClient(direct), scorerTokenizer(t)
	var all []needle
	if err := reference.Read("tandem-tiny-needle.json.gz", &all); err != nil {
		t.Fatal(err)
	}
	const cases = 10
	found, tried := map[string]int{}, 0
	for _, n := range all {
		if n.Tokens > 4500 || tried == cases {
			continue
		}
		tried++
		ids, document, asked := n.parts(tok)
		for name, query := range map[string]*tandemv1.Span{
			"question": {First: document, Last: asked}, "end of prompt": nil,
		} {
			reply, err := scorer.Compress(t.Context(), &tandemv1.CompressRequest{
				Tokens: ids, Query: query,
				Segments: []*tandemv1.Segment{{
					Span: &tandemv1.Span{First: 0, Last: document}, KeepRatio: min(1, max(0.02, n.Keep/4)),
				}},
			})
			if err != nil {
				t.Fatal(err)
			}
			var text strings.Builder
			for _, k := range reply.GetSegments()[0].GetKept() {
				text.WriteString(tok.Decode(ids[k.First:k.Last], true))
			}
			if strings.Contains(text.String(), n.Answer) {
				found[name]++
			}
			t.Logf("%d tokens, asked by the %s: kept %d of %d bytes", len(ids), name, text.Len(), len(n.Prompt))
		}
	}
	t.Logf("answers kept of %d: %v", tried, found)
	if tried < cases || found["question"] < tried*8/10 {
		t.Errorf("%d of %d answers kept", found["question"], tried)
	}
}

// parts is the prompt in tokens: the document up to the first position returned, the question up to the second, and the
// end of the template. Each part is tokenised by itself.
func (n needle) parts(tok *tokenizer.Tokenizer) (ids []int32, document, asked int32) {
	end := strings.Index(n.Prompt, "<|im_end|>")
	question := strings.LastIndex(n.Prompt[:end], "\n\n")
	options := tokenizer.Options{ParseSpecial: true}
	ids = tok.Encode(n.Prompt[:question], options)
	document = int32(len(ids))
	ids = append(ids, tok.Encode(n.Prompt[question:end], options)...)
	asked = int32(len(ids))
	return append(ids, tok.Encode(n.Prompt[end:], options)...), document, asked
}

// scorerTokenizer is the tokenizer of the demonstration scorer.
func scorerTokenizer(t *testing.T) *tokenizer.Tokenizer {
	t.Helper()
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	file, err := gguf.Open(filepath.Join(root, "models", "tandem-tiny-prefill-q8_0.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	tok, err := tokenizer.FromGGUF(file)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}
