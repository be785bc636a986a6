package app

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
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"google.golang.org/protobuf/encoding/protojson"
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

const (
	// changes: the worker's request, the scorer's, or the answer is another one, and nothing warns of the field.
	changes = "changes"
	// refused: 400, and the error names the field.
	refused = "refused"
	// warned: nothing changes, and x-tandem-warning names the field or what was left out.
	warned = "warned"
	// byRule: nothing changes and nothing warns; §5.1 of the specification lists the field.
	byRule = "ignored by rule"
	// queued: nothing of this request changes and nothing warns: the field orders the queue (§4.3), or its effect shows
	// elsewhere only.
	queued = "shows elsewhere"
	// echoed: the answer repeats the field or a word takes its place in the prompt, and x-tandem-warning names what was
	// left out.
	echoed = "echoed"
)

func change(with, base string) fieldRule { return fieldRule{kind: changes, with: with, base: base} }

func refuse(with, param string) fieldRule { return fieldRule{kind: refused, with: with, param: param} }

func warn(with string) fieldRule { return fieldRule{kind: warned, with: with} }

func ignore(with string) fieldRule { return fieldRule{kind: byRule, with: with} }

// walkRig is a gateway with a target and a scorer, whose requests are seen.
type walkRig struct {
	*rig
	target, scorer *gatewaytest.Worker
	// known is the id of an item that the gateway keeps.
	known string
	// sealed and signed hold reasoning as answers of Responses and Messages carry it.
	sealed, signed string
}

// labels is a template that shows what others leave out: names and ids.
const labels = `{% for m in messages %}<|im_start|>{{ m.role }} {{ m.name }} {{ m.tool_call_id }}
{{ m.content }}{% for c in m.tool_calls %}[{{ c.id }} {{ c.function.name }}]{% endfor %}<|im_end|>
{% endfor %}<|im_start|>assistant
`

func startWalk(t *testing.T, change func(*Config)) *walkRig {
	r := start(t, change)
	w := &walkRig{rig: r}
	// Two calls and repeated text, so that parallel calls, stops and limits show.
	w.target = r.target(gatewaytest.WorkerOptions{Decode: r.reply("<think>\nwhy\n</think>\n\nok", 1)})
	answer := w.post("/v1/responses",
		`{"input":"Go.","enable_thinking":true,"include":["reasoning.encrypted_content"]}`).json(t)
	w.known, _ = at(answer, "output", 1, "id").(string)
	w.sealed, _ = at(answer, "output", 0, "encrypted_content").(string)
	w.signed, _ = at(w.post("/v1/messages",
		`{"messages":[{"role":"user","content":"Go."}],"thinking":{"type":"enabled","display":"omitted"}}`).json(t),
		"content", 0, "signature").(string)
	if w.known == "" || w.sealed == "" || w.signed == "" {
		t.Fatalf("item %q, sealed %q, signed %q", w.known, w.sealed, w.signed)
	}
	w.target.SetDecode(gatewaytest.Script{
		Tokens: r.encode("Sure, one two.\n" + weatherCall + "\n" + strings.ReplaceAll(weatherCall, "Rome", "Bern")), Step: 4,
		Stop: r.tok.StopTokens()[0], Logprobs: true}.Run)
	script, _ := scorer(t, "raven")
	w.scorer = r.scorer(script)
	return w
}

// startLabels is startWalk with the template labels.
func startLabels(t *testing.T) *walkRig {
	path := filepath.Join(t.TempDir(), "labels")
	if err := os.WriteFile(path, []byte(labels), 0o600); err != nil {
		t.Fatal(err)
	}
	return startWalk(t, func(c *Config) { c.ChatTemplateFile = path })
}

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

func (w *walkRig) ask(path, body string) seen {
	before, scored := len(w.target.Requests()), len(w.scorer.Scored())
	a := w.post(path, body)
	out := seen{Status: a.status, Warning: strings.Join(a.header.Values("X-Tandem-Warning"), "; "),
		Header: a.header.Get("Content-Type")}
	var v any
	if json.Unmarshal(a.body, &v) == nil {
		out.Answer = settled(v)
	} else {
		var events []any
		for line := range bytes.Lines(a.body) {
			var event any
			if data, ok := bytes.CutPrefix(line, []byte("data: ")); ok && json.Unmarshal(data, &event) == nil {
				events = append(events, settled(event))
			}
		}
		out.Answer = events
	}
	var reqs []string
	for _, req := range w.target.Requests()[before:] {
		req = proto.Clone(req).(*tandemv1.DecodeRequest)
		req.RequestId = ""
		req.Cache = nil // changes time alone: prefixcache_test.go
		reqs = append(reqs, compactProto(req))
	}
	slices.Sort(reqs) // choices start in any order
	out.Worker = strings.Join(reqs, "\n")
	for _, req := range w.scorer.Scored()[scored:] {
		req = proto.Clone(req).(*tandemv1.CompressRequest)
		req.RequestId = ""
		out.Scorer += compactProto(req)
	}
	return out
}

func compactProto(m proto.Message) string {
	b, err := protojson.Marshal(m)
	if err != nil {
		panic(err)
	}
	var buf bytes.Buffer
	if err := json.Compact(&buf, b); err != nil { // protojson varies its spaces
		panic(err)
	}
	return buf.String()
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
	return string(mustJSON(out))
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
func (w *walkRig) hold(t *testing.T, endpoint, base, path string, rule fieldRule) {
	t.Helper()
	known := strings.NewReplacer("KNOWN", w.known, "SEALED", w.sealed, "SIGNED", w.signed)
	without := w.ask(endpoint, known.Replace(merge(t, base, rule.base)))
	with := w.ask(endpoint, known.Replace(merge(t, base, rule.base, rule.with)))
	if without.Status != 200 {
		t.Fatalf("without the field: %+v", without)
	}
	if rule.kind == refused {
		param := rule.param
		if param == "" {
			param = path
		}
		text := string(mustJSON(with.Answer))
		if with.Status != 400 || !strings.Contains(text, param) || with.Worker != "" {
			t.Errorf("%d %s, want 400 that names %s", with.Status, text, param)
		}
		return
	}
	if with.Status != 200 {
		t.Fatalf("%d %s", with.Status, mustJSON(with.Answer))
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
	loud := rule.kind == warned || rule.kind == echoed
	if (d != "") != (rule.kind == changes || rule.kind == echoed) || warns != loud || more != loud {
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
		if rule, ok := rules[at]; ok && (at == path || rule.kind != changes && rule.kind != "") {
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
	rigs := map[bool]*walkRig{false: startWalk(t, nil), true: startLabels(t)}
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
			t.Run(d.endpoint+"/"+owner, func(t *testing.T) { rigs[rule.shown].hold(t, d.endpoint, d.base, owner, rule) })
			if rule.kind == byRule && !ruled(owner) {
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
	w := startWalk(t, nil)
	const chat = "/v1/chat/completions"
	base := dialectFields()[0].base
	for name, tt := range map[string]struct{ without, with seen }{
		"temperature": {w.ask(chat, merge(t, base)), w.ask(chat, merge(t, base, `"temperature":0.5`))},
		"user":        {w.ask(chat, merge(t, base)), w.ask(chat, merge(t, base, `"user":"u"`))},
		"verbosity":   {w.ask(chat, merge(t, base)), w.ask(chat, merge(t, base, `"verbosity":"low"`))},
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
