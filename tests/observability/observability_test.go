package observability

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"

	"github.com/tandem-inference/tandem/tests/cluster"
)

func root(t *testing.T) string {
	t.Helper()
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// TestBoardsAreGrafanas: boards have every field that Grafana's own schemas of boards, panels and queries ask for, of
// the right type, and no others.
func TestBoardsAreGrafanas(t *testing.T) {
	boards, err := Boards(root(t))
	if err != nil || len(boards) == 0 {
		t.Fatal(boards, err)
	}
	schemas := cog.NewRuntime() // one for all: the parsers look here
	schemas.RegisterPanelcfgVariant(timeseries.VariantConfig())
	schemas.RegisterPanelcfgVariant(stat.VariantConfig())
	schemas.RegisterDataqueryVariant(prometheus.VariantConfig())
	for _, b := range boards {
		if problems := boardProblems(b.Raw); problems != "" {
			t.Errorf("%s: %s", b.File, problems)
		}
		raw := string(b.Raw)
		for what, wrong := range map[string]string{
			"a query without an expression": strings.Replace(raw, `"expr"`, `"exprs"`, 1),
			"an unknown field of a panel":   strings.Replace(raw, `"gridPos"`, `"colour": 1, "gridPos"`, 1),
			"a number as a title":           strings.Replace(raw, `"title": "Tandem`, `"title": 1, "was": "Tandem`, 1),
		} {
			if boardProblems([]byte(wrong)) == "" {
				t.Errorf("%s: %s is not seen", b.File, what)
			}
		}
	}
}

// boardProblems is what a board has against the schemas, empty when there is nothing.
func boardProblems(raw []byte) string {
	var board dashboard.Dashboard //nolint:staticcheck // files for provisioning have this form, not its successor
	// Without problems it is an error all the same, an empty list of them.
	if err := board.UnmarshalJSONStrict(raw); err != nil && err.Error() != "" {
		return err.Error()
	}
	if err := board.Validate(); err != nil {
		return err.Error()
	}
	return ""
}

// TestBoards: boards have the fields that Grafana needs, panels that do not overlap, and expressions that parse.
func TestBoards(t *testing.T) {
	boards, err := Boards(root(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(boards) != 4 {
		t.Errorf("%d boards, want overview, speculation, cache and devices", len(boards))
	}
	if _, err := Selectors(root(t)); err != nil {
		t.Error(err)
	}
	uids := map[string]bool{}
	for _, b := range boards {
		if b.UID == "" || uids[b.UID] || b.Title == "" || b.SchemaVersion < 36 || b.Refresh == "" || len(b.Panels) == 0 ||
			!slices.Contains(b.Tags, "tandem") {
			t.Errorf("%s: uid %q, title %q, schema version %d, refresh %q, %d panels, tags %v", b.File, b.UID, b.Title,
				b.SchemaVersion, b.Refresh, len(b.Panels), b.Tags)
		}
		uids[b.UID] = true
		ids, cells := map[int]bool{}, map[[2]int]string{}
		for _, p := range b.Panels {
			if ids[p.ID] || p.ID == 0 || p.Title == "" || p.Type != "timeseries" && p.Type != "stat" ||
				p.Datasource.UID != "prometheus" || p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0 {
				t.Errorf("%s: the panel %q is not whole: %+v", b.File, p.Title, p)
			}
			ids[p.ID] = true
			g := p.GridPos
			if g.W <= 0 || g.H <= 0 || g.X < 0 || g.X+g.W > 24 {
				t.Errorf("%s, %s: %+v is outside the grid of 24 columns", b.File, p.Title, g)
			}
			for x := g.X; x < g.X+g.W; x++ {
				for y := g.Y; y < g.Y+g.H; y++ {
					if other := cells[[2]int{x, y}]; other != "" {
						t.Fatalf("%s: %s lies on %s", b.File, p.Title, other)
					}
					cells[[2]int{x, y}] = p.Title
				}
			}
			refs := map[string]bool{}
			for _, target := range p.Targets {
				if target.RefID == "" || refs[target.RefID] || target.Datasource.UID != "prometheus" {
					t.Errorf("%s, %s: target %+v", b.File, p.Title, target)
				}
				refs[target.RefID] = true
			}
		}
	}
}

// TestAlerts: each alert has a severity, a summary, a line in the operator's guide, and tests of firing and of not
// firing.
func TestAlerts(t *testing.T) {
	groups, err := Rules(root(t))
	if err != nil {
		t.Fatal(err)
	}
	read := func(path string) string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(root(t), path))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	guide, tests := read("docs/operations.md"), read("deploy/observability/rules_test.yaml")
	names := map[string]bool{}
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			names[r.Alert] = true
			if s := r.Labels["severity"]; s != "warning" && s != "critical" || r.Annotations["summary"] == "" {
				t.Errorf("%s: severity %q, summary %q", r.Alert, s, r.Annotations["summary"])
			}
			if !strings.Contains(guide, "`"+r.Alert+"`") {
				t.Errorf("docs/operations.md does not say what to do about %s", r.Alert)
			}
			cases := regexp.MustCompile(`alertname: `+r.Alert+`\n(\s+exp_alerts: \[\])?`).FindAllStringSubmatch(tests, -1)
			quiet := slices.ContainsFunc(cases, func(c []string) bool { return c[1] != "" })
			loud := slices.ContainsFunc(cases, func(c []string) bool { return c[1] == "" })
			if !quiet || !loud {
				t.Errorf("rules_test.yaml: %s is tested for firing: %v, for not firing: %v", r.Alert, loud, quiet)
			}
		}
	}
	for _, m := range regexp.MustCompile("`(Tandem[A-Za-z]+)`").FindAllStringSubmatch(guide, -1) {
		if !names[m[1]] {
			t.Errorf("docs/operations.md names the alert %s, which does not exist", m[1])
		}
	}
}

// TestAlertInputs: comparisons and "and" are taken apart, and nothing else is.
func TestAlertInputs(t *testing.T) {
	all, err := AlertInputs(root(t))
	if err != nil {
		t.Fatal(err)
	}
	have := map[string][]string{}
	for _, in := range all {
		have[in.Place] = append(have[in.Place], in.Expr)
	}
	for alert, want := range map[string][]string{
		"TandemGatewayDown": {`up{job="tandem-gateway"}`},
		"TandemTokenGap": {`histogram_quantile(0.99, sum by (le) (rate(tandem_token_gap_seconds_bucket[5m])))`,
			`sum(rate(tandem_token_gap_seconds_count[5m]))`},
		"TandemQueueLong": {`min_over_time(tandem_queue_depth[5m])`},
	} {
		if !slices.Equal(have[alert], want) {
			t.Errorf("%s looks at %q, want %q", alert, have[alert], want)
		}
	}
}
