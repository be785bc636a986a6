package app_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
)

// BenchmarkStream measures what the gateway and its two hops cost per streamed token: 500 tokens, one a message, from a
// worker that takes no time. At 500 tokens/s a token lasts 2 ms; 3 % of that are 60 µs.
func BenchmarkStream(b *testing.B) {
	r := rig.Start(b, nil)
	tokens := r.Encode(strings.Repeat("func main() { println(1) }\n", 60))[:500]
	r.Target(gatewaytest.WorkerOptions{Decode: gatewaytest.Script{Tokens: tokens}.Run})
	body := rig.ChatBody(`"stream":true,"max_tokens":500`)
	first := time.Duration(0)
	b.ReportAllocs()
	for b.Loop() {
		began := time.Now()
		resp, err := r.Client.Post(r.URL+"/v1/chat/completions", "application/json", strings.NewReader(body))
		if err != nil {
			b.Fatal(err)
		}
		// Headers come with admission, right before the first token here.
		first += time.Since(began)
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
			b.Fatal(resp.StatusCode, err)
		}
		resp.Body.Close()
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/500, "µs/token")
	b.ReportMetric(float64(first.Microseconds())/float64(b.N), "µs-to-headers")
}

// BenchmarkFirstToken measures a whole request of one token: parsing, rendering, tokenising, scheduling and both hops.
// The budget for what the gateway adds to the first token is 2 ms.
func BenchmarkFirstToken(b *testing.B) {
	r := rig.Start(b, nil)
	r.Target(gatewaytest.WorkerOptions{Decode: gatewaytest.Script{Tokens: r.Encode("Hello")[:1]}.Run})
	body := rig.ChatBody(`"max_tokens":1`)
	b.ReportAllocs()
	for b.Loop() {
		resp, err := r.Client.Post(r.URL+"/v1/chat/completions", "application/json", strings.NewReader(body))
		if err != nil {
			b.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
			b.Fatal(resp.StatusCode, err)
		}
		resp.Body.Close()
	}
}
