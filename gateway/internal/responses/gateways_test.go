package responses_test

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/wirecheck"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/shared"
)

// two starts two gateways of one cluster and a worker that was told of the first.
func two(t *testing.T) (a, b *rig.Rig, w *gatewaytest.Worker) {
	t.Helper()
	store := shared.NewEmbedded()
	begin := func() *rig.Rig {
		return rig.StartWith(t, func(c *app.Config) {
			c.APIKey = append(c.APIKey, "alice", "bob")
			c.ShutdownGraceS = 0
		}, app.Deps{Version: "test", Store: store.Open()})
	}
	a, b = begin(), begin()
	w = a.Target(gatewaytest.WorkerOptions{Contract: "bits"})
	b.Eventually("the worker joins the other gateway", func() bool {
		_, err := b.Parts.Model()
		return err == nil && b.Ready("t1") && b.Parts.Cluster.Targets.Ready()
	})
	return a, b, w
}

// TestAnotherGatewayGoesOn: when a gateway ends during a response, a client reads on at another one from the event
// that it had last, with the same events that an undisturbed answer has, in whichever steps workers commit.
func TestAnotherGatewayGoesOn(t *testing.T) {
	a, b, w := two(t)
	text := "Hm.\n</think>\n\nLet me see.\n" + rig.CallText("weather", "city", "Bern") + "\n"
	body := `{"input":"Weather?","reasoning":{"effort":"low"},"stream":true,` + weatherTools + `}`
	alice := []string{"x-api-key", "alice"}

	// It says half of it, then nothing.
	tokens := a.Encode(text)
	halfway := func(i int, s tandemv1.TargetService_DecodeServer) error {
		if i < len(tokens)/2 {
			return nil
		}
		<-s.Context().Done()
		return s.Context().Err()
	}
	w.SetDecode(gatewaytest.Script{Tokens: tokens, Step: 2, Before: halfway}.Run)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	req, err := http.NewRequestWithContext(ctx, "POST", a.URL+"/v1/responses", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("x-api-key", "alice")
	resp, err := a.Client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	var read []string
	for len(read) < 6 {
		event := ""
		for !strings.HasSuffix(event, "\n\n") {
			line, err := lines.ReadString('\n')
			if err != nil {
				t.Fatalf("after %q: %v", event, err)
			}
			event += line
		}
		read = append(read, event)
	}
	id := responseID(t, read[0])
	w.SetDecode(b.Reply(text, 5))
	if err := a.Stop(); err != nil {
		t.Fatal(err)
	}
	path := "/v1/responses/" + id
	rest := b.Do("GET", fmt.Sprintf("%s?stream=true&starting_after=%d", path, len(read)-1), "", alice...)
	if rest.Status != 200 {
		t.Fatalf("the other gateway says %d %s", rest.Status, rest.Body)
	}
	answer, err := wirecheck.Responses([]byte(strings.Join(read, "") + string(rest.Body)))
	if err != nil {
		t.Fatalf("the events do not fit together: %v\n%s", err, rest.Body)
	}
	if answer.Final["id"] != id || answer.Final["status"] != "completed" {
		t.Errorf("ended as %v", answer.Final)
	}
	all := b.Do("GET", path+"?stream=true", "", alice...)
	if !strings.HasPrefix(string(all.Body), strings.Join(read, "")) {
		t.Errorf("the events before were others:\n%s\nnot\n%s", all.Body, strings.Join(read, ""))
	}
	requests := w.Requests()
	first, last := requests[len(requests)-2], requests[len(requests)-1]
	if first.GetSampling().GetSeed() != last.GetSampling().GetSeed() {
		t.Error("the seed is another one")
	}
	if got := b.Do("GET", path, "", "x-api-key", "bob"); got.Status != 404 {
		t.Errorf("another client reads it: %d", got.Status)
	}
	// The conversation goes on.
	more := b.Post("/v1/responses", `{"input":"And?","previous_response_id":"`+id+`"}`, alice...)
	if more.Status != 200 {
		t.Errorf("continued: %d %s", more.Status, more.Body)
	}
}

// responseID is the id in a response.created event.
func responseID(t *testing.T, event string) string {
	t.Helper()
	_, rest, ok := strings.Cut(event, `"id":"resp_`)
	id, _, found := strings.Cut(rest, `"`)
	if !ok || !found {
		t.Fatalf("no id in %s", event)
	}
	return "resp_" + id
}

// TestGatewaysShareResponses: what one keeps, the other answers, continues, and forgets when it is deleted at either.
func TestGatewaysShareResponses(t *testing.T) {
	a, b, w := two(t)
	alice := []string{"x-api-key", "alice"}
	w.SetDecode(a.Reply("Hello.", 1))
	first := a.Post("/v1/responses", `{"input":"Hi <b>&</b>"}`, alice...)
	id := first.JSON(t)["id"].(string)
	got := b.Do("GET", "/v1/responses/"+id, "", alice...)
	if got.Status != 200 || string(got.Body) != string(first.Body) {
		t.Errorf("%d %s\nnot\n%s", got.Status, got.Body, first.Body)
	}
	item := rig.At(first.JSON(t), "output", 0, "id").(string)
	next := b.Post("/v1/responses",
		`{"input":[{"type":"item_reference","id":"`+item+`"},{"role":"user","content":"More"}]}`, alice...)
	if next.Status != 200 || strings.Contains(next.Header.Get("x-tandem-warning"), "item_reference") {
		t.Errorf("an item of it: %d %v", next.Status, next.Header)
	}
	if got := b.Do("DELETE", "/v1/responses/"+id, "", alice...); got.Status != 200 {
		t.Fatalf("%d %s", got.Status, got.Body)
	}
	for name, r := range map[string]*rig.Rig{"a": a, "b": b} {
		r.Eventually(name+" forgets it", func() bool {
			return r.Do("GET", "/v1/responses/"+id, "", alice...).Status == 404
		})
	}
}

// TestBackground: a background response goes on without its client, also at another gateway when its own ends.
func TestBackground(t *testing.T) {
	a, b, w := two(t)
	alice := []string{"x-api-key", "alice"}
	if got := a.Post("/v1/responses", `{"input":"Hi","background":true,"store":false}`, alice...); got.Status != 400 {
		t.Errorf("without store: %d", got.Status)
	}
	block := gatewaytest.NewBlock()
	w.SetDecode(block.Script(a.Tok, "Hello, what is it?"))
	begun := a.Post("/v1/responses", `{"input":"Hi","background":true}`, alice...)
	if v := begun.JSON(t); begun.Status != 200 || v["status"] != "in_progress" || v["background"] != true {
		t.Fatalf("%d %s", begun.Status, begun.Body)
	}
	path := "/v1/responses/" + begun.JSON(t)["id"].(string)
	if got := b.Do("GET", path, "", alice...); got.JSON(t)["status"] != "in_progress" {
		t.Errorf("at the other gateway: %d %s", got.Status, got.Body)
	}
	a.Eventually("it is at work", func() bool { return len(w.Requests()) > 0 })
	w.SetDecode(b.Reply("Hello.", 1))
	if err := a.Stop(); err != nil {
		t.Fatal(err)
	}
	// Nobody asks for it before it is finished.
	b.Eventually("the other gateway finishes it", func() bool { return len(w.Requests()) > 1 })
	var got rig.Answer
	b.Eventually("it is completed", func() bool {
		got = b.Do("GET", path, "", alice...)
		return got.Status == 200 && got.JSON(t)["status"] == "completed"
	})
	if got.JSON(t)["output_text"] != "Hello." {
		t.Errorf("%s", got.Body)
	}
}
