package httpapi

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-inference/tandem/gateway/internal/cluster"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
)

// TestRoutingOfATarget: /cluster shows what a target holds, what it got and what it fetched, failures by reason.
func TestRoutingOfATarget(t *testing.T) {
	got := routingOf(&tandemv1.Heartbeat{
		Counters: map[string]float64{
			"peer_fetches": 2, "peer_fetched_tokens": 3000, "peer_fetched_bytes": 1e6, "peer_fetch_seconds": 0.25,
			"peer_fetches_skipped": 4, "peer_fetches_failed_slow": 1, "peer_fetches_failed_lost": 2,
			"peer_fetches_failed_busy": 0, "peer_sends": 5, "peer_sent_tokens": 6000, "peer_sent_bytes": 2e6,
			"peer_sends_failed": 1,
		},
		Prefixes: &tandemv1.Prefixes{States: []*tandemv1.PrefixState{{Tokens: 100}, {Tokens: 512, OnDisk: true}}},
	}, cluster.Routed{Prefix: 7, Peer: 4, Session: 1, Load: 2, Expected: 900, Hit: 800, Named: 3})
	want := &routingEntry{
		States: 2, StatesOnDisk: 1, StateTokens: 612, ByPrefix: 7, ByPeer: 4, BySession: 1, ByLoad: 2, ExpectedTokens: 900,
		HadTokens: 800, PeersNamed: 3, Fetched: transferEntry{States: 2, Tokens: 3000, Bytes: 1e6, MS: 250, Failed: 3},
		Served: transferEntry{States: 5, Tokens: 6000, Bytes: 2e6, Failed: 1}, Skipped: 4,
		Failed: map[string]float64{"slow": 1, "lost": 2},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// TestSpecificationListsCluster: chapter 15.5 of the specification names the fields of /cluster, in their order.
func TestSpecificationListsCluster(t *testing.T) {
	data, err := os.ReadFile("../../../docs/spec/http-api.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok1 := strings.Cut(string(data), "\n15.5 `/cluster`")
	chapter, _, ok2 := strings.Cut(rest, "\n15.6 ")
	if !ok1 || !ok2 {
		t.Fatal("chapter 15.5 is not there")
	}
	var listed []string
	for _, m := range regexp.MustCompile("`\\{([^`]*)\\}`").FindAllStringSubmatch(chapter, -1) {
		listed = append(listed, m[1])
	}
	for _, c := range []struct {
		name string
		body any
	}{{"workers", workerEntry{}}, {"groups", groupEntry{}}, {"speculation", speculationEntry{}},
		{"routing", routingEntry{}}, {"transfers", transferEntry{}}} {
		var fields []string
		for _, f := range reflect.VisibleFields(reflect.TypeOf(c.body)) {
			name, omitted, _ := strings.Cut(f.Tag.Get("json"), ",")
			if f.Type.Kind() == reflect.Slice {
				name += "[]"
			}
			if omitted != "" {
				name += "?"
			}
			fields = append(fields, name)
		}
		if want := strings.Join(fields, ","); !slices.Contains(listed, want) {
			t.Errorf("%s: the specification lacks `{%s}`, it has %q", c.name, want, listed)
		}
	}
}

// TestStagesOf: a target in several engines says who has which layers; of others the model says it.
func TestStagesOf(t *testing.T) {
	reg := &tandemv1.Registration{Device: "cpu", Model: &tandemv1.ModelInfo{NLayers: 8, LayerLast: 8}}
	if have := stagesOf(reg); !slices.Equal(have, []stageEntry{{"cpu", 0, 8, ""}}) {
		t.Errorf("one engine: %v", have)
	}
	reg.Stages = []*tandemv1.StagePlace{{Device: "cpu", LayerLast: 4},
		{Device: "[::1]:8105", LayerFirst: 4, LayerLast: 8, Rows: "direct"}}
	if have := stagesOf(reg); !slices.Equal(have, []stageEntry{{"cpu", 0, 4, ""}, {"[::1]:8105", 4, 8, "direct"}}) {
		t.Errorf("two engines: %v", have)
	}
	if have := stagesOf(&tandemv1.Registration{}); have != nil {
		t.Errorf("a worker without a model has %v", have)
	}
}
