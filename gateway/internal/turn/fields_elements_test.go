package turn_test

import (
	"encoding/json"
	"maps"
	"strings"

	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
)

// An around puts elements of an array into the members of a request.
type around func(elements ...string) string

// object is a JSON object with the members of all lists; later ones win.
func object(lists ...string) string {
	out := map[string]json.RawMessage{}
	for _, list := range lists {
		var m map[string]json.RawMessage
		if err := json.Unmarshal([]byte("{"+list+"}"), &m); err != nil {
			panic(list + ": " + err.Error())
		}
		maps.Copy(out, m)
	}
	return string(rig.JSON(out))
}

// list puts elements between what a request has before and after them.
func list(before, after string) around {
	return func(elements ...string) string {
		all := strings.Join(elements, ",")
		if all != "" && !strings.HasSuffix(before, "[") && !strings.HasSuffix(before, ",") {
			all = "," + all
		}
		return before + all + after
	}
}

// inside returns an around for an array inside an element: before and after are the element's members up to the array's
// elements and from there on.
func (a around) inside(before, after string) around {
	in := list(before, after)
	return func(elements ...string) string { return a("{" + in(elements...) + "}") }
}

// under adds the rules of an element's members. path names the element with its variant; plain holds the members of a
// valid element. with and base of a rule are members of the element.
func under(out map[string]fieldRule, path string, a around, plain string, rules map[string]fieldRule) {
	out[path] = fieldRule{} // what its members do is what it does
	for end, rule := range rules {
		if rule.with != "" {
			rule.with, rule.base = a(object(plain, rule.base, rule.with)), a(object(plain, rule.base))
		}
		out[path+"."+end] = rule
	}
}

// whole adds the rules of elements that are treated as a whole, by variant: no warning is about a member of them.
func whole(out map[string]fieldRule, kind, path string, a around, word string, elements map[string]string) {
	for variant, element := range elements {
		says := variant
		if word != "" {
			says = word
		}
		says, _, _ = strings.Cut(says, "|")
		if element == "" {
			element = `"type":"` + says + `"`
		}
		out[path+"["+variant+"]"] = fieldRule{kind: kind, with: a(object(element, `"never_heard":1`)), base: a(),
			says: says, whole: true}
	}
}

// variants are elements that nothing but their type is known of.
func variants(names string) map[string]string {
	out := map[string]string{}
	for name := range strings.FieldsSeq(names) {
		out[name] = ""
	}
	return out
}

// shows is a change that only a template shows that writes names and ids.
func shows(with, base string) fieldRule {
	return fieldRule{kind: rig.Changes, with: with, base: base, shown: true}
}

const (
	citySchema = `{"type":"object","properties":{"city":{"type":"string"}}}`
	longText   = `"Stop this now, please."`
)

// default values say nothing.
func standard(with string) fieldRule { return fieldRule{kind: rig.Queued, with: with} }

// chatElements are the rules of arrays in a chat request.
func chatElements() map[string]fieldRule {
	out := map[string]fieldRule{"messages[assistant].content": {}, "messages[assistant].tool_calls": {}}
	text := map[string]fieldRule{"text": change(`"text":`+longText, ""),
		"prompt_cache_breakpoint": ignore(`"prompt_cache_breakpoint":{"mode":"explicit"}`)}
	for _, role := range []string{"user", "system", "developer", "tool", "function", "assistant"} {
		path := "messages[" + role + "]"
		messages := list(`"messages":[{"role":"user","content":"Go."}`, `,{"role":"user","content":"On."}]`)
		if role == "system" || role == "developer" {
			messages = list(`"messages":[`, `,{"role":"user","content":"On."}]`)
		}
		under(out, path, messages, `"role":"`+role+`","content":"So.","tool_call_id":"c"`, map[string]fieldRule{
			"content": change(`"content":`+longText, ""), "name": shows(`"name":"some name"`, ""),
			"tool_call_id": shows(`"tool_call_id":"some id"`, ""),
		})
		if role != "tool" {
			delete(out, path+".tool_call_id")
		} else {
			delete(out, path+".name")
		}
		if role != "function" {
			under(out, path+".content[text]", messages.inside(`"role":"`+role+`","content":[`, `]`),
				`"type":"text","text":"So."`, text)
		}
	}
	spoken := list(`"messages":[{"role":"user","content":"Go."},`, `,{"role":"tool","tool_call_id":"c","content":"r"}]`)
	under(out, "messages[assistant]", spoken, `"role":"assistant","content":"So."`, map[string]fieldRule{
		"content": change(`"content":`+longText, ""), "name": shows(`"name":"some name"`, ""),
		"refusal":       change(`"refusal":"I will not."`, ""),
		"audio":         {kind: rig.Echoed, with: `"audio":{"id":"a"}`, says: "content-omitted: audio"},
		"function_call": change(`"function_call":{"name":"f","arguments":"{}"}`, ""),
		"function_call.name": change(`"function_call":{"name":"other","arguments":"{}"}`,
			`"function_call":{"name":"f","arguments":"{}"}`),
		"function_call.arguments": change(`"function_call":{"name":"f","arguments":"{\"a\":1}"}`,
			`"function_call":{"name":"f","arguments":"{}"}`),
		"reasoning_content": change(`"reasoning_content":"why"`, ""), "reasoning": change(`"reasoning":"why"`, ""),
		"reasoning_details": change(`"reasoning_details":[{"type":"reasoning.text","text":"why"}]`, ""),
		"tool_calls": change(`"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]`,
			""),
	})
	under(out, "messages[assistant].reasoning_details[]",
		spoken.inside(`"role":"assistant","content":"So.","reasoning_details":[`,
			`]`), `"type":"reasoning.text","text":"why"`, map[string]fieldRule{
			"text": change(`"text":"for this reason"`, ""), "summary": change(`"text":null,"summary":"in short"`, ""),
			"signature": warn(`"signature":"x"`), "data": warn(`"data":"x"`), "type": ignore(`"type":"reasoning.summary"`),
			"id": ignore(`"id":"x"`), "index": ignore(`"index":0`), "format": ignore(`"format":"x"`),
		})
	under(out, "messages[assistant].content[refusal]", spoken.inside(`"role":"assistant","content":[`, `]`),
		`"type":"refusal","refusal":"No."`, map[string]fieldRule{"refusal": change(`"refusal":"I will not."`, "")})
	calls := spoken.inside(`"role":"assistant","content":"So.","tool_calls":[`, `]`)
	under(out, "messages[assistant].tool_calls[function]", calls,
		`"type":"function","id":"c","function":{"name":"f","arguments":"{}"}`, map[string]fieldRule{
			"id": shows(`"id":"some id"`, ""), "index": ignore(`"index":0`), "function": {},
			"function.name":      change(`"function":{"name":"other"}`, `"function":{"name":"f"}`),
			"function.arguments": change(`"function":{"name":"f","arguments":"{\"a\":1}"}`, ""),
			"cache_control":      ignore(`"cache_control":{"type":"ephemeral"}`),
		})
	under(out, "messages[assistant].tool_calls[custom]", calls,
		`"type":"custom","id":"c","custom":{"name":"f","input":"x"}`, map[string]fieldRule{
			"id": shows(`"id":"some id"`, ""), "custom": {}, "custom.name": change(`"custom":{"name":"other","input":"x"}`, ""),
			"custom.input": change(`"custom":{"name":"f","input":"y and z"}`, ""),
		})
	parts := list(`"messages":[{"role":"user","content":[{"type":"text","text":"Go."}`, `]}]`)
	whole(out, rig.Echoed, "messages[user].content", parts, "content-omitted: image",
		map[string]string{"image_url": `"type":"image_url","image_url":{"url":"data:,","detail":"low"}`})
	whole(out, rig.Echoed, "messages[user].content", parts, "content-omitted: audio",
		map[string]string{"input_audio": `"type":"input_audio","input_audio":{"data":"","format":"wav"}`})
	whole(out, rig.Echoed, "messages[user].content", parts, "content-omitted: file",
		map[string]string{"file": `"type":"file","file":{"file_id":"f","filename":"n"}`})
	definition := func(more string) string {
		return `"function":{"name":"get_weather","parameters":` + citySchema + more + `}`
	}
	under(out, "tools[function]", list(`"tools":[`, `]`), `"type":"function",`+definition(""), map[string]fieldRule{
		"function": {}, "function.name": change(`"function":{"name":"other"}`, `"function":{"name":"get_weather"}`),
		"function.description":    change(definition(`,"description":"d"`), ""),
		"function.parameters":     change(`"function":{"name":"get_weather","parameters":{"type":"object"}}`, ""),
		"function.strict":         change(definition(`,"strict":true`), ""),
		"function.input_examples": change(definition(`,"input_examples":[{"city":"Oslo"}]`), ""),
		"function.defer_loading":  change(definition(`,"defer_loading":true`), ""),
		"cache_control":           ignore(`"cache_control":{"type":"ephemeral"}`),
	})
	under(out, "tools[custom]", list(`"tools":[`, `]`), `"type":"custom","custom":{"name":"c"}`, map[string]fieldRule{
		"custom": {}, "custom.name": change(`"custom":{"name":"other"}`, ""),
		"custom.description": change(`"custom":{"name":"c","description":"d"}`, ""),
		"custom.format": {kind: rig.Warned,
			with: `"custom":{"name":"c","format":{"type":"grammar","grammar":{"syntax":"regex","definition":"a+"}}}`,
			says: "tool-format-ignored: c"}, "custom.format(text)": standard(`"custom":{"name":"c","format":{"type":"text"}}`),
	})
	under(out, "functions[]", list(`"tools":null,"functions":[`, `]`), `"name":"get_weather"`, map[string]fieldRule{
		"name": change(`"name":"other"`, ""), "description": change(`"description":"d"`, ""),
		"parameters": change(`"parameters":`+citySchema, ""),
	})
	return out
}

// chatOwnElements are members of elements that clients of other servers send.
var chatOwnElements = []string{
	"messages[assistant].reasoning_content", "messages[assistant].reasoning", "messages[assistant].reasoning_details",
	"messages[assistant].reasoning_details[]", "messages[assistant].reasoning_details[].type",
	"messages[assistant].reasoning_details[].text", "messages[assistant].reasoning_details[].summary",
	"messages[assistant].reasoning_details[].signature", "messages[assistant].reasoning_details[].data",
	"messages[assistant].reasoning_details[].id", "messages[assistant].reasoning_details[].index",
	"messages[assistant].reasoning_details[].format", "messages[assistant].tool_calls[function].index",
	"messages[assistant].tool_calls[function].cache_control", "tools[function].function.input_examples",
	"tools[function].function.defer_loading", "tools[function].cache_control",
}

// responsesTools are the rules of tools at path.
func responsesTools(out map[string]fieldRule, path string, tools around) {
	function := map[string]fieldRule{
		"name": change(`"name":"another_name"`, ""), "description": change(`"description":"d"`, ""),
		"parameters": change(`"parameters":{"type":"object"}`, ""), "strict": change(`"strict":true`, ""),
		"defer_loading": change(`"defer_loading":true`, ""), "allowed_callers": warn(`"allowed_callers":["programmatic"]`),
		"async": warn(`"async":true`), "output_schema": warn(`"output_schema":{}`),
	}
	grammar := `"format":{"type":"grammar","syntax":"regex","definition":"a+"}`
	custom := func(name string) map[string]fieldRule {
		return map[string]fieldRule{
			"name": change(`"name":"another_name"`, ""), "description": change(`"description":"d"`, ""),
			"defer_loading":   change(`"defer_loading":true`, ""),
			"allowed_callers": warn(`"allowed_callers":["programmatic"]`), "async": warn(`"async":true`),
			"format":       {kind: rig.Warned, with: grammar, says: "tool-format-ignored: " + name},
			"format(text)": standard(`"format":{"type":"text"}`),
		}
	}
	const plain = `"type":"function","name":"get_weather","parameters":` + citySchema
	under(out, path+"[function]", tools, plain, function)
	under(out, path+"[custom]", tools, `"type":"custom","name":"c"`, custom("c"))
	under(out, path+"[namespace]", tools, `"type":"namespace","name":"ns","tools":[{"type":"function","name":"f"}]`,
		map[string]fieldRule{
			"name": change(`"name":"another_name"`, ""), "description": change(`"description":"What it is about."`, ""),
			"tools": change(`"tools":[{"type":"function","name":"g"},{"type":"function","name":"h"}]`, ""),
		})
	inner := tools.inside(`"type":"namespace","name":"ns","tools":[`, `]`)
	under(out, path+"[namespace].tools[function]", inner, plain, function)
	under(out, path+"[namespace].tools[custom]", inner, `"type":"custom","name":"c"`, custom("ns.c"))
	whole(out, rig.Warned, path, tools, "",
		variants(`apply_patch code_interpreter computer computer_use_preview file_search image_generation local_shell mcp programmatic_tool_calling shell tool_search
		web_search_preview|web_search_preview_2025_03_11 web_search|web_search_2025_08_26`))
}

// responsesElements are the rules of arrays in a request of Responses.
func responsesElements() map[string]fieldRule {
	out := map[string]fieldRule{}
	responsesTools(out, "tools", list(`"tools":[{"type":"function","name":"first"}`, `]`))
	input := list(`"input":[{"role":"user","content":"Go."}`, `]`)
	record := func(rules map[string]fieldRule) map[string]fieldRule {
		rules["id"], rules["status"] = ignore(`"id":"x_1"`), ignore(`"status":"completed"`)
		return rules
	}
	parts := func(path string, a around) {
		under(out, path+"[input_text]", a, `"type":"input_text","text":"So."`, map[string]fieldRule{
			"text":                    change(`"text":`+longText, ""),
			"prompt_cache_breakpoint": ignore(`"prompt_cache_breakpoint":{"mode":"explicit"}`),
		})
		whole(out, rig.Echoed, path, a, "content-omitted: image",
			map[string]string{"input_image": `"type":"input_image","image_url":"data:,","detail":"low"`})
		whole(out, rig.Echoed, path, a, "content-omitted: file",
			map[string]string{"input_file": `"type":"input_file","file_id":"f","filename":"n"`})
	}
	under(out, "input[message]", input, `"type":"message","role":"user","content":"So."`, record(map[string]fieldRule{
		"content": change(`"content":`+longText, ""), "role": change(`"role":"assistant"`, ""),
		"phase": warn(`"phase":"commentary"`),
	}))
	parts("input[message].content", input.inside(`"role":"user","content":[{"type":"input_text","text":"First."}`, `]`))
	under(out, "input[message].content[output_text]", input.inside(`"role":"assistant","content":[`, `]`),
		`"type":"output_text","text":"So."`, map[string]fieldRule{
			"text":        change(`"text":`+longText, ""),
			"annotations": ignore(`"annotations":[{"type":"file_path","file_id":"f","index":0}]`),
			"logprobs":    ignore(`"logprobs":[{"token":"a","logprob":0}]`),
		})
	under(out, "input[message].content[refusal]", input.inside(`"role":"assistant","content":[`, `]`),
		`"type":"refusal","refusal":"No."`, map[string]fieldRule{"refusal": change(`"refusal":"I will not."`, "")})
	for _, item := range []string{"function_call", "custom_tool_call"} {
		field, other := "arguments", `"{\"a\":1}"`
		if item == "custom_tool_call" {
			field, other = "input", `"y and z"`
		}
		under(out, "input["+item+"]", input, `"type":"`+item+`","call_id":"c","name":"f","`+field+`":"{}"`,
			record(map[string]fieldRule{
				field: change(`"`+field+`":`+other, ""), "name": change(`"name":"another_name"`, ""),
				"namespace": change(`"namespace":"some_space"`, ""), "call_id": shows(`"call_id":"some id"`, ""),
				"async": warn(`"async":true`), "caller": warn(`"caller":{"type":"program","caller_id":"x"}`),
			}))
		under(out, "input["+item+"_output]", input, `"type":"`+item+`_output","call_id":"c","output":"r"`,
			record(map[string]fieldRule{
				"output": change(`"output":`+longText, ""), "call_id": shows(`"call_id":"some id"`, ""),
				"name": shows(`"name":"some_name"`, ""), "namespace": shows(`"namespace":"some_space"`, `"name":"some_name"`),
				"caller": warn(`"caller":{"type":"program","caller_id":"x"}`),
			}))
		parts("input["+item+"_output].output",
			input.inside(`"type":"`+item+`_output","call_id":"c","output":[{"type":"input_text","text":"First."}`, `]`))
	}
	for _, path := range []string{"custom_tool_call].status", "custom_tool_call_output].status",
		"custom_tool_call_output].name", "custom_tool_call_output].namespace"} {
		delete(out, "input["+path)
	}
	thought := list(`"input":[{"role":"user","content":"Go."},`,
		`,{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"r"}]`)
	under(out, "input[reasoning]", thought, `"type":"reasoning","content":[{"type":"reasoning_text","text":"why"}]`,
		record(map[string]fieldRule{
			"content":           change(`"content":[]`, ""),
			"summary":           change(`"content":null,"summary":[{"type":"summary_text","text":"in short"}]`, ""),
			"encrypted_content": change(`"encrypted_content":"SEALED"`, ""),
		}))
	under(out, "input[reasoning].content[reasoning_text]", thought.inside(`"type":"reasoning","content":[`, `]`),
		`"type":"reasoning_text","text":"why"`, map[string]fieldRule{"text": change(`"text":`+longText, "")})
	under(out, "input[reasoning].summary[summary_text]", thought.inside(`"type":"reasoning","summary":[`, `]`),
		`"type":"summary_text","text":"why"`, map[string]fieldRule{"text": change(`"text":`+longText, "")})
	reference := change(input(`{"type":"item_reference","id":"KNOWN"}`), input())
	out["input[item_reference]"], out["input[item_reference].id"] = reference, reference
	under(out, "input[additional_tools]", input, `"type":"additional_tools","role":"developer","tools":[]`,
		map[string]fieldRule{
			"id": ignore(`"id":"x_1"`), "role": ignore(`"role":"system"`),
			"tools": change(`"tools":[{"type":"function","name":"f"}]`, ""),
		})
	responsesTools(out, "input[additional_tools].tools",
		input.inside(`"type":"additional_tools","tools":[{"type":"function","name":"first"}`, `]`))
	whole(out, rig.Warned, "input", input, "",
		variants(`apply_patch_call apply_patch_call_output code_interpreter_call compaction compaction_trigger computer_call computer_call_output configuration_update
		file_search_call image_generation_call local_shell_call local_shell_call_output mcp_approval_request mcp_approval_response mcp_call mcp_list_tools program program_output shell_call shell_call_output
		tool_search_call tool_search_output web_search_call`))
	return out
}

// messagesElements are the rules of arrays in a request of Messages.
func messagesElements() map[string]fieldRule {
	out := map[string]fieldRule{"messages[user]": {}, "messages[assistant]": {}, "messages[system]": {}, "system": {}}
	const text = `{"type":"text","text":"Go."}`
	for role, messages := range map[string]around{
		"user":      list(`"messages":[`, `]`),
		"assistant": list(`"messages":[{"role":"user","content":"Go."},`, `,{"role":"user","content":"On."}]`),
		"system":    list(`"messages":[{"role":"user","content":"Go."},`, `,{"role":"user","content":"On."}]`),
	} {
		rules := map[string]fieldRule{"content": change(`"content":`+longText, "")}
		if role == "system" {
			rules["clear_at"], rules["output_config"] = warn(`"clear_at":"x"`), warn(`"output_config":{"effort":"low"}`)
		}
		under(out, "messages["+role+"]", messages, `"role":"`+role+`","content":"So."`, rules)
	}
	user := list(`"messages":[{"role":"user","content":[`+text, `]}]`)
	assistant := list(`"messages":[{"role":"user","content":"Go."},{"role":"assistant","content":[`+text,
		`]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":"r"}]}]`)
	system := list(`"system":[`+text, `]`)
	between := list(`"messages":[{"role":"user","content":"Go."},{"role":"system","content":[`+text,
		`]},{"role":"user","content":"On."}]`)
	cache := ignore(`"cache_control":{"type":"ephemeral"}`)
	words := func(path string, a around) {
		under(out, path+"[text]", a, `"type":"text","text":"So."`, map[string]fieldRule{
			"text": change(`"text":`+longText, ""), "cache_control": cache,
			"citations": warn(`"citations":[{"type":"char_location","cited_text":"x","document_index":0}]`),
		})
	}
	image := func(path string, a around) {
		whole(out, rig.Echoed, path, a, "content-omitted: image",
			map[string]string{"image": `"type":"image","source":{"type":"url","url":"http://x"},"cache_control":{"type":"ephemeral"}`})
	}
	// What a user shows, and a tool.
	shown := func(path string, a around) {
		words(path, a)
		image(path, a)
		other := func(kind string) fieldRule {
			return fieldRule{kind: rig.Echoed, with: `"source":{"type":"` + kind + `"}`,
				base: `"source":{"type":"text","data":"d"}`,
				says: "content-omitted: document"}
		}
		under(out, path+"[document]", a, `"type":"document","source":{"type":"text","data":"d"}`, map[string]fieldRule{
			"title": change(`"title":"A title"`, ""), "context": change(`"context":"Where it is from"`, ""),
			"citations": warn(`"citations":{"enabled":true}`), "cache_control": cache,
			"source": {}, "source(text)": {}, "source(content)": {}, "source(base64)": other("base64"),
			"source(url)": other("url"), "source(file)": other("file"),
			"source(text).data":       change(`"source":{"type":"text","data":`+longText+`}`, ""),
			"source(text).media_type": ignore(`"source":{"type":"text","data":"d","media_type":"text/plain"}`),
			"source(content).content": change(`"source":{"type":"content","content":`+longText+`}`, ""),
		})
		words(path+"[document].source(content).content",
			a.inside(`"type":"document","source":{"type":"content","content":[`+text, `]}`))
		image(path+"[document].source(content).content",
			a.inside(`"type":"document","source":{"type":"content","content":[`+text, `]}`))
		under(out, path+"[search_result]", a, `"type":"search_result","source":"http://x","title":"T","content":[`+text+`]`,
			map[string]fieldRule{
				"title": change(`"title":"Another title"`, ""), "source": change(`"source":"http://another.example/place"`, ""),
				"citations": warn(`"citations":{"enabled":true}`), "cache_control": cache,
				"content": change(`"content":[`+text+`,`+text+`]`, ""),
			})
		words(path+"[search_result].content",
			a.inside(`"type":"search_result","source":"http://x","title":"T","content":[`+text, `]`))
	}
	words("system", system)
	words("messages[system].content", between)
	words("messages[assistant].content", assistant)
	shown("messages[user].content", user)
	result := list(`"messages":[{"role":"user","content":"Go."},{"role":"assistant","content":[{"type":"tool_use","id":"c","name":"f","input":{}}]},{"role":"user","content":[`, `]}]`)
	under(out, "messages[user].content[tool_result]", result, `"type":"tool_result","tool_use_id":"c","content":"r"`,
		map[string]fieldRule{
			"content": change(`"content":`+longText, ""), "is_error": change(`"is_error":true`, ""),
			"tool_use_id": shows(`"tool_use_id":"some id"`, ""), "toolset_name": warn(`"toolset_name":"x"`),
			"cache_control": cache,
		})
	results := result.inside(`"type":"tool_result","tool_use_id":"c","content":[`+text, `]`)
	shown("messages[user].content[tool_result].content", results)
	under(out, "messages[user].content[tool_result].content[tool_reference]", results,
		`"type":"tool_reference","tool_name":"other"`, map[string]fieldRule{
			"tool_name": change(`"tool_name":"get_weather"`, ""), "cache_control": cache,
		})
	whole(out, rig.Warned, "messages[user].content[tool_result].content", results, "", variants("browser_state"))
	under(out, "messages[assistant].content[tool_use]", assistant,
		`"type":"tool_use","id":"c","name":"f","input":{}`, map[string]fieldRule{
			"id": shows(`"id":"some id"`, ""), "name": change(`"name":"another_name"`, ""),
			"input": change(`"input":{"a":1}`, ""), "caller": warn(`"caller":{"type":"direct"}`),
			"toolset_name": warn(`"toolset_name":"x"`), "cache_control": cache,
		})
	under(out, "messages[assistant].content[thinking]", assistant,
		`"type":"thinking","thinking":"why"`, map[string]fieldRule{
			"thinking":  change(`"thinking":`+longText, ""),
			"signature": change(`"thinking":"","signature":"SIGNED"`, `"thinking":""`),
		})
	const others = `bash_code_execution_tool_result code_execution_tool_result container_upload server_tool_use text_editor_code_execution_tool_result tool_search_tool_result web_fetch_tool_result
		web_search_tool_result advisor_tool_result compaction fallback mcp_tool_listing mcp_tool_result mcp_tool_use tool_addition tool_removal`
	const hosted = `bash_20250124 browser_toolset_20260801 code_execution_20250522 code_execution_20250825 code_execution_20260120 code_execution_20260521 computer_toolset_20260801 memory_20250818
		text_editor_20250124 text_editor_20250429 text_editor_20250728 tool_search_tool_bm25|tool_search_tool_bm25_20251119 tool_search_tool_regex|tool_search_tool_regex_20251119
		web_fetch_20250910 web_fetch_20260209 web_fetch_20260309 web_fetch_20260318 web_search_20250305 web_search_20260209 web_search_20260318
		advisor_20260301 bash_20241022 computer_20241022 computer_20250124 computer_20251124 mcp_toolset text_editor_20241022`
	whole(out, rig.Warned, "messages[system].content", between, "", variants("tool_addition tool_removal"))
	whole(out, rig.Warned, "messages[user].content", user, "", variants(others+" thinking tool_use"))
	whole(out, rig.Warned, "messages[assistant].content", assistant, "",
		variants(others+" document image search_result tool_result"))
	whole(out, rig.ByRule, "messages[user].content", user, "", variants("redacted_thinking"))
	whole(out, rig.ByRule, "messages[assistant].content", assistant, "", variants("redacted_thinking"))
	tools := list(`"tools":[{"name":"first"}`, `]`)
	under(out, "tools[custom]", tools, `"name":"get_weather","input_schema":`+citySchema, map[string]fieldRule{
		"name": change(`"name":"another_name"`, ""), "description": change(`"description":"d"`, ""),
		"input_schema": change(`"input_schema":{"type":"object"}`, ""), "strict": change(`"strict":true`, ""),
		"input_examples": change(`"input_examples":[{"city":"Oslo"}]`, ""),
		"defer_loading":  change(`"defer_loading":true`, ""), "eager_input_streaming": ignore(`"eager_input_streaming":true`),
		"allowed_callers": warn(`"allowed_callers":["direct"]`), "cache_control": cache,
	})
	whole(out, rig.Warned, "tools", tools, "", variants(hosted))
	return out
}
