package toolcall

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestEdges: what the table of formats does not have.
func TestEdges(t *testing.T) {
	set := testSet(t)
	call := []string{"start now", "args {}", "end now"}
	tests := []struct {
		name, text string
		family     Family
		cut        bool
		want       []string
		failed     bool
	}{
		{"blank text around calls is dropped", "\n\n<tool_call>\n<function=now>\n</function>\n</tool_call>\n\n",
			QwenFamily, false, call, false},
		{"blank text alone stays", " \n", QwenFamily, false, []string{"text  \n"}, false},
		{"stray outer closer is swallowed", "<function=now></function>\n</tool_call>\nok", QwenFamily, false,
			append(call, "text \nok"), false},
		{"two functions in one wrapper", "<tool_call><function=now></function><function=now></function></tool_call>",
			QwenFamily, false, append(call, call...), false},
		{"arguments as text", `<tool_call>{"arguments": "{\"city\": \"Rome\"}", "name": "get_weather"}</tool_call>`,
			QwenFamily, false,
			[]string{"start get_weather", `args {"city": "Rome"}`, "end get_weather"}, false},
		{"arguments first", `<tool_call>{"arguments": {"city": "Rome"}, "name": "get_weather", "id": 5}</tool_call>`,
			QwenFamily, false,
			[]string{"start get_weather", `args {"city": "Rome"}`, "end get_weather"}, false},
		{"arguments as text that is no object", `<tool_call>{"name": "now", "arguments": "soon"}</tool_call>`,
			QwenFamily, false, call, true},
		{"arguments null", `<tool_call>{"name": "now", "arguments": null}</tool_call>`, QwenFamily, false, call, false},
		{"array of calls", `<tool_call>[{"name": "now"}, {"name": "now", "arguments": {}}]</tool_call>`, QwenFamily, false,
			append(call, call...), false},
		{"wrapped function of bare JSON", `{"type": "function", "function": {"name": "now", "arguments": {}}}`,
			Generic, false, call, false},
		{"other JSON is text", `{"answer": 42}`, Generic, false, []string{`text {"answer": 42}`}, false},
		{"JSON that looks like a call of another tool", `{"name": "Bob", "age": 3}`, Generic, false,
			[]string{`text {"name": "Bob", "age": 3}`}, false},
		{"code in a fence is text", "```go\nfunc main() {}\n```", Generic, false,
			[]string{"text ```go\nfunc main() {}\n```"}, false},
		{"raw newline in a JSON string", "<tool_call>{\"name\": \"write\", \"arguments\": {\"path\": \"a\nb\"}}</tool_call>",
			QwenFamily, false,
			[]string{"start write", `args {"path": "a\nb"}`, "end write"}, false},
		{"broken JSON is closed", `<tool_call>{"name": "write", "arguments": {"path": "a", "deep": {"x": [1, tru</tool_call>`,
			QwenFamily, false,
			[]string{"start write", `args {"path": "a", "deep": {"x": [1]}}`, "end write", "text </tool_call>"}, true},
		{"value without closing tag", "<tool_call>\n<function=write>\n<parameter=path>\na/b\n", QwenFamily, false,
			[]string{"start write", `args {"path": "a/b"}`, "end write"}, true},
		{"integer without closing tag", "<tool_call>\n<function=write>\n<parameter=lines>\n12", QwenFamily, false,
			[]string{"start write", `args {"lines": 12}`, "end write"}, true},
		{"between parameters", "<tool_call>\n<function=write>\n<parameter=path>\na\n</parameter>\n", QwenFamily, false,
			[]string{"start write", `args {"path": "a"}`, "end write"}, false},
		{"length inside a value", "ok<tool_call>\n<function=write>\n<parameter=path>\na/b\n", QwenFamily, true,
			[]string{"text ok", "start write", `args {"path": "a/b`}, false},
		{"length before the name", "ok<tool_call>\n<func", QwenFamily, true, []string{"text ok"}, false},
		{"length after the arguments", "<tool_call>\n<function=now>\n</function>\n</tool", QwenFamily, true, call, false},
		{"length in an opener", "ok<tool_c", QwenFamily, true, []string{"text ok<tool_c"}, false},
		{"end in an opener", "ok<tool_c", QwenFamily, false, []string{"text ok<tool_c"}, false},
		{"opener after a failed one", "<tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>", QwenFamily,
			false, append([]string{"text <tool_call>\n"}, call...), true},
		{"markup in a string value", "<function=write>\n<parameter=path>\n</function><tool_call>\n</parameter>\n</function>",
			QwenFamily, false,
			[]string{"start write", `args {"path": "</function><tool_call>"}`, "end write"}, false},
		{"deepseek: two calls in one region, closed by nobody", openDeepSeek + beginDeepSeek + "function" + sepDeepSeek +
			"now\n```json\n{}\n```" + endDeepSeek + "\n" + beginDeepSeek + "function" + sepDeepSeek +
			"now\n```json\n{}```" + endDeepSeek, QwenFamily, false, append(call, call...), false},
		{"deepseek: ends in the arguments", openDeepSeek + beginDeepSeek + "function" + sepDeepSeek +
			"write\n```json\n{\"path\": \"a", QwenFamily, false,
			[]string{"start write", `args {"path": "a"}`, "end write"}, true},
		{"deepseek: ends after the name", openDeepSeek + beginDeepSeek + "function" + sepDeepSeek + "now\n", QwenFamily,
			false, call, true},
		{"deepseek: no object", openDeepSeek + beginDeepSeek + "function" + sepDeepSeek + "now\n```json\n7\n```",
			QwenFamily, false, append(call, "text 7\n```"), true},
		{"deepseek: another kind of tool", openDeepSeek + beginDeepSeek + "search" + sepDeepSeek + "now\n", QwenFamily, false,
			[]string{"text " + openDeepSeek + beginDeepSeek + "search" + sepDeepSeek + "now\n"}, true},
		{"inner newlines stay", "<function=write><parameter=path>\n\na\n\n</parameter></function>", QwenFamily, false,
			[]string{"start write", `args {"path": "\na\n"}`, "end write"}, false},
		{"laguna keeps whitespace", "<tool_call>write<arg_key>path</arg_key><arg_value>\n a \n</arg_value><arg_key>lines</arg_key><arg_value> 3\n</arg_value></tool_call>",
			LagunaFamily, false, []string{"start write", `args {"path": "\n a \n", "lines": 3}`, "end write"}, false},
		{"other families do not read gemma's marks", "<|tool_call>call:now{}<tool_call|>", QwenFamily, false,
			[]string{"text <|tool_call>call:now{}<tool_call|>"}, false},
		{"gemma nests", `<|tool_call>call:get_weather{city:<|"|>Ro"me<|"|>,deep:{a:[1,{b:<|"|>x<|"|>}],c:null},ok:true}<tool_call|>`, GemmaFamily, false,
			[]string{"start get_weather", `args {"city": "Ro\"me", "deep": {"a": [1, {"b": "x"}], "c": null}, "ok": true}`,
				"end get_weather"}, false},
		{"repeated key: last wins", "<function=write><parameter=path>a</parameter><parameter=path>b</parameter></function>",
			QwenFamily, false,
			[]string{"start write", `args {"path": "b"}`, "end write"}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := run(t, Config{Set: set, Family: tt.family}, tt.text, tt.cut)
			if d := cmp.Diff(tt.want, got.Events); d != "" {
				t.Error(d)
			}
			if (got.Failure != "") != tt.failed {
				t.Errorf("failure %q, want one: %v", got.Failure, tt.failed)
			}
		})
	}
}

func TestSerialEndsTheTurn(t *testing.T) {
	call := "<tool_call>\n<function=now>\n</function>\n</tool_call>"
	got := run(t, Config{Set: testSet(t), Family: QwenFamily, Serial: true}, call+"\n"+call+" more", false)
	if d := cmp.Diff([]string{"start now", "args {}", "end now"}, got.Events); d != "" {
		t.Error(d)
	}
}

// TestStreamsAsItComes: what is certain is out with its byte.
func TestStreamsAsItComes(t *testing.T) {
	tests := []struct {
		name   string
		family Family
		text   string
		want   string // events so far
	}{
		{"name", QwenFamily, "<tool_call>\n<function=write>", "start write"},
		{"string opens", QwenFamily, "<tool_call>\n<function=write>\n<parameter=path>", `start write|args {"path": "`},
		{"string grows", QwenFamily, "<tool_call>\n<function=write>\n<parameter=path>\nabc",
			`start write|args {"path": "abc`},
		{"newline waits", QwenFamily, "<tool_call>\n<function=write>\n<parameter=path>\nabc\n</para",
			`start write|args {"path": "abc`},
		{"false closing tag goes out", QwenFamily, "<tool_call>\n<function=write>\n<parameter=path>\nabc\n</pair",
			`start write|args {"path": "abc\n</pair`},
		{"integer waits", QwenFamily, "<tool_call>\n<function=write>\n<parameter=lines>\n12\n", "start write"},
		{"JSON goes out", QwenFamily, `<tool_call>{"name": "write", "arguments": {"path": "ab`,
			`start write|args {"path": "ab`},
		{"gemma string grows", GemmaFamily, `<|tool_call>call:write{path:<|"|>ab<|`, `start write|args {"path": "ab`},
		{"signature announces", QwenFamily, `<function=write(path="a`, "start write"},
		{"text that is no opener", QwenFamily, "a < b <tool", "text a < b "},
	}
	set := testSet(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := NewParser(Config{Set: set, Family: tt.family, NewID: func() string { return "id" }})
			r := &record{tb: t}
			p.Push([]byte(tt.text), r)
			if got := strings.Join(r.events, "|"); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

// TestValues is the table of docs/spec/http-api.md §10.5.
func TestValues(t *testing.T) {
	raw := `{"$defs":{"n":{"type":"integer"}},"properties":{"s":{"type":"string"},"i":{"type":"integer"},"n":{"type":"number"},"b":{"type":"boolean"},
		"o":{"type":"object"},"a":{"type":"array"},"z":{"type":"null"},"u":{"type":["integer","null","string"]},"any":{"anyOf":[{"type":"integer"},{"type":"boolean"}]},
		"ref":{"$ref":"#/$defs/n"},"e":{"enum":["1","x"]},"loop":{"$ref":"#/properties/loop"}}}`
	sch := newSchema(json.RawMessage(raw))
	for _, tt := range []struct{ key, text, want string }{
		{"s", "5", `"5"`}, {"s", "null", `"null"`}, {"s", "", `""`}, {"e", "1", `"1"`},
		{"i", "5", "5"}, {"i", "-07", "-7"}, {"i", "123456789012345678901234567890", "123456789012345678901234567890"},
		{"i", "5.5", `"5.5"`}, {"i", "five", `"five"`},
		{"n", "5.0", "5"}, {"n", "0.5", "0.5"}, {"n", "1e3", "1000"}, {"n", "NaN", `"NaN"`}, {"n", "0x10", `"0x10"`},
		{"b", "True", "true"}, {"b", "0", "false"}, {"b", "yes", `"yes"`},
		{"o", `{"a": 1}`, `{"a": 1}`}, {"o", "[1]", `"[1]"`}, {"a", "[1]", "[1]"}, {"a", "[1", `"[1"`},
		{"z", "null", "null"}, {"u", "7", "7"}, {"u", "null", "null"}, {"u", "x", `"x"`}, {"any", "1", "1"},
		{"any", "true", "true"},
		{"ref", "3", "3"}, {"loop", "3", `"3"`}, {"unknown", "null", "null"}, {"unknown", "5", `"5"`},
	} {
		if got := string(appendValue(nil, tt.text, sch.of(tt.key))); got != tt.want {
			t.Errorf("%s %q: %s, want %s", tt.key, tt.text, got, tt.want)
		}
	}
}
