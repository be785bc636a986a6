package rig

import (
	"bufio"
	"fmt"
	"net/http"
	"strings"

	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
)

// CallText is a call as the model writes it.
func CallText(name, key, value string) string {
	return "<tool_call>\n<function=" + name + ">\n<parameter=" + key + ">\n" + value +
		"\n</parameter>\n</function>\n</tool_call>"
}

// Settle replaces what differs between two answers to the same request.
func Settle(v map[string]any) {
	ids := map[string]string{}
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for k, x := range v {
				switch s, _ := x.(string); {
				case k == "id" || k == "call_id":
					if ids[s] == "" {
						ids[s] = fmt.Sprintf("%s%d", strings.TrimRight(s, "0123456789abcdef"), len(s))
					}
					v[k] = ids[s]
				case k == "encrypted_content", k == "signature":
					v[k] = s != ""
				case k == "timings", k == "created_at", k == "completed_at":
					v[k] = x != nil
				default:
					walk(x)
				}
			}
		case []any:
			for _, x := range v {
				walk(x)
			}
		}
	}
	walk(v)
}

// LastPrompt is the prompt of the newest request that reached the worker.
func (r *Rig) LastPrompt(w *gatewaytest.Worker) string {
	reqs := w.Requests()
	return r.Tok.Decode(reqs[len(reqs)-1].GetPromptTokens(), true)
}

// KeepAlives streams a request that the block holds until the mark was seen three times, and returns the body.
func (r *Rig) KeepAlives(b *gatewaytest.Block, path, body, mark string) []byte {
	r.T.Helper()
	req, _ := http.NewRequestWithContext(r.T.Context(), http.MethodPost, r.URL+path, strings.NewReader(body))
	resp, err := r.Client.Do(req)
	if err != nil {
		r.T.Fatal(err)
	}
	defer resp.Body.Close()
	sc := bufio.NewScanner(resp.Body)
	var out strings.Builder
	seen := 0
	for sc.Scan() {
		out.WriteString(sc.Text() + "\n")
		if strings.HasPrefix(sc.Text(), mark) {
			if seen++; seen == 3 {
				close(b.Release)
			}
		}
	}
	if seen < 3 {
		r.T.Fatalf("%d of %s", seen, mark)
	}
	return []byte(out.String())
}
