package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/benchcard"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
)

// scriptedGateway is a gateway whose worker says text; in the mode "auto" it says auto instead, where that is given.
func scriptedGateway(t *testing.T, text, auto string) (*rig.Rig, *gatewaytest.Worker) {
	t.Helper()
	r := rig.Start(t, nil)
	plain := r.Reply(text, 2)
	automatic := plain
	if auto != "" {
		automatic = r.Reply(auto, 2)
	}
	w := r.Target(gatewaytest.WorkerOptions{Settings: map[string]string{"lookup": "true"},
		Decode: func(m *tandemv1.DecodeRequest, stream tandemv1.TargetService_DecodeServer) error {
			if m.GetSpeculation().GetMode() == tandemv1.SpeculationMode_SPECULATION_MODE_AUTO {
				return automatic(m, stream)
			}
			return plain(m, stream)
		}})
	return r, w
}

var tinyPlan = benchcard.Plan{Kind: "test", Repeats: 1, BudgetS: 60, Tokens: 16, PerClass: 1, Requests: []int{2},
	PromptTokens: []int{300}}

// TestBenchMeasuresAGateway: what the card says is what the worker did.
func TestBenchMeasuresAGateway(t *testing.T) {
	r, w := scriptedGateway(t, "The sea is wide and blue, and so is the sky.", "")
	client := &chatClient{http: r.Client, base: r.URL}
	servers, err := benchcard.Run(t.Context(), tinyPlan, []benchcard.Endpoint{gatewayEndpoint(client)}, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	s := servers[0]
	if s.Model != "tiny" || s.Version != "test" || strings.Join(s.Modes, " ") != "off lookup auto" {
		t.Errorf("%s %s %s", s.Model, s.Version, s.Modes)
	}
	if len(s.Models) != 1 || s.Models[0].Role != "target" || s.Models[0].Digest != gatewaytest.Target {
		t.Errorf("models: %+v", s.Models)
	}
	if s.Texts.Compared == 0 || s.Texts.Different != nil || s.Counted || s.OverheadMS == nil {
		t.Errorf("%+v, counted: %v", s.Texts, s.Counted)
	}
	for _, rate := range s.Rates {
		if rate.TokensPerSec.Median <= 0 || rate.TokensPerStep < 1 || rate.Drafted < rate.Accepted {
			t.Errorf("%+v", rate)
		}
	}
	if p := s.Prompts[0]; p.Tokens < 250 || p.Tokens > 400 || p.ColdMS.Median <= 0 {
		t.Errorf("a prompt of about 300 tokens: %+v", p)
	}
	// The mode of each request arrived; the first one, which only wakes the server, has none.
	asked := map[tandemv1.SpeculationMode]int{}
	for _, m := range w.Requests() {
		asked[m.GetSpeculation().GetMode()]++
	}
	if len(asked) != 4 || asked[tandemv1.SpeculationMode_SPECULATION_MODE_UNSPECIFIED] != 1 {
		t.Errorf("requests by mode: %v", asked)
	}
}

// TestBenchFindsOtherTexts: the files are written, and the status says that something is wrong.
func TestBenchFindsOtherTexts(t *testing.T) {
	r, _ := scriptedGateway(t, "The sea is wide.", "The sea is grey.")
	dir := t.TempDir()
	card, picture := filepath.Join(dir, "card.json"), filepath.Join(dir, "card.svg")
	code, out, errOut := tandem(t, "", "bench", "--quick", "--repeats", "1", "--server", r.URL, "--json", card,
		"--svg", picture)
	if code != 1 || !strings.Contains(errOut, "greedy answers differ") || !strings.Contains(out, "from byte 11 on") {
		t.Errorf("status %d\n%s\n%s", code, out, errOut)
	}
	if data, err := os.ReadFile(picture); err != nil || !strings.HasPrefix(string(data), "<svg ") {
		t.Errorf("%.20q, %v", data, err)
	}
	code, out, errOut = tandem(t, "", "bench", "compare", card, card)
	if code != 0 || !strings.Contains(out, "tokens/s, code, plain") || strings.Contains(out, "better") {
		t.Errorf("status %d\n%s\n%s", code, out, errOut)
	}
}

// TestBenchAsksAnotherServer: one that knows nothing of ours, wants a key and reports no usage.
func TestBenchAsksAnotherServer(t *testing.T) {
	var mu sync.Mutex
	var asked []map[string]any
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" || r.URL.Path != "/v1/chat/completions" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		var request map[string]any
		_ = json.NewDecoder(r.Body).Decode(&request)
		mu.Lock()
		asked = append(asked, request)
		mu.Unlock()
		for _, piece := range []string{"One", " two", " three"} {
			fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":%q}}]}\n\n", piece)
		}
		fmt.Fprint(w, "data: [DONE]\n\n")
	}))
	defer other.Close()
	defer http.DefaultClient.CloseIdleConnections()
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := BenchRunCmd{Other: other.URL + "/v1/", OtherModel: "theirs", OtherKeyFile: key}
	endpoint, err := c.other()
	if err != nil {
		t.Fatal(err)
	}
	r, _ := scriptedGateway(t, "The sea is wide and blue.", "")
	ours := gatewayEndpoint(&chatClient{http: r.Client, base: r.URL})
	servers, err := benchcard.Run(t.Context(), tinyPlan, []benchcard.Endpoint{ours, endpoint}, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	s := servers[1]
	if s.Model != "theirs" || !s.Counted || len(s.Rates) != 6 || s.OverheadMS != nil {
		t.Errorf("%+v", s)
	}
	for _, request := range asked {
		if request["model"] != "theirs" || request["speculation"] != nil || request["temperature"] != 0.0 {
			t.Errorf("asked %v", request)
		}
	}
}

func TestBenchRefuses(t *testing.T) {
	for args, want := range map[string]string{
		"hello":                                              "hello is no model",
		"--other http://127.0.0.1:1":                         "--other: needs --other-model",
		"--other-model m":                                    "need --other",
		"--repeats -1":                                       "--repeats: -1 is negative",
		"--server http://127.0.0.1:1 x.gguf":                 "the gateway there has its model",
		"compare nothing.json nothing.json":                  "nothing.json",
		"compare bench_test.go bench_test.go":                "bench_test.go: invalid character",
		"--server http://127.0.0.1:1 --quiet":                "connection refused",
		"--other u --other-model m --other-key-file nothing": "nothing",
	} {
		if code, _, errOut := tandem(t, "", append([]string{"bench"}, strings.Fields(args)...)...); code == 0 ||
			!strings.Contains(errOut, want) {
			t.Errorf("%s: status %d, %q, want %q", args, code, errOut, want)
		}
	}
}
