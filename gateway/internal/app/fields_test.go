package app

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// A fieldRule says what a field does. The walk asks for it twice, without and with the field, and holds the gateway to it.
type fieldRule struct {
	kind string // one of the constants below
	// with are the members that a request with the field has, as JSON; base those that it has without, beside the dialect's own.
	with, base string
	// param is the field that an error names; empty = the path.
	param string
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
	// queued: nothing of this request changes and nothing warns: the field orders the queue (§4.3), or its effect shows elsewhere only.
	queued = "shows elsewhere"
	// echoed: the answer repeats the field, nothing else changes, and x-tandem-warning names it.
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
}

func startWalk(t *testing.T) *walkRig {
	r := start(t, nil)
	w := &walkRig{rig: r}
	// Two calls and repeated text, so that parallel calls, stops and limits show.
	w.target = r.target(gatewaytest.WorkerOptions{Decode: gatewaytest.Script{
		Tokens: r.encode("Sure, one two.\n" + weatherCall + "\n" + strings.ReplaceAll(weatherCall, "Rome", "Bern")), Step: 4, Stop: r.tok.StopTokens()[0], Logprobs: true}.Run})
	script, _ := scorer(t, "raven")
	w.scorer = r.scorer(script)
	return w
}

// seen is what a request caused.
type seen struct {
	Status          int
	Answer          any
	Worker, Scorer  string
	Warning, Header string
}

// volatile members differ between equal requests.
var volatile = []string{"id", "created", "created_at", "completed_at", "timings", "score_ms", "signature", "encrypted_content", "item_id", "call_id", "tool_use_id"}

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
	out := seen{Status: a.status, Warning: strings.Join(a.header.Values("X-Tandem-Warning"), "; "), Header: a.header.Get("Content-Type")}
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

// hold checks one field against its rule.
func (w *walkRig) hold(t *testing.T, endpoint, base, path string, rule fieldRule) {
	t.Helper()
	without := w.ask(endpoint, merge(t, base, rule.base))
	with := w.ask(endpoint, merge(t, base, rule.base, rule.with))
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
	names := strings.Contains(with.Warning, path) || with.Warning != without.Warning
	with.Warning, without.Warning = "", ""
	d := cmp.Diff(without, with)
	if (d != "") != (rule.kind == changes || rule.kind == echoed) || names != (rule.kind == warned || rule.kind == echoed) {
		t.Errorf("%s, but warned of: %v, and it changes: %s", rule.kind, names, d)
	}
}

// fieldLists reads testdata/fields/NAME.txt.
func fieldList(t *testing.T, name string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "fields", name+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			out = append(out, line)
		}
	}
	return out
}

// ruleOf finds the rule of a path. A rule about an object that nobody looks into is one about its members too.
func ruleOf(rules map[string]fieldRule, path string) (rule fieldRule, owner string, ok bool) {
	for at := path; ; {
		if rule, ok := rules[at]; ok && (at == path || rule.kind != changes) {
			return rule, at, true
		}
		i := strings.LastIndexByte(at, '.')
		if i < 0 {
			return fieldRule{}, "", false
		}
		at = at[:i]
	}
}

// TestEveryField walks the fields that the vendors' clients may send (testdata/fields, written by tests/node/fields.mjs) and those of the
// gateway's own. Each has a rule, each rule has a field, and each is held.
func TestEveryField(t *testing.T) {
	w := startWalk(t)
	spec, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "spec", "http-api.md"))
	if err != nil {
		t.Fatal(err)
	}
	row := ""
	for line := range strings.Lines(string(spec)) {
		if strings.Contains(line, "| ignored by rule:") {
			row = line
		}
	}
	for _, d := range dialectFields() {
		for _, list := range d.lists {
			fields := append(fieldList(t, list), d.own...)
			for _, path := range fields {
				rule, owner, ok := ruleOf(d.rules, path)
				if !ok {
					t.Errorf("%s: the field %s has no rule: what does it do?", list, path)
					continue
				}
				if rule.with == "" {
					continue // part of every request
				}
				t.Run(list+"/"+path, func(t *testing.T) { w.hold(t, d.endpoint, d.base, owner, rule) })
				if top, _, _ := strings.Cut(path, "."); rule.kind == byRule && !strings.Contains(row, "`"+top+"`") && !strings.Contains(row, "`"+path+"`") {
					t.Errorf("%s: %s is ignored by no rule of §5.1", list, path)
				}
			}
		}
		for path := range d.rules {
			known := slices.Contains(d.own, path)
			for _, list := range d.lists {
				known = known || slices.Contains(fieldList(t, list), path)
			}
			if !known {
				t.Errorf("%v: the rule for %s is about no field", d.lists, path)
			}
		}
	}
}

// TestTheWalkNotices: a rule that does not hold fails.
func TestTheWalkNotices(t *testing.T) {
	w := startWalk(t)
	const chat = "/v1/chat/completions"
	base := dialectFields()[0].base
	for name, tt := range map[string]struct{ without, with seen }{
		"temperature": {w.ask(chat, merge(t, base)), w.ask(chat, merge(t, base, `"temperature":0.5`))},
		"user":        {w.ask(chat, merge(t, base)), w.ask(chat, merge(t, base, `"user":"u"`))},
		"verbosity":   {w.ask(chat, merge(t, base)), w.ask(chat, merge(t, base, `"verbosity":"low"`))},
	} {
		differs := !cmp.Equal(tt.without, tt.with)
		if differs != (name != "user") || (tt.with.Warning != "") != (name == "verbosity") {
			t.Errorf("%s: %s", name, cmp.Diff(tt.without, tt.with))
		}
	}
	if _, _, ok := ruleOf(dialectFields()[0].rules, "never_heard"); ok {
		t.Error("a field without a rule has one")
	}
	if _, _, ok := ruleOf(dialectFields()[0].rules, "response_format.never_heard"); ok {
		t.Error("a member without a rule has its object's")
	}
}
