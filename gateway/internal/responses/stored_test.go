package responses_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/wirecheck"
)

// TestReplay: the events of a kept response come again as they were, from any number on; those of an answer in one
// piece tell the same.
func TestReplay(t *testing.T) {
	r := rig.Start(t, func(c *app.Config) { c.APIKey = append(c.APIKey, "alice", "bob") })
	w := r.Target(gatewaytest.WorkerOptions{})
	alice := []string{"x-api-key", "alice"}
	text := "Hm.\n</think>\n\nLet me see.\n" + rig.CallText("weather", "city",
		"Bern") + "\n" + rig.CallText("patch", "input", "a\n\"b\"")
	body := `{"input":"Weather?","reasoning":{"effort":"low","summary":"auto"},` + weatherTools
	w.SetDecode(r.Reply(text, 2))
	streamed := r.Post("/v1/responses", body+`,"stream":true}`, alice...).Body
	answer, err := wirecheck.Responses(streamed)
	if err != nil {
		t.Fatal(err)
	}
	path := "/v1/responses/" + answer.Final["id"].(string)
	if got := r.Do("GET", path+"?stream=true", "", alice...); got.Status != 200 || string(got.Body) != string(streamed) {
		t.Errorf("%d, other events than before:\n%s", got.Status, got.Body)
	}
	// OpenAI's Go library asks in the body.
	if got := r.Do("GET", path, `{"stream":true}`, alice...); string(got.Body) != string(streamed) {
		t.Errorf("asked in the body: %d %s", got.Status, got.Body)
	}
	evs := strings.SplitAfter(string(streamed), "\n\n")
	for n := range evs[1:] {
		want := strings.Join(evs[n+1:], "")
		if got := r.Do("GET", fmt.Sprint(path, "?stream=1&include_obfuscation=false&starting_after=", n), "",
			alice...); string(got.Body) != want {
			t.Errorf("after %d: %s", n, got.Body)
		}
	}
	if got := r.Do("GET", path+"?stream=false", "", alice...); got.Status != 200 ||
		cmp.Diff(answer.Final, got.JSON(t)) != "" {
		t.Errorf("without events: %d %s", got.Status, got.Body)
	}
	for query, param := range map[string]string{"stream=maybe": "stream",
		"stream=true&starting_after=-1": "starting_after", "stream=true&starting_after=x": "starting_after"} {
		if got := r.Do("GET", path+"?"+query, "", alice...); got.Status != 400 || rig.At(got.JSON(t), "error",
			"param") != param {
			t.Errorf("%s: %d %s", query, got.Status, got.Body)
		}
	}
	whole := r.Post("/v1/responses", body+`}`, alice...).JSON(t)
	again, err := wirecheck.Responses(r.Do("GET", "/v1/responses/"+whole["id"].(string)+"?stream=true", "", alice...).Body)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(whole, again.Final); d != "" {
		t.Errorf("the events of an answer in one piece tell something else: %s", d)
	}
	if got := r.Do("GET", path+"?stream=true", "", "x-api-key", "bob"); got.Status != 404 {
		t.Errorf("another key reads the events: %d", got.Status)
	}
	r.Do("DELETE", path, "", alice...)
	if got := r.Do("GET", path+"?stream=true", "", alice...); got.Status != 404 {
		t.Errorf("events after DELETE: %d", got.Status)
	}
}

// open starts a stream and reads its first event, with the id of the response.
func open(r *rig.Rig, ctx context.Context, body string) (id, first string, rest *bufio.Reader, closer io.Closer) {
	r.T.Helper()
	req, err := http.NewRequestWithContext(ctx, "POST", r.URL+"/v1/responses", strings.NewReader(body))
	if err != nil {
		r.T.Fatal(err)
	}
	resp, err := r.Client.Do(req)
	if err != nil {
		r.T.Fatal(err)
	}
	rest = bufio.NewReader(resp.Body)
	for !strings.HasSuffix(first, "\n\n") {
		line, err := rest.ReadString('\n')
		if err != nil {
			r.T.Fatalf("%v after %q", err, first)
		}
		first += line
	}
	_, id, _ = strings.Cut(first, `"id":"`)
	id, _, _ = strings.Cut(id, `"`)
	return id, first, rest, resp.Body
}

// TestFollow: the events of a response that is being generated can be read by others while they come, keep-alives too,
// and have their end when the first client leaves.
func TestFollow(t *testing.T) {
	for _, leaves := range []bool{false, true} {
		t.Run(fmt.Sprintf("leaves %v", leaves), func(t *testing.T) {
			r := rig.Start(t, func(c *app.Config) { c.SSEKeepaliveS = 0.03 })
			b := gatewaytest.NewBlock()
			r.Target(gatewaytest.WorkerOptions{Decode: b.Script(r.Tok, "one two")})
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			id, first, rest, body := open(r, ctx, `{"input":"Hi","stream":true}`)
			defer body.Close()
			rig.Receive(t, b.Admitted, "admission")
			if a := r.Do("GET", "/v1/responses/"+id+"/input_items", ""); a.Status != 200 ||
				rig.At(a.JSON(t), "data", 0, "content", 0, "text") != "Hi" {
				t.Errorf("items while it runs: %d %s", a.Status, a.Body)
			}
			followed := make(chan []byte, 1)
			seen := make(chan struct{})
			go func() {
				resp, err := r.Client.Get(r.URL + "/v1/responses/" + id + "?stream=true")
				if err != nil {
					t.Error(err)
					close(seen)
					followed <- nil
					return
				}
				defer resp.Body.Close()
				var out []byte
				buf := make([]byte, 4096)
				told := false
				for {
					n, err := resp.Body.Read(buf)
					out = append(out, buf[:n]...)
					if !told && strings.Count(string(out), "event: response.in_progress") >= 3 {
						told = true
						close(seen)
					}
					if err != nil {
						followed <- out
						return
					}
				}
			}()
			rig.Receive(t, seen, "keep-alives reach the follower")
			if leaves {
				leave()
				rig.Receive(t, b.Cancelled, "cancel at the worker")
			} else {
				close(b.Release)
				own, err := io.ReadAll(rest)
				if err != nil {
					t.Fatal(err)
				}
				got := rig.Receive(t, followed, "end of the follower's stream")
				if string(got) != first+string(own) {
					t.Errorf("the follower read\n%s\nthe client\n%s", got, first+string(own))
				}
				return
			}
			got := rig.Receive(t, followed, "end of the follower's stream")
			end, err := wirecheck.Responses(got)
			if err != nil {
				t.Fatalf("%v\n%s", err, got)
			}
			if end.Terminal != "response.incomplete" || end.Final["status"] != "cancelled" {
				t.Errorf("ends with %s, status %v", end.Terminal, end.Final["status"])
			}
			r.Eventually("the response is kept", func() bool {
				a := r.Do("GET", "/v1/responses/"+id, "")
				return a.Status == 200 && a.JSON(t)["status"] == "cancelled"
			})
		})
	}
}

// TestUnkeptHasNoEvents: a response that is not to be kept can be looked at while it runs, but has no events or items
// for others.
func TestUnkeptHasNoEvents(t *testing.T) {
	r := rig.Start(t, nil)
	b := gatewaytest.NewBlock()
	r.Target(gatewaytest.WorkerOptions{Decode: b.Script(r.Tok, "one two")})
	id, _, rest, body := open(r, t.Context(), `{"input":"Hi","stream":true,"store":false}`)
	defer body.Close()
	rig.Receive(t, b.Admitted, "admission")
	for path, want := range map[string]int{"": 200, "?stream=true": 404, "/input_items": 404} {
		if a := r.Do("GET", "/v1/responses/"+id+path, ""); a.Status != want {
			t.Errorf("%s while it runs: %d, want %d", path, a.Status, want)
		}
	}
	close(b.Release)
	if _, err := io.ReadAll(rest); err != nil {
		t.Fatal(err)
	}
	if a := r.Do("GET", "/v1/responses/"+id, ""); a.Status != 404 {
		t.Errorf("afterwards: %d", a.Status)
	}
}

// TestInputItems: the list holds what the response continued, with stable ids, the turns before it included.
func TestInputItems(t *testing.T) {
	r := rig.Start(t, nil)
	w := r.Target(gatewaytest.WorkerOptions{})
	w.SetDecode(r.Reply("Four.", 1))
	first := r.Post("/v1/responses", `{"input":"2+2?","instructions":"Be brief."}`).JSON(t)
	second := r.Post("/v1/responses",
		`{"input":[{"role":"user","content":"Sure?"},{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},
		{"type":"function_call_output","call_id":"c","output":"yes"}],"previous_response_id":"`+first["id"].(string)+`"}`).JSON(t)
	list := func(resp map[string]any, query string) (out []string, v map[string]any) {
		t.Helper()
		a := r.Do("GET", "/v1/responses/"+resp["id"].(string)+"/input_items?"+query, "")
		if a.Status != 200 {
			t.Fatalf("%s: %d %s", query, a.Status, a.Body)
		}
		v = a.JSON(t)
		if v["object"] != "list" {
			t.Errorf("object %v", v["object"])
		}
		for _, it := range v["data"].([]any) {
			out = append(out, rig.At(it, "id").(string))
		}
		return out, v
	}
	one, v := list(first, "order=asc")
	if len(one) != 1 || v["has_more"] != false || v["first_id"] != one[0] || v["last_id"] != one[0] ||
		rig.At(v, "data", 0, "type") != "message" || rig.At(v, "data", 0, "content", 0, "type") != "input_text" ||
		rig.At(v, "data", 0, "content", 0, "text") != "2+2?" {
		t.Errorf("items of the first response: %v", v)
	}
	all, v := list(second, "order=asc")
	if len(all) != 5 || all[0] != one[0] || all[1] != rig.At(first, "output", 0, "id") ||
		rig.At(v, "data", 4, "output") != "yes" {
		t.Errorf("items of the second response: %v", v)
	}
	newest, _ := list(second, "")
	slices.Reverse(newest)
	if d := cmp.Diff(all, newest); d != "" {
		t.Errorf("newest first: %s", d)
	}
	if some, v := list(second, "order=asc&limit=2&after="+all[1]); !slices.Equal(some, all[2:4]) || v["has_more"] != true {
		t.Errorf("a page: %v", v)
	}
	if a := r.Do("GET", "/v1/responses/"+second["id"].(string)+"/input_items?limit=0", ""); a.Status != 400 ||
		rig.At(a.JSON(t), "error", "param") != "limit" {
		t.Errorf("limit 0: %d %s", a.Status, a.Body)
	}
	for method, want := range map[string]int{"GET": 404, "POST": 405} {
		if a := r.Do(method, "/responses/resp_unknown/input_items", ""); a.Status != want {
			t.Errorf("%s of an unknown response: %d", method, a.Status)
		}
	}
}
