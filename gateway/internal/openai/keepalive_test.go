package openai_test

import (
	"bufio"
	"net/http"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
)

func TestKeepAlive(t *testing.T) {
	r := rig.Start(t, func(c *app.Config) { c.SSEKeepaliveS = 0.03 })
	b := gatewaytest.NewBlock()
	r.Target(gatewaytest.WorkerOptions{Decode: b.Script(r.Tok, "one two")})
	req, _ := http.NewRequestWithContext(t.Context(), "POST", r.URL+"/v1/chat/completions",
		strings.NewReader(rig.ChatBody(`"stream":true`)))
	resp, err := r.Client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	sc := bufio.NewScanner(resp.Body)
	var body strings.Builder
	pings, released := 0, false
	for sc.Scan() {
		body.WriteString(sc.Text() + "\n")
		if strings.Contains(sc.Text(), `"delta":{"role":"assistant","content":""}`) {
			if pings++; pings == 3 && !released {
				released = true
				close(b.Release)
			}
		}
	}
	if pings < 3 {
		t.Fatalf("%d keep-alives", pings-1)
	}
	c, _ := rig.ReadChat(t, []byte(body.String()), 1, true)
	if c[0].Content != "one two" {
		t.Errorf("content %q", c[0].Content)
	}
}
