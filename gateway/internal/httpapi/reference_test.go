package httpapi_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
	"github.com/tandem-inference/tandem/gateway/internal/turn"
	"github.com/tandem-inference/tandem/services/config"
	"github.com/tandem-inference/tandem/services/sampling"
)

var update = flag.Bool("update", false, "rewrite docs/reference/http.md")

const referenceHead = `<!-- made by go test ./gateway/internal/httpapi -run TestReference -update -->

# HTTP reference

What a running gateway answers to: its routes, and the fields that it takes in the bodies of requests, as it says itself
when it is asked with wrong values. The [specification](../spec/http-api.md) says what routes and fields mean.

## Routes

"Key" is whether a route asks for an API key when the gateway has some; "protected" routes ask for one with
` + "`--protect-introspection`" + `. Routes under /v1 answer without that, too.

| Route | Key | What | § |
|---|---|---|---|
`

const fieldsHead = `
## Fields of requests

Fields at the top of a body, and what their values must be. Clients send "ignored" fields, which change nothing.
"refused" ones get 400. Any other field gets the header ` + "`X-Tandem-Warning: fields-ignored`" + `. Members of
` + "`extra_body`" + ` count as fields.

| Field | chat | completions | responses | messages | Value |
|---|---|---|---|---|---|
`

// TestReference holds docs/reference/http.md to what a gateway does.
func TestReference(t *testing.T) {
	have := referenceHead + routesTable(t) + fieldsHead + fieldsTable(t)
	path := filepath.Join("..", "..", "..", "docs", "reference", "http.md")
	if *update {
		if err := os.WriteFile(path, []byte(have), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != have {
		t.Error("docs/reference/http.md is not up to date; run: go test ./gateway/internal/httpapi -run TestReference -update")
	}
}

// purposes are the rows of the specification's table of endpoints, by path without /v1.
func purposes(t *testing.T) map[string][2]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "spec", "http-api.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, text2, _ := strings.Cut(string(text), "\n## 2. Endpoints\n")
	section, _, _ := strings.Cut(text2, "\n## ")
	out := map[string][2]string{}
	for line := range strings.Lines(section) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if len(cells) != 3 {
			continue
		}
		for _, m := range regexp.MustCompile("`(/[^`]*)`").FindAllStringSubmatch(cells[0], -1) {
			out[strings.TrimPrefix(m[1], "/v1")] = [2]string{strings.TrimSpace(cells[1]), strings.TrimSpace(cells[2])}
		}
	}
	return out
}

// routesTable asks two gateways with keys, of which one protects more.
func routesTable(t *testing.T) string {
	t.Helper()
	keyed := rig.Start(t, func(c *app.Config) { c.APIKey = []config.Secret{"secret"} })
	protected := rig.Start(t, func(c *app.Config) { c.APIKey, c.ProtectIntrospection = []config.Secret{"secret"}, true })
	said := purposes(t)
	type route struct{ method, path string }
	var routes []route
	endpoints, _ := rig.At(keyed.Do("GET", "/props", "").JSON(t), "api", "endpoints").([]any)
	for _, e := range endpoints {
		method, path, _ := strings.Cut(e.(string), " ")
		if slices.Contains(endpoints, any(method+" /v1"+path)) {
			continue // the same without the prefix
		}
		routes = append(routes, route{method, path})
	}
	slices.SortFunc(routes, func(a, b route) int {
		return strings.Compare(a.path+" "+a.method, b.path+" "+b.method)
	})
	var b strings.Builder
	for _, e := range routes {
		open := func(r *rig.Rig) bool {
			return r.Do(e.method, strings.Replace(e.path, "{id}", "x", 1), "").Status != http.StatusUnauthorized
		}
		key := "yes"
		switch {
		case open(protected):
			key = "no"
		case open(keyed):
			key = "protected"
		}
		p, ok := said[strings.TrimPrefix(e.path, "/v1")]
		if !ok {
			t.Errorf("docs/spec/http-api.md §2 lacks %s", e.path)
		}
		fmt.Fprintf(&b, "| %s `%s` | %s | %s | %s |\n", e.method, e.path, key, p[0], p[1])
	}
	return b.String()
}

// dialects are the endpoints that generate, each with the least that it asks for.
var dialects = []struct{ path, body string }{
	{"/v1/chat/completions", `"messages":[{"role":"user","content":"Hi"}]`},
	{"/v1/completions", `"prompt":"Hi"`},
	{"/v1/responses", `"input":"Hi"`},
	{"/v1/messages", `"messages":[{"role":"user","content":"Hi"}]`},
}

// fieldsTable sends every name that the gateway's code reads, to every dialect, with values of wrong types.
func fieldsTable(t *testing.T) string {
	t.Helper()
	r := rig.Start(t, nil)
	w := r.Target(gatewaytest.WorkerOptions{})
	w.SetDecode(r.Reply("Yes.", 1))
	names, ignored := namesRead(t)
	var b strings.Builder
	for _, name := range names {
		cells, must, used := make([]string, len(dialects)), "", false
		for i, d := range dialects {
			takes, what := takenAs(r, d.path, d.body, name)
			switch {
			case !takes:
			case slices.Contains(ignored, name) && what == "":
				cells[i], used = "ignored", true
			case what == "is not supported":
				cells[i], used = "refused", true
			default:
				cells[i], used = "yes", true
				for part := range strings.SplitSeq(what, "; ") {
					if !strings.Contains(must, part) {
						must = strings.TrimPrefix(must+"; "+part, "; ")
					}
				}
			}
		}
		if used {
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", name, strings.Join(cells, " | "), strings.ReplaceAll(must, "|", `\|`))
		}
	}
	return b.String()
}

// mustBe is the part of a message that says what a value must be.
var mustBe = regexp.MustCompile(`(?:must be|is not one of|must have|needs|cannot be [a-z]+|is not supported)[^:;]*`)

// takenAs reports whether an endpoint reads a field, and what it says of values that are wrong.
func takenAs(r *rig.Rig, path, body, name string) (takes bool, what string) {
	if least := map[string]any{}; json.Unmarshal([]byte("{"+body+"}"), &least) == nil && least[name] != nil {
		return true, "required"
	}
	var said []string
	for _, value := range []string{"false", `"?"`, "-1e300", "1.5", "-9000000000000"} {
		a := r.Post(path, fmt.Sprintf(`{%s,%q:%s}`, body, name, value))
		for _, warning := range a.Header.Values("X-Tandem-Warning") {
			if strings.HasPrefix(warning, "fields-ignored: ") {
				return false, ""
			}
		}
		if a.Status == http.StatusOK {
			continue
		}
		text, _ := rig.At(a.JSON(r.T.(*testing.T)), "error", "message").(string)
		if m := mustBe.FindString(text); m != "" && strings.Contains(text, name) {
			m, _, _ = strings.Cut(m, ", got ")
			if !slices.Contains(said, m) {
				said = append(said, m)
			}
		}
	}
	return true, strings.Join(said, "; ")
}

// fieldName is what names of fields look like.
var fieldName = regexp.MustCompile(`^[a-z][a-z_]+$|^n$`)

// namesRead returns what may be names of fields: all such literals in the dialects' code and the names of the sampler's
// fields; then those that are ignored by rule. The gateway tells which of them are fields.
func namesRead(t *testing.T) (names, ignored []string) {
	t.Helper()
	found := map[string]bool{}
	for _, f := range sampling.Fields() {
		for _, name := range turn.SamplerNames(&f) {
			found[name] = true
		}
	}
	literals := func(list []ast.Expr) (out []string) {
		for _, e := range list {
			if l, ok := e.(*ast.BasicLit); ok && l.Kind == token.STRING {
				text, err := strconv.Unquote(l.Value)
				if err == nil && fieldName.MatchString(text) {
					out = append(out, text)
				}
			}
		}
		return out
	}
	files := token.NewFileSet()
	for _, folder := range []string{"turn", "openai", "anthropic", "responses"} {
		paths, err := filepath.Glob(filepath.Join("..", folder, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(files, path, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				switch x := n.(type) {
				case *ast.BasicLit:
					for _, name := range literals([]ast.Expr{x}) {
						found[name] = true
					}
				case *ast.ValueSpec:
					if len(x.Names) == 1 && x.Names[0].Name == "ignored" && len(x.Values) == 1 {
						if list, ok := x.Values[0].(*ast.CompositeLit); ok {
							ignored = literals(list.Elts)
						}
					}
				}
				return true
			})
		}
	}
	if len(found) < 60 || len(ignored) < 10 {
		t.Fatalf("found %d names and %d that are ignored", len(found), len(ignored))
	}
	for _, name := range ignored {
		found[name] = true
	}
	return slices.Sorted(maps.Keys(found)), ignored
}
