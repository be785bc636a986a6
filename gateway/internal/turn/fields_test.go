package turn_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"google.golang.org/protobuf/proto"
)

// A fieldRule says what a field does. The walk asks for it twice, without and with the field, and holds the gateway
// to it.
type fieldRule struct {
	kind string // one of the constants below
	// with are the members that a request with the field has, as JSON; base those that it has without, beside the
	// dialect's own.
	with, base string
	// param is the field that an error names; empty = the path.
	param string
	// says is what a warning says; empty = the path without indexes and variants.
	says string
	// shown: the model's template shows names and ids.
	shown bool
	// whole: the field is left out or taken with all its members.
	whole bool
}

func change(with, base string) fieldRule { return fieldRule{kind: rig.Changes, with: with, base: base} }

func refuse(with, param string) fieldRule {
	return fieldRule{kind: rig.Refused, with: with, param: param}
}

func warn(with string) fieldRule { return fieldRule{kind: rig.Warned, with: with} }

func ignore(with string) fieldRule { return fieldRule{kind: rig.ByRule, with: with} }

// seen is what a request caused.
type seen struct {
	Status          int
	Answer          any
	Worker, Scorer  string
	Warning, Header string
}

// volatile members differ between equal requests.
var volatile = []string{"id", "created", "created_at", "completed_at", "timings", "score_ms", "signature",
	"encrypted_content", "item_id", "call_id", "tool_use_id"}

func settled(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			if slices.Contains(volatile, k) {
				delete(v, k)
				continue
			}
			v[k] = settled(v[k])
		}
	case []any:
		for i := range v {
			v[i] = settled(v[i])
		}
	}
	return v
}

func ask(w *rig.Walk, path, body string) seen {
	before, scored := len(w.Target.Requests()), len(w.Scorer.Scored())
	a := w.Post(path, body)
	out := seen{Status: a.Status, Warning: strings.Join(a.Header.Values("X-Tandem-Warning"), "; "),
		Header: a.Header.Get("Content-Type")}
	var v any
	if json.Unmarshal(a.Body, &v) == nil {
		out.Answer = settled(v)
	} else {
		var events []any
		for line := range bytes.Lines(a.Body) {
			var event any
			if data, ok := bytes.CutPrefix(line, []byte("data: ")); ok && json.Unmarshal(data, &event) == nil {
				events = append(events, settled(event))
			}
		}
		out.Answer = events
	}
	var reqs []string
	for _, req := range w.Target.Requests()[before:] {
		req = proto.Clone(req).(*tandemv1.DecodeRequest)
		req.RequestId, req.Watch = "", 0
		req.Cache = nil // changes time alone: prefixcache_test.go
		reqs = append(reqs, rig.CompactProto(req))
	}
	slices.Sort(reqs) // choices start in any order
	out.Worker = strings.Join(reqs, "\n")
	for _, req := range w.Scorer.Scored()[scored:] {
		req = proto.Clone(req).(*tandemv1.CompressRequest)
		req.RequestId = ""
		out.Scorer += rig.CompactProto(req)
	}
	return out
}

// merge sets the members of more in the object body.
func merge(t *testing.T, bodies ...string) string {
	t.Helper()
	out := map[string]json.RawMessage{}
	for _, body := range bodies {
		var m map[string]json.RawMessage
		if err := json.Unmarshal([]byte("{"+body+"}"), &m); err != nil {
			t.Fatalf("{%s}: %v", body, err)
		}
		maps.Copy(out, m)
	}
	return string(rig.JSON(out))
}

// within are the indexes and variants of a path.
var within = regexp.MustCompile(`\[[^\]]*\]|\([^)]*\)`)

// shape is a path as warnings have it: messages[].content[].source.
func shape(path string) string {
	return within.ReplaceAllStringFunc(path, func(s string) string {
		if s[0] == '[' {
			return "[]"
		}
		return ""
	})
}

func dropTools(answer any) {
	if m, ok := answer.(map[string]any); ok {
		delete(m, "tools")
	}
}

// hold checks one field against its rule.
func hold(w *rig.Walk, t *testing.T, endpoint, base, path string, rule fieldRule) {
	t.Helper()
	known := strings.NewReplacer("KNOWN", w.Known, "SEALED", w.Sealed, "SIGNED", w.Signed)
	without := ask(w, endpoint, known.Replace(merge(t, base, rule.base)))
	with := ask(w, endpoint, known.Replace(merge(t, base, rule.base, rule.with)))
	if without.Status != 200 {
		t.Fatalf("without the field: %+v", without)
	}
	if rule.kind == rig.Refused {
		param := rule.param
		if param == "" {
			param = path
		}
		text := string(rig.JSON(with.Answer))
		if with.Status != 400 || !strings.Contains(text, param) || with.Worker != "" {
			t.Errorf("%d %s, want 400 that names %s", with.Status, text, param)
		}
		return
	}
	if with.Status != 200 {
		t.Fatalf("%d %s", with.Status, rig.JSON(with.Answer))
	}
	says := cmp.Or(rule.says, shape(path))
	warns, more := strings.Contains(with.Warning, says) && !strings.Contains(without.Warning, says),
		with.Warning != without.Warning
	if rule.whole && strings.Contains(with.Warning, "fields-ignored") {
		t.Errorf("a member of what is left out as a whole is warned of: %q", with.Warning)
	}
	if strings.HasPrefix(path, "tools[") { // that the answer repeats them says nothing of their effect
		dropTools(without.Answer)
		dropTools(with.Answer)
	}
	warning := with.Warning
	with.Warning, without.Warning = "", ""
	d := gocmp.Diff(without, with)
	loud := rule.kind == rig.Warned || rule.kind == rig.Echoed
	if (d != "") != (rule.kind == rig.Changes || rule.kind == rig.Echoed) || warns != loud || more != loud {
		t.Errorf("%s, but the warning is %q, and it changes: %s\nbase %s\nwith %s", rule.kind, warning,
			d, rule.base, rule.with)
	}
}

// fieldList reads testdata/fields/NAME.txt and adds the members that a line leaves to another path
// (tests/node/fields.mjs).
func fieldList(t *testing.T, name string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "fields", name+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	homes := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		path, home, ok := strings.Cut(line, " = ")
		paths = append(paths, path)
		if ok {
			homes[path] = append(homes[path], home)
		}
	}
	var below func(path string) []string
	below = func(path string) (out []string) {
		for _, p := range paths {
			if rest, ok := strings.CutPrefix(p, path); ok && rest != "" && strings.Contains(".[(", rest[:1]) {
				out = append(out, rest)
				for _, more := range expand(p, homes, below) {
					out = append(out, rest+more)
				}
			}
		}
		return append(out, expand(path, homes, below)...)
	}
	var out []string
	for _, path := range paths {
		out = append(out, path)
		for _, more := range expand(path, homes, below) {
			out = append(out, path+more)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// expand are the ends of the paths below path that its line leaves to others.
func expand(path string, homes map[string][]string, below func(string) []string) (out []string) {
	for _, home := range homes[path] {
		out = append(out, below(home)...)
	}
	return out
}

// ruleOf finds the rule of a path. A rule about what is left out, refused or repeated as a whole is one about its
// members too.
func ruleOf(rules map[string]fieldRule, path string) (rule fieldRule, owner string, ok bool) {
	for at := path; ; {
		if rule, ok := rules[at]; ok && (at == path || rule.kind != rig.Changes && rule.kind != "") {
			return rule, at, true
		}
		i := strings.LastIndexAny(at, ".[(")
		if i < 0 {
			return fieldRule{}, "", false
		}
		at = at[:i]
	}
}

// TestEveryField walks the fields that the vendors' clients may send (testdata/fields, written by
// tests/node/fields.mjs) and those of the gateway's own. Each has a rule, each rule has a field, and each is held.
func TestEveryField(t *testing.T) {
	rigs := map[bool]*rig.Walk{false: rig.StartWalk(t, nil), true: rig.StartLabels(t)}
	spec, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "spec", "http-api.md"))
	if err != nil {
		t.Fatal(err)
	}
	row := "" // of §5.1, and for elements the table of §5.4
	_, elements, _ := strings.Cut(string(spec), "| Members of elements | Why |")
	elements, _, _ = strings.Cut(elements, "\n\n")
	for line := range strings.Lines(string(spec)) {
		if strings.Contains(line, "| ignored by rule:") {
			row = line
		}
	}
	ruled := func(path string) bool {
		if strings.Contains(path, "[") {
			return strings.Contains(elements, "`"+strings.TrimSuffix(path[strings.LastIndexAny(path, ".[")+1:], "]")+"`")
		}
		top, _, _ := strings.Cut(path, ".")
		return strings.Contains(row, "`"+top+"`") || strings.Contains(row, "`"+path+"`")
	}
	for _, d := range dialectFields() {
		held, known := map[string]bool{}, map[string]bool{}
		fields := slices.Clone(d.own)
		for _, list := range d.lists {
			fields = append(fields, fieldList(t, list)...)
		}
		for _, path := range fields {
			known[path] = true
			rule, owner, ok := ruleOf(d.rules, path)
			if !ok {
				t.Errorf("%s: the field %s has no rule: what does it do?", d.endpoint, path)
				continue
			}
			if rule.with == "" || held[owner] {
				continue // part of every request, or seen to
			}
			held[owner] = true
			t.Run(d.endpoint+"/"+owner, func(t *testing.T) { hold(rigs[rule.shown], t, d.endpoint, d.base, owner, rule) })
			if rule.kind == rig.ByRule && !ruled(owner) {
				t.Errorf("%s: %s is ignored by no rule of §5.1 and §5.4", d.endpoint, owner)
			}
		}
		for path := range d.rules {
			if !known[path] {
				t.Errorf("%s: the rule for %s is about no field", d.endpoint, path)
			}
		}
	}
}

// TestFieldsAreTheClients: the lists were written for the versions of the clients that are tried (tests/node).
func TestFieldsAreTheClients(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "tests", "node", "package.json"))
	if err != nil {
		t.Fatal(err)
	}
	var clients struct{ Dependencies map[string]string }
	if err := json.Unmarshal(text, &clients); err != nil {
		t.Fatal(err)
	}
	lists, err := filepath.Glob(filepath.Join("testdata", "fields", "*.txt"))
	if err != nil || len(lists) == 0 {
		t.Fatalf("%d lists, %v", len(lists), err)
	}
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil {
			t.Fatal(err)
		}
		var name, version string
		if _, err := fmt.Sscanf(string(text), "# %s %s", &name, &version); err != nil {
			t.Errorf("%s: %v", list, err)
		}
		if version = strings.TrimSuffix(version, ","); version != clients.Dependencies[name] {
			t.Errorf("%s lists the fields of %s %s, the tests have %q: run tests/node/fields.mjs", list, name, version,
				clients.Dependencies[name])
		}
	}
}

// TestTheWalkNotices: a rule that does not hold fails.
func TestTheWalkNotices(t *testing.T) {
	w := rig.StartWalk(t, nil)
	const chat = "/v1/chat/completions"
	base := dialectFields()[0].base
	for name, tt := range map[string]struct{ without, with seen }{
		"temperature": {ask(w, chat, merge(t, base)), ask(w, chat, merge(t, base, `"temperature":0.5`))},
		"user":        {ask(w, chat, merge(t, base)), ask(w, chat, merge(t, base, `"user":"u"`))},
		"verbosity":   {ask(w, chat, merge(t, base)), ask(w, chat, merge(t, base, `"verbosity":"low"`))},
	} {
		differs := !gocmp.Equal(tt.without, tt.with)
		if differs != (name != "user") || (tt.with.Warning != "") != (name == "verbosity") {
			t.Errorf("%s: %s", name, gocmp.Diff(tt.without, tt.with))
		}
	}
	if _, _, ok := ruleOf(dialectFields()[0].rules, "never_heard"); ok {
		t.Error("a field without a rule has one")
	}
	for _, path := range []string{"response_format.never_heard", "messages[never_heard]", "messages[user].never_heard",
		"messages[user].content[never_heard]", "messages[user].content[text].never_heard",
		"tools[function].function.never_heard"} {
		if _, owner, ok := ruleOf(dialectFields()[0].rules, path); ok {
			t.Errorf("%s, which has no rule, has that of %s", path, owner)
		}
	}
	if _, owner, _ := ruleOf(dialectFields()[0].rules,
		"messages[user].content[image_url].image_url.detail"); owner != "messages[user].content[image_url]" {
		t.Errorf("the detail of an image is left out with %q", owner)
	}
	// What a line leaves to another is listed, through several of them.
	if fields := fieldList(t, "messages"); !slices.Contains(fields,
		"messages[user].content[tool_result].content[document].source(content).content[text].cache_control.ttl") {
		t.Errorf("%d fields, and none of a text in a document in a tool's result", len(fields))
	}
}
