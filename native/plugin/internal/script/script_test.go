package script

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/engine/enginetest"
	"github.com/tandem-inference/tandem/services/gguf"
	"github.com/tandem-inference/tandem/services/racetest"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/tokenizer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const models = "../../../../models/"

var files = enginetest.Models{
	Target:   models + "tandem-tiny-target-q4_k_m.gguf",
	Draft:    models + "tandem-tiny-draft-q8_0.gguf",
	Tables:   models + "tandem-tiny-target-q4_k_m.gguf",
	Score:    models + "tandem-tiny-prefill-q8_0.gguf",
	Missing:  models + "no-such-file.gguf",
	Scripted: true,
}

func TestConformance(t *testing.T) {
	enginetest.Run(t, func(*testing.T) (engine.Opener, enginetest.Models) { return Opener{}, files })
}

func vocabulary(t testing.TB) *tokenizer.Tokenizer {
	t.Helper()
	f, err := gguf.Open(files.Target)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tok, err := tokenizer.FromGGUF(f)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func parse(t testing.TB, text string) []Rule {
	t.Helper()
	rules, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

func TestRules(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{`{}`, "cannot unmarshal object"},
		{`[{"prompt":"("}]`, "rule 1: prompt"},
		{`[{"prompt":"a"},{"promt":"b"}]`, `unknown field "promt"`},
		{`[{"tokens_per_second":-1}]`, "rule 1: tokens_per_second: -1 is negative"},
		{`[{"first_token_ms":-1}]`, "first_token_ms"},
		{`[{"accept":[2,0]}]`, "accept: a round commits at least 1 token, got 0"},
		{`[] []`, "text behind"},
	} {
		if _, err := Parse([]byte(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.text, err, c.want)
		}
	}
	if _, err := Load(filepath.Join(t.TempDir(), "none.json")); err == nil || !strings.Contains(err.Error(), Variable) {
		t.Errorf("a missing file: %v", err)
	}
	rules := parse(t, `[{"prompt":"call (\\w+)","emit":"$1 costs $$5"},{"prompt":"(?P<who>Ada)","emit":"Hi ${who}."},{"emit":"rest"}]`)
	for prompt, want := range map[string]string{"call me": "me costs $5", "Ada": "Hi Ada.", "": "rest"} {
		if _, got := answer(rules, prompt); got != want {
			t.Errorf("%q is answered by %q, want %q", prompt, got, want)
		}
	}
	if _, got := answer(rules[:2], "else"); got != "None of the 2 rules of TANDEM_SCRIPT matches this prompt." {
		t.Errorf("no match is answered by %q", got)
	}
}

// follow lets a plan write behind a forced start.
func follow(p *plan, forced string) string {
	output := p.tok.Encode(forced, tokenizer.Options{ParseSpecial: true})
	for range 200 {
		next := p.next(p.place(output))
		if next == p.end {
			return p.tok.Decode(output, true)
		}
		output = append(output, next)
	}
	return "no end: " + p.tok.Decode(output, true)
}

func TestPlan(t *testing.T) {
	tok := vocabulary(t)
	const text = "<think>Let me see this in peace</think>\n\nIt is <tool_call>{\"name\": \"f\"}</tool_call> \u00e9\U0001F600 done"
	for _, c := range []struct{ name, forced, want string }{
		{"nothing forced", "", text},
		{"a part of the text", "<think>Let me", text},
		{"cut within a token", "<think>Let m", text},
		{"forced close", "<think>Let me</think>\n\n", "<think>Let me</think>" + text[strings.Index(text, "\n\n"):]},
		{"hint and close", "<think>Let me XYZ!</think>", "<think>Let me XYZ!</think>" + text[strings.Index(text, "\n\n"):]},
		{"forced call", "<tool_call>", text[strings.Index(text, "<tool_call>"):]},
		{"skips within a stretch", "<think>Let me peace", "<think>Let me peace" + text[strings.Index(text, "</think>"):]},
		{"not in the text", "@@", "@@" + text},
	} {
		p := newPlan(tok, &Rule{}, text, tok.EOS())
		if got := follow(p, c.forced); got != c.want {
			t.Errorf("%s:\n got %q\nwant %q", c.name, got, c.want)
		}
	}
}

// TestBytes: a text goes on behind any cut, also one in the middle of a character.
func TestBytes(t *testing.T) {
	tok := vocabulary(t)
	const text = "na\u00efve \U0001F600 caf\u00e9"
	p := newPlan(tok, &Rule{}, text, tok.EOS())
	for cut := range len(text) {
		var output []int32
		for i := range cut {
			id, ok := tok.ID(text[i : i+1])
			if !ok {
				t.Fatalf("no token for byte %#x", text[i])
			}
			output = append(output, id)
		}
		for next := p.next(p.place(output)); next != p.end && len(output) < 100; next = p.next(p.place(output)) {
			output = append(output, next)
		}
		if got := tok.Decode(output, true); got != text {
			t.Errorf("cut at %d: %q", cut, got)
		}
	}
}

func TestAllowed(t *testing.T) {
	tok := vocabulary(t)
	only := func(texts ...string) func(int32) bool {
		ids := map[int32]bool{}
		for _, s := range texts {
			id, ok := tok.ID(s)
			if !ok {
				t.Fatalf("%q is no token", s)
			}
			ids[id] = true
		}
		return func(id int32) bool { return ids[id] }
	}
	for _, c := range []struct {
		name, text string
		ok         func(int32) bool
		want       string
	}{
		{"the text itself", "{}", func(int32) bool { return true }, "{}"},
		{"a shorter piece of it", "return", only("r", "x"), "r"},
		{"skips an introduction", "Sure: {", only("{", "}"), "{"},
		{"a special token ahead", "one <tool_call>", only("<tool_call>", "x"), "<tool_call>"},
		{"the end of the turn", "one", only("<|im_end|>", "\""), "<|im_end|>"},
		{"a closing character", "one", only("x", "}", "\""), "\""},
		{"the shortest", "one", only("return", "x"), "x"},
	} {
		p := newPlan(tok, &Rule{}, c.text, tok.EOS())
		got := p.allowed(0, c.ok)
		if text := string(tok.TokenBytes(got)); got < 0 || !(text == c.want ||
			c.name == "the text itself" && strings.HasPrefix(c.want, text)) {
			t.Errorf("%s: %q, want %q", c.name, text, c.want)
		}
		if got := p.allowed(0, func(int32) bool { return false }); got != -1 {
			t.Errorf("%s: nothing is allowed, got %d", c.name, got)
		}
	}
}

// rig is a target and a draft with one sequence each.
type rig struct {
	*testing.T
	tok    *tokenizer.Tokenizer
	target engine.Target
	draft  engine.Draft
	q, dq  engine.Sequence
	prompt []int32
	result engine.StepResult
}

func newRig(t *testing.T, rules, prompt string) *rig {
	t.Helper()
	r := &rig{T: t, tok: vocabulary(t)}
	r.prompt = r.tok.Encode(prompt, tokenizer.Options{ParseSpecial: true})
	fake := func(role engine.Role, path, tables string) (*enginefake.Opener, engine.OpenOptions) {
		options := engine.OpenOptions{
			ModelPath: path, TablesPath: tables, MaxSequences: 2, KVTypeK: engine.KVDefault, KVTypeV: engine.KVDefault,
		}
		fake := enginefake.Options{CheckFile: checkFile, FuseLayers: fuseLayers}
		r.ok(shape(&fake, role, &options, parse(t, rules)))
		return enginefake.New(fake), options
	}
	opener, options := fake(engine.RoleTarget, files.Target, "")
	var err error
	r.target, err = opener.OpenTarget(t.Context(), options, nil)
	r.ok(err)
	t.Cleanup(func() { _ = r.target.Close() })
	opener, options = fake(engine.RoleDraft, files.Draft, files.Tables)
	r.draft, err = opener.OpenDraft(t.Context(), options, nil)
	r.ok(err)
	t.Cleanup(func() { _ = r.draft.Close() })
	r.ok(r.target.LoadFuse(t.Context(), files.Draft))
	r.q, err = r.target.NewSequence(t.Context())
	r.ok(err)
	r.dq, err = r.draft.NewSequence(t.Context())
	r.ok(err)
	return r
}

func (r *rig) ok(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// prefill runs the prompt and returns the first token.
func (r *rig) prefill(s engine.Sampler) int32 {
	r.Helper()
	step := r.promptStep(s)
	r.ok(r.target.Step(r.Context(), step, &r.result))
	return r.result.Tokens[len(r.prompt)-1]
}

// promptStep prepares the step of the prompt.
func (r *rig) promptStep(s engine.Sampler) *engine.Step {
	r.Helper()
	s.PromptTokens = int32(len(r.prompt))
	r.ok(r.target.SetSampler(r.Context(), r.q, s))
	step := &engine.Step{
		Groups: []engine.Group{{Sequence: r.q, Rows: len(r.prompt), Commit: true}}, Features: engine.FeatureFusedBF16,
	}
	for i, t := range r.prompt {
		step.Rows = append(step.Rows, engine.Row{
			Token: t, Position: int32(i), Parent: int32(i) - 1, Want: engine.WantFeatures, Mask: -1,
		})
	}
	step.Rows[len(step.Rows)-1].Want |= engine.WantToken
	return step
}

// TestAccept: rounds of drafting and verification commit the numbers of tokens that the rule lists, and the text is the
// rule's.
func TestAccept(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) { // the pace is that of a caller who comes at once
		const emit = "one two three four five six seven eight nine ten eleven twelve"
		r := newRig(t, `[{"prompt":"count","emit":"`+emit+`","accept":[3,1,5],"tokens_per_second":10}]`, "please count")
		s := engine.DefaultSampler()
		s.Temperature, s.Seed = 1.5, 7 // does not move the script
		out := []int32{r.prefill(s)}
		length := len(r.prompt)
		features := append([]byte(nil), r.result.Features...)
		featured := 0
		info := r.draft.Info()
		var sizes []int
		var draft engine.DraftResult
		group := engine.Group{Sequence: r.q, Rows: 8}
		for out[len(out)-1] != r.tok.EOS() {
			rows := len(features) / (2 * info.FeatureFused)
			r.ok(r.draft.Propose(t.Context(), []engine.FeatureRows{{
				Sequence: r.dq, Position: int32(featured), Rows: int32(rows), Encoding: engine.FeatureFusedBF16, Data: features,
			}}, []engine.DraftRequest{{
				Sequence: r.dq, Token: out[len(out)-1], Position: int32(length), Block: 8, TopK: 2, Temperature: 1,
			}}, &draft))
			featured += rows
			step := engine.Step{Groups: []engine.Group{group}, Features: engine.FeatureFusedBF16}
			token := out[len(out)-1]
			for i := range 8 {
				step.Rows = append(step.Rows, engine.Row{
					Token: token, Position: int32(length + i), Parent: int32(i) - 1,
					Want: engine.WantToken | engine.WantFeatures, Mask: -1,
				})
				if i < 7 {
					token = draft.IDs[i*draft.Stride]
				}
			}
			r.ok(r.target.Step(t.Context(), &step, &r.result))
			var path []int32
			for i := range 8 {
				path = append(path, int32(i))
				out = append(out, r.result.Tokens[i])
				if i == 7 || step.Rows[i+1].Token != r.result.Tokens[i] || r.result.Tokens[i] == r.tok.EOS() {
					break
				}
			}
			sizes = append(sizes, len(path))
			want, got := time.Duration(len(path))*100*time.Millisecond, time.Duration(r.result.EngineNanos)
			if got < want-50*time.Millisecond {
				t.Errorf("%d tokens at 10 a second take %v", len(path), got)
			}
			length += len(path)
			features = append(features[:0], r.result.Features[:len(path)*2*info.FeatureFused]...)
			group.Path = path
		}
		if got := r.tok.Decode(out[:len(out)-1], true); got != emit {
			t.Errorf("said %q", got)
		}
		for i, n := range sizes[:len(sizes)-1] { // the last one ends with the text
			if want := []int{3, 1, 5}[i%3]; n != want {
				t.Errorf("rounds committed %v, want 3, 1, 5 in turns", sizes)
				break
			}
		}
		if len(sizes) < 4 {
			t.Errorf("%d rounds", len(sizes))
		}
	})
}

// row is a step that commits one token.
func (r *rig) row(q engine.Sequence, token int32, position int) *engine.Step {
	return &engine.Step{
		Groups: []engine.Group{{Sequence: q, Rows: 1, Commit: true}},
		Rows:   []engine.Row{{Token: token, Position: int32(position), Parent: -1, Want: engine.WantToken, Mask: -1}},
	}
}

// TestPace: steps take as long as the rule says, and every sequence has a time table of its own.
func TestPace(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		r := newRig(t, `[{"prompt":"slow","emit":"a b c","tokens_per_second":2,"first_token_ms":1500}]`, "slow")
		timed := func(what string, from, to time.Duration, step func()) {
			t.Helper()
			start := time.Now()
			step()
			if d := time.Since(start); d < from || d > to {
				t.Errorf("%s takes %v", what, d)
			}
			if d := time.Duration(r.result.EngineNanos); d < from || d > to {
				t.Errorf("%s takes %v by the engine's word", what, d)
			}
		}
		var first int32
		timed("the first token", 1400*time.Millisecond, 1510*time.Millisecond, func() {
			first = r.prefill(engine.DefaultSampler())
		})
		timed("the second token", 490*time.Millisecond, 510*time.Millisecond, func() {
			r.ok(r.target.Step(t.Context(), r.row(r.q, first, len(r.prompt)), &r.result))
		})
		// A sequence that no request set up, as in a calibration, waits for nothing.
		q, err := r.target.NewSequence(t.Context())
		r.ok(err)
		timed("a token of no request", 0, 10*time.Millisecond, func() {
			r.ok(r.target.Step(t.Context(), r.row(q, 5, 0), &r.result))
		})
	})
}

// TestPacesOverlap: the wait for one sequence's token holds up no other, and ends with its request.
func TestPacesOverlap(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		r := newRig(t, `[{"prompt":"slow","emit":"a b c","first_token_ms":600000},{"emit":"quick"}]`, "slow")
		quick, err := r.target.NewSequence(t.Context())
		r.ok(err)
		start := time.Now()
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		waited := make(chan error, 1)
		slow := r.promptStep(engine.DefaultSampler())
		s := engine.DefaultSampler()
		s.PromptTokens = 1
		r.ok(r.target.SetSampler(t.Context(), quick, s))
		go func() { waited <- r.target.Step(ctx, slow, &engine.StepResult{}) }()
		synctest.Wait()
		for i := range 3 {
			r.ok(r.target.Step(t.Context(), r.row(quick, 5, i), &r.result))
		}
		if d := time.Since(start); d > time.Second {
			t.Errorf("a quick sequence beside a slow one took %v", d)
		}
		leave()
		if err := <-waited; !errors.Is(err, context.Canceled) {
			t.Errorf("the slow one ended with %v", err)
		}
		// As after every cancelled step that commits.
		err = r.target.Step(t.Context(), r.row(r.q, 5, len(r.prompt)), &r.result)
		if rpcerr.Code(err) != codes.FailedPrecondition || time.Since(start) > time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
	})
}

// TestBias: a bias bans and forces tokens.
func TestBias(t *testing.T) {
	r := newRig(t, `[{"emit":"yes"}]`, "x")
	id := func(text string) int32 {
		id, ok := r.tok.ID(text)
		if !ok {
			t.Fatalf("no token %q", text)
		}
		return id
	}
	s := engine.DefaultSampler()
	s.BiasTokens, s.BiasValues = []int32{id("no")}, []float32{100}
	if got := r.prefill(s); got != id("no") {
		t.Errorf("a bias of 100 leads to %q", r.tok.TokenBytes(got))
	}
	s.BiasValues[0] = 5
	r.ok(r.target.Truncate(t.Context(), r.q, 0))
	if got := r.prefill(s); got == id("no") {
		t.Error("a bias of 5 beats the script")
	}
}
