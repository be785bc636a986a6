package cli

import (
	"strings"

	"github.com/alecthomas/kong"
)

// groups are the headings of --help with the flags below them: whole names, or beginnings that end in "-".
var groups = []struct {
	key, title string
	flags      string
}{
	{"models", "Models:", "demo draft model model-store prefill-drafter model-name chat-template-file model-card- model-card strict-"},
	{"devices", "Devices and memory:",
		"auto device target-device target-devices target-stages target-layer-split stage-row-type stage-transport " +
			"draft-device prefill-device threads draft-threads max-ctx lanes kv-positions memory-cap cache-type- " +
			"draft-cache-type fa-window chunk prefix-cache- peer-fetch cache-isolation cache-dir lazy-draft park-after engine programs"},
	{"speculation", "Speculation:", "ddtree-budget lookup"},
	{"ports", "Ports and access:",
		"host port grpc-port registry registry- authority cert- join-token- plaintext api-key api-key-file protect-introspection tls- no-cors cors- allowed- " +
			"seal-key-file"},
	{"output", "Answers:", "default- max-tokens-ceiling max-n think- hard-limit- reasoning- degenerate-watchdog " +
		"stream-usage-default anthropic- image-policy response-store-mb"},
	{"time", "Queue and times:", "max-queue queue-timeout-s no-worker-timeout-s request-timeout-s failover- " +
		"shutdown- sse-keepalive-s max-bodies- priority- max-token-gap-ms"},
	{"compression", "Compression of long prompts:", "prefill- pflash-"},
	{"logs", "Logs and traces:", "log- otlp- trace-"},
	{"question", "The question:", "system max-tokens temperature top- seed thinking speculation quiet no-markdown history-file"},
	{"server", "The server to ask:", "server ca-file insecure"},
}

// groupFlags puts flags below the headings of groups.
func groupFlags() kong.Option {
	return kong.AutoGroup(func(_ kong.Visitable, flag *kong.Flag) *kong.Group {
		for _, g := range groups {
			for _, name := range strings.Fields(g.flags) {
				if flag.Name == name || strings.HasSuffix(name, "-") && strings.HasPrefix(flag.Name, name) {
					return &kong.Group{Key: g.key, Title: g.title}
				}
			}
		}
		return nil
	})
}
