package turn

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-inference/tandem/gateway/internal/chattemplate"
	"github.com/tandem-inference/tandem/gateway/internal/reqjson"
	"github.com/tandem-inference/tandem/gateway/internal/toolcall"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"google.golang.org/grpc/codes"
)

func object(t *testing.T, body string) reqjson.Object {
	t.Helper()
	o, err := reqjson.Parse([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// TestToolsAreCanonical: the same tool gives the same bytes in the form of every dialect.
func TestToolsAreCanonical(t *testing.T) {
	const want = `[{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"z": 1, "a": 2}}}]`
	for name, body := range map[string]string{
		"nested":        `{"type":"function","function":{"name":"f","description":"d","parameters":{"z":1,"a":2}}}`,
		"flat":          `{"type":"function","name":"f","description":"d","parameters":{"z":1,"a":2}}`,
		"not strict":    `{"type":"function","name":"f","description":"d","parameters":{"z":1,"a":2},"strict":false}`,
		"without type":  `{"function":{"name":"f","description":"d","parameters":{"z":1,"a":2}}}`,
		"input_schema":  `{"name":"f","description":"d","input_schema":{"z":1,"a":2}}`,
		"with hints":    `{"type":"custom","name":"f","description":"d","input_schema":{"z":1,"a":2},"cache_control":{"type":"ephemeral"},"eager_input_streaming":true}`,
		"replaced":      `{"name":"f"},{"name":"f","description":"d","input_schema":{"z":1,"a":2}}`,
		"deferred next": `{"name":"f","description":"d","input_schema":{"z":1,"a":2}},{"name":"later","defer_loading":true,"input_schema":{}}`,
	} {
		set, skipped, err := ParseTools(object(t, `{"tools":[`+body+`,{"type":"web_search_20250305","name":"web_search"}]}`))
		if err != nil {
			t.Fatal(name, err)
		}
		if got, err := chattemplate.ToJSON(set.Shown()); err != nil || got != want {
			t.Errorf("%s: %s, %v", name, got, err)
		}
		if d := cmp.Diff([]string{"web_search_20250305"}, skipped); d != "" {
			t.Error(name, d)
		}
		if set.Get("f") == nil || (set.Get("later") != nil) != (name == "deferred next") {
			t.Errorf("%s: names are %v", name, set.All())
		}
	}
	// An empty description is rendered like any other, none is not.
	for body, want := range map[string]string{
		`{"type":"function","function":{"name":"f","description":""}}`:   `[{"type": "function", "function": {"name": "f", "description": ""}}]`,
		`{"name":"f","description":"","input_schema":{}}`:                `[{"type": "function", "function": {"name": "f", "description": "", "parameters": {}}}]`,
		`{"type":"function","function":{"name":"f","description":null}}`: `[{"type": "function", "function": {"name": "f"}}]`,
	} {
		set, _, err := ParseTools(object(t, `{"tools":[`+body+`]}`))
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := chattemplate.ToJSON(set.Shown()); got != want {
			t.Errorf("%s becomes %s, want %s", body, got, want)
		}
	}
	// The order of keys is the definition's.
	set, _, err := ParseTools(object(t,
		`{"tools":[{"type":"function","function":{"strict":true,"parameters":{},"name":"f"}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := chattemplate.ToJSON(set.Shown()); got != `[{"type": "function", "function": {"strict": true, "parameters": {}, "name": "f"}}]` {
		t.Error(got)
	}
}

func TestNamespacesAndCustomTools(t *testing.T) {
	set, _, err := ParseTools(object(t,
		`{"tools":[{"type":"namespace","name":"mcp","tools":[{"type":"function","name":"read","parameters":{}}]},
		{"type":"custom","name":"apply_patch","description":"d","format":{"type":"grammar"}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if read := set.Get("mcp.read"); read == nil || read.Namespace != "mcp" || read.Local != "read" {
		t.Errorf("tool of the namespace: %+v", read)
	}
	patch := set.Get("apply_patch")
	if patch == nil || patch.Kind != toolcall.Custom || patch.Format == nil {
		t.Fatalf("custom tool: %+v", patch)
	}
	const want = `{"type": "function", "function": {"name": "apply_patch", "description": "d", "parameters": {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}}}`
	if got, _ := chattemplate.ToJSON(patch.Definition()); got != want {
		t.Error(got)
	}
}

func TestToolFaults(t *testing.T) {
	for body, param := range map[string]string{
		`{"tools":{}}`:                "tools",
		`{"tools":[5]}`:               "tools[0]",
		`{"tools":[{"function":{}}]}`: "tools[0].function.name",
		`{"tools":[{"type":"function","name":"a b"}]}`:                  "tools[0].name",
		`{"tools":[{"name":"a","parameters":[]}]}`:                      "tools[0].parameters",
		`{"tools":[{"type":"namespace","tools":[]}]}`:                   "tools[0].name",
		`{"tools":[{"type":"namespace","name":"n","tools":[{"x":1}]}]}`: "tools[0].tools[0].name",
	} {
		_, _, err := ParseTools(object(t, body))
		if faultAt(err) != param {
			t.Errorf("%s: %v, want a fault at %s", body, err, param)
		}
	}
}

func TestToolChoices(t *testing.T) {
	const tools = `"tools":[{"type":"web_search","name":"web_search"},{"name":"f"},{"type":"namespace","name":"n","tools":[{"name":"g"}]}]`
	no, yes := false, true
	for choice, want := range map[string]struct {
		c        ToolChoice
		parallel *bool
	}{
		`"auto"`: {}, `"none"`: {c: ToolChoice{Mode: ToolNone}}, `"required"`: {c: ToolChoice{Mode: ToolRequired}},
		`"any"`: {c: ToolChoice{Mode: ToolRequired}},
		`{"type":"auto","disable_parallel_tool_use":true}`:                                                                      {parallel: &no},
		`{"type":"any","disable_parallel_tool_use":false}`:                                                                      {c: ToolChoice{Mode: ToolRequired}, parallel: &yes},
		`{"type":"tool","name":"f"}`:                                                                                            {c: ToolChoice{Mode: ToolNamed, Name: "f"}},
		`{"type":"function","function":{"name":"f"}}`:                                                                           {c: ToolChoice{Mode: ToolNamed, Name: "f"}},
		`{"type":"function","name":"g","namespace":"n"}`:                                                                        {c: ToolChoice{Mode: ToolNamed, Name: "n.g"}},
		`{"type":"allowed_tools","mode":"required","tools":[{"type":"function","name":"f"}]}`:                                   {c: ToolChoice{Mode: ToolRequired, Allowed: []string{"f"}}},
		`{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"type":"function","function":{"name":"f"}}]}}`:        {c: ToolChoice{Allowed: []string{"f"}}},
		`{"type":"allowed_tools","mode":"auto","tools":[{"type":"web_search"},{"type":"function","name":"g","namespace":"n"}]}`: {c: ToolChoice{Allowed: []string{"n.g"}}},
		`{"type":"web_search"}`:               {c: ToolChoice{Hosted: "web_search"}},
		`{"type":"tool","name":"web_search"}`: {c: ToolChoice{Hosted: "web_search"}},
	} {
		o := object(t, `{`+tools+`,"tool_choice":`+choice+`}`)
		set, _, err := ParseTools(o)
		if err != nil {
			t.Fatal(err)
		}
		c, parallel, err := ParseToolChoice(o, set)
		if err != nil || !cmp.Equal(c, want.c) || !cmp.Equal(parallel, want.parallel) {
			t.Errorf("%s: %+v %v %v, want %+v %v", choice, c, parallel, err, want.c, want.parallel)
		}
	}
}

// TestToolChoiceFaults: a choice that cannot be kept is refused where it says so.
func TestToolChoiceFaults(t *testing.T) {
	const tools = `"tools":[{"name":"f"},{"type":"web_search"}]`
	for choice, param := range map[string]string{
		`"sometimes"`: "tool_choice", `{"type":"sometimes"}`: "tool_choice.type",
		`{"type":"file_search"}`: "tool_choice.type", `{"type":"function"}`: "tool_choice.name",
		`{"type":"allowed_tools","mode":"sometimes","tools":[{"type":"function","name":"f"}]}`:                 "tool_choice.mode",
		`{"type":"allowed_tools","tools":[{"type":"function","name":"f"}]}`:                                    "tool_choice.mode",
		`{"type":"allowed_tools","mode":"auto"}`:                                                               "tool_choice.tools",
		`{"type":"allowed_tools","mode":"auto","tools":[]}`:                                                    "tool_choice.tools",
		`{"type":"allowed_tools","mode":"required","tools":[{"type":"web_search"}]}`:                           "tool_choice.tools",
		`{"type":"allowed_tools","mode":"auto","tools":[{"type":"function","name":"f"},{"name":"g"}]}`:         "tool_choice.tools[1].name",
		`{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"type":"function","function":{}}]}}`: "tool_choice.allowed_tools.tools[0].function.name",
	} {
		o := object(t, `{`+tools+`,"tool_choice":`+choice+`}`)
		set, _, err := ParseTools(o)
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = ParseToolChoice(o, set)
		if faultAt(err) != param {
			t.Errorf("%s: %v, want a fault at %s", choice, err, param)
		}
	}
}

// faultAt returns the field that an error in the request names, empty for another error.
func faultAt(err error) string {
	e := rpcerr.From(err)
	if v := e.Violations(); rpcerr.Code(err) == codes.InvalidArgument && len(v) == 1 {
		return v[0].Field
	}
	return ""
}
