package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/tandem-inference/tandem/services/grammar"
)

// kind of output: a grammar, and texts of it as a model would write them.
type kind struct {
	name    string
	grammar func() (string, error)
	output  func(*rand.Rand) string
}

var kinds = []kind{
	{"JSON, any object", schema(`{"type":"object"}`), func(r *rand.Rand) string { return order(r) }},
	{"record with limits", schema(orderSchema), order},
	{"list of records", schema(`{"type":"array","items":` + orderSchema + `,"minItems":1,"maxItems":20}`),
		func(r *rand.Rand) string {
			list := make([]string, 6)
			for i := range list {
				list[i] = order(r)
			}
			return "[" + strings.Join(list, ", ") + "]"
		}},
	{"answer, one of 200 words", schema(choiceSchema()),
		func(r *rand.Rand) string { return fmt.Sprintf(`{"answer": "option %d"}`, r.IntN(200)) }},
	{"tool call, Hermes, JSON arguments", callJSON, func(r *rand.Rand) string {
		return `{"name": "write_file", "arguments": {"path": "` + path(r) + `", "content": ` + quoted(code(r)) +
			`, "mode": "w", "line": ` + fmt.Sprint(1+r.IntN(900)) + `}}`
	}},
	{"tool call, Qwen, strict text", callTags, func(r *rand.Rand) string {
		return "<function=write_file>\n<parameter=path>\n" + path(r) + "\n</parameter>\n<parameter=content>\n" + code(r) +
			"\n</parameter>\n<parameter=mode>\nw\n</parameter>\n" +
			"<parameter=title>\n" + sentence(r, 8) + "\n</parameter>\n</function>\n"
	}},
	{"pattern, words of letters only",
		schema(`{"type":"object","properties":{"slug":{"type":"string","pattern":"^[a-z]+(-[a-z]+)*$"}},"required":["slug"]}`), func(r *rand.Rand) string {
			return `{"slug": "` + strings.ReplaceAll(sentence(r, 12), " ", "-") + `"}`
		}},
}

const orderSchema = `{"type":"object","properties":{"id":{"type":"string","pattern":"^[A-Z]{2}-[0-9]{4}$"},"customer":{"type":"string","minLength":1,"maxLength":80},
	"date":{"type":"string","format":"date"},"total":{"type":"number","minimum":0},"paid":{"type":"boolean"},"state":{"enum":["new","sent","done","returned"]},
	"items":{"type":"array","items":{"type":"object","properties":{"name":{"type":"string"},"count":{"type":"integer","minimum":1,"maximum":500},"note":{"type":["string","null"]}},
	"required":["name","count","note"],"additionalProperties":false},"minItems":1,"maxItems":30},"summary":{"type":"string","maxLength":600}},
	"required":["id","customer","date","total","paid","state","items","summary"],"additionalProperties":false}`

func choiceSchema() string {
	list := make([]string, 200)
	for i := range list {
		list[i] = fmt.Sprintf(`"option %d"`, i)
	}
	return `{"type":"object","properties":{"answer":{"enum":[` + strings.Join(list,
		",") + `]}},"required":["answer"],"additionalProperties":false}`
}

// schema is the grammar of a schema.
func schema(text string) func() (string, error) {
	return func() (string, error) {
		w := grammar.NewWriter()
		rule, err := w.Schema([]byte(text))
		w.Define("root", rule)
		return w.Text(), err
	}
}

func callJSON() (string, error) {
	w := grammar.NewWriter()
	rule, err := w.Schema([]byte(`{"type":"object","properties":{"path":{"type":"string"},"content":{"type":"string"},"mode":{"enum":["w","a"]},"line":{"type":"integer","minimum":1}},
		"required":["path","content","mode","line"],"additionalProperties":false}`))
	w.Define("root", grammar.Quote(`{"name": "write_file", "arguments": `)+" "+rule+" "+grammar.Quote("}"))
	return w.Text(), err
}

func callTags() (string, error) {
	w := grammar.NewWriter()
	root := grammar.Quote("<function=write_file>\n")
	for _, p := range []struct{ key, schema string }{
		{"path", `{"type":"string","pattern":"^[a-z/]+\\.go$"}`}, {"content", `{"type":"string"}`},
		{"mode", `{"enum":["w","a"]}`}, {"title", `{"type":"string","minLength":1,"maxLength":200}`},
	} {
		rule, err := w.SchemaAs([]byte(p.schema), grammar.Spelling{Until: "</parameter>", Text: true})
		if err != nil {
			return "", err
		}
		root += " " + grammar.Quote("<parameter="+p.key+">\n") + " " + rule + " " + grammar.Quote("\n</parameter>\n")
	}
	w.Define("root", root+" "+grammar.Quote("</function>\n"))
	return w.Text(), nil
}

// order is a record of orderSchema.
func order(r *rand.Rand) string {
	items := make([]string, 1+r.IntN(5))
	for i := range items {
		note := "null"
		if r.IntN(2) == 0 {
			note = quoted(sentence(r, 6))
		}
		items[i] = fmt.Sprintf("{\"name\": %s, \"count\": %d, \"note\": %s}", quoted(sentence(r, 2)), 1+r.IntN(500), note)
	}
	return fmt.Sprintf("{\"id\": \"%c%c-%04d\", \"customer\": %s, \"date\": \"2026-%02d-%02d\", \"total\": %d.%02d, \"paid\": %v, \"state\": %q, \"items\": [%s], \"summary\": %s}",
		'A'+rune(r.IntN(26)), 'A'+rune(r.IntN(26)), r.IntN(10000), quoted(sentence(r, 3)), 1+r.IntN(12), 1+r.IntN(28),
		r.IntN(5000), r.IntN(100), r.IntN(2) == 0,
		[]string{"new", "sent", "done", "returned"}[r.IntN(4)], strings.Join(items, ", "), quoted(sentence(r, 40)))
}

const words = `the of and a to in is that it was for on are as with his they be at one have this from or had by hot word but what some we can out other were all there
	when up use your how said an each she which do their time if will way about many then them write would like so these her long make thing see him two has look
	more day could go come did number sound no most people my over know water than call first who may down side been now find any new work part take get place made`

func sentence(r *rand.Rand, n int) string {
	list := strings.Fields(words)
	out := make([]string, n)
	for i := range out {
		out[i] = list[r.IntN(len(list))]
	}
	return strings.Join(out, " ")
}

func path(r *rand.Rand) string { return strings.ReplaceAll(sentence(r, 3), " ", "/") + ".go" }

// code is a piece of a program, with markup in it.
func code(r *rand.Rand) string {
	var b strings.Builder
	for range 12 {
		a, z := sentence(r, 1), sentence(r, 1)
		fmt.Fprintf(&b, "// %s\nfunc %s(%s int) (string, error) {\n\tif %s < %d && %s[%q] != nil {\n\t\treturn \"<%s>\" + %s + \"</%s>\", nil\n\t}\n\treturn \"\", fmt.Errorf(\"%s: %%d\", %s)\n}\n\n",
			sentence(r, 7), a, z, z, r.IntN(100), a, z, a, z, a, a, z)
	}
	return b.String()
}

func quoted(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // texts always marshal
	}
	// Models leave these as they are.
	return strings.NewReplacer(`\u003c`, "<", `\u003e`, ">", `\u0026`, "&").Replace(string(b))
}
