package turn_test

import (
	"maps"
	"slices"
	"strings"

	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
)

// dialect is a way in with the rules of its fields.
type dialect struct {
	endpoint string
	// lists in testdata/fields; own are the gateway's own fields and aliases (§5.1).
	lists, own []string
	// base is a request that works.
	base  string
	rules map[string]fieldRule
}

const (
	chatTools = `"tools":[{"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{"city":{"type":"string"}}}}},{"type":"function","function":{"name":"other"}}]`
	flatTools = `"tools":[{"type":"function","name":"get_weather","parameters":{"type":"object","properties":{"city":{"type":"string"}}}},{"type":"function","name":"other"}]`
	anthTools = `"tools":[{"name":"get_weather","input_schema":{"type":"object","properties":{"city":{"type":"string"}}}},{"name":"other","input_schema":{}}]`
	anySchema = `{"type":"object","properties":{"a":{"type":"integer"}}}`
)

// sharedRules are those of every dialect that generates (§5.1).
func sharedRules() map[string]fieldRule {
	return map[string]fieldRule{
		"model":       change(`"model":"another"`, ""),
		"temperature": change(`"temperature":0.5`, ""), "top_p": change(`"top_p":0.5`, ""), "top_k": change(`"top_k":5`, ""),
		"min_p": change(`"min_p":0.2`, ""), "repetition_penalty": change(`"repetition_penalty":1.2`, ""),
		"rep_pen": change(`"rep_pen":1.2`, ""), "repeat_penalty": change(`"repeat_penalty":1.2`, ""),
		"rep_window": change(`"rep_window":9`, ""), "frequency_penalty": change(`"frequency_penalty":1`, ""),
		"presence_penalty": change(`"presence_penalty":1`, ""), "logit_bias": change(`"logit_bias":{"5":1}`, ""),
		"seed": change(`"seed":2`, ""), "max_tokens": change(`"max_tokens":3`, ""),
		"max_completion_tokens": change(`"max_completion_tokens":3`, ""),
		"max_output_tokens":     change(`"max_output_tokens":3`, ""),
		"stop":                  change(`"stop":"one"`, ""), "stop_sequences": change(`"stop_sequences":["one"]`, ""),
		"stream":             change(`"stream":true`, ""),
		"grammar":            change(`"grammar":"root ::= [a-z]+"`, `"tools":null`),
		"extra_body":         change(`"extra_body":{"temperature":0.5}`, ""),
		"speculation":        change(`"speculation":{"mode":"tree"}`, ""),
		"speculation.mode":   change(`"speculation":{"mode":"off"}`, `"speculation":{"mode":"tree"}`),
		"speculation.budget": change(`"speculation":{"budget":9}`, `"speculation":{}`),
		"speculation.block":  change(`"speculation":{"block":9}`, `"speculation":{}`),
		"session_id":         change(`"session_id":"s"`, ""), // whose prompts share a worker's steps
		"prompt_cache_key":   change(`"prompt_cache_key":"s"`, ""),
		"cache_prompt":       {kind: rig.Queued, with: `"cache_prompt":false`},
		"metadata":           ignore(`"metadata":{"a":"b"}`), "user": ignore(`"user":"u"`),
		"service_tier": ignore(`"service_tier":"default"`), "store": ignore(`"store":false`),
		"guided_json": refuse(`"guided_json":{}`, ""), "guided_regex": refuse(`"guided_regex":"a"`, ""),
		"guided_choice": refuse(`"guided_choice":["a"]`, ""), "guided_grammar": refuse(`"guided_grammar":"a"`, ""),
		"structured_outputs": refuse(`"structured_outputs":{}`, ""), "json_schema": refuse(`"json_schema":{}`, ""),
		"regex": refuse(`"regex":"a"`, ""), "ebnf": refuse(`"ebnf":"a"`, ""),
	}
}

// chatRules are those of every dialect that renders a conversation; conversation is a long one in the dialect's form.
func chatRules(conversation string) map[string]fieldRule {
	long := conversation + `,"pflash":{"mode":"always","min_chunks":2}`
	out := sharedRules()
	maps.Copy(out, map[string]fieldRule{
		"parallel_tool_calls":    change(`"parallel_tool_calls":false`, ""),
		"reasoning_effort":       change(`"reasoning_effort":"low"`, ""),
		"enable_thinking":        change(`"enable_thinking":true`, ""),
		"thinking_budget":        change(`"thinking_budget":5`, `"enable_thinking":true`),
		"chat_template_kwargs":   change(`"chat_template_kwargs":{"enable_thinking":true}`, ""),
		"thinking":               change(`"thinking":{"type":"enabled"}`, ""),
		"thinking.type":          change(`"thinking":{"type":"adaptive"}`, `"thinking":{}`),
		"thinking.budget_tokens": change(`"thinking":{"type":"enabled","budget_tokens":5}`, `"thinking":{"type":"enabled"}`),
		"thinking.reply_budget":  change(`"thinking":{"type":"enabled","budget_tokens":5000,"reply_budget":3000},"max_tokens":6000`, `"thinking":{"type":"enabled","budget_tokens":5000},"max_tokens":6000`),
		"output_config":          change(`"output_config":{"effort":"low"}`, ""),
		"output_config.effort":   change(`"output_config":{"effort":"low"}`, `"output_config":{}`),
		"pflash":                 change(`"pflash":{"mode":"always"}`, conversation),
		"pflash.mode":            change(`"pflash":{"mode":"always"}`, conversation+`,"pflash":{"mode":"off"}`),
		"pflash.threshold": change(`"pflash":{"mode":"auto","threshold":1000}`,
			conversation+`,"tools":[],"pflash":{"mode":"auto"}`),
		"pflash.keep_ratio": change(`"pflash":{"mode":"always","min_chunks":2,"keep_ratio":0.3}`, long),
		"pflash.min_chunks": change(`"pflash":{"mode":"always","min_chunks":9}`, long),
		"pflash.code_floor": refuse(`"pflash":{"code_floor":0.3}`, ""),
		"pflash.protect":    refuse(`"pflash":{"protect":["cache_control"]}`, ""),
		"pflash.rescore":    refuse(`"pflash":{"rescore":true}`, ""),
		"tools":             change(`"tools":[]`, ""),
	})
	return out
}

// own lists the gateway's own fields among rules.
func own(rules map[string]fieldRule, more ...string) []string {
	out := append([]string{}, more...)
	for path := range rules {
		switch top, _, _ := strings.Cut(path, "."); top {
		case "top_k", "min_p", "repetition_penalty", "rep_pen", "repeat_penalty", "rep_window", "max_tokens",
			"max_completion_tokens", "max_output_tokens", "stop", "stop_sequences", "grammar",
			"extra_body", "speculation", "session_id", "cache_prompt", "prompt_cache_key", "enable_thinking", "thinking_budget",
			"chat_template_kwargs", "pflash", "reasoning_effort", "guided_json", "guided_regex", "guided_choice",
			"guided_grammar", "structured_outputs", "json_schema", "regex", "ebnf", "frequency_penalty",
			"presence_penalty", "logit_bias", "seed", "parallel_tool_calls", "user", "metadata", "service_tier", "store",
			"output_config", "thinking", "temperature", "top_p", "stream":
			out = append(out, path)
		}
	}
	return out
}

func with(rules map[string]fieldRule, more map[string]fieldRule) map[string]fieldRule {
	maps.Copy(rules, more)
	return rules
}

func without(rules map[string]fieldRule, paths ...string) map[string]fieldRule {
	for _, p := range paths {
		delete(rules, p)
	}
	return rules
}

// inPrompt are the fields of chat that a prompt shows, notInPrompt the members of them that it does not.
var (
	inPrompt = []string{"messages", "tools", "functions", "enable_thinking", "thinking", "reasoning", "reasoning_effort",
		"chat_template_kwargs", "output_config"}

	notInPrompt = []string{"thinking.budget_tokens", "thinking.reply_budget"}
)

// dialectFields are all dialects.
func dialectFields() []dialect {
	conversation := func(name string) string {
		return `"` + name + `":` + rig.ChatOf("user", rig.Haystack(150, 60), "assistant", "I read it.", "user",
			"What is the code of raven?")
	}
	chat := with(chatRules(conversation("messages")), map[string]fieldRule{
		"messages": {}, "n": change(`"n":2`, ""),
		"audio": warn(`"audio":{"format":"wav","voice":"a"}`), "modalities": refuse(`"modalities":["audio"]`, ""),
		"moderation":    warn(`"moderation":{"model":"m"}`),
		"function_call": change(`"function_call":"none"`, `"tools":null,"functions":[{"name":"get_weather"}]`),
		"function_call.name": change(`"function_call":{"name":"get_weather"}`,
			`"tools":null,"functions":[{"name":"get_weather"}]`),
		"functions": change(`"functions":[{"name":"get_weather"}]`, `"tools":null`),
		"logprobs":  change(`"logprobs":true`, ""), "top_logprobs": change(`"top_logprobs":2`, `"logprobs":true`),
		"prediction":             ignore(`"prediction":{"type":"content","content":"x"}`),
		"prompt_cache_options":   ignore(`"prompt_cache_options":{"mode":"explicit"}`),
		"prompt_cache_retention": ignore(`"prompt_cache_retention":"24h"`),
		"safety_identifier":      ignore(`"safety_identifier":"x"`),
		"reasoning":              change(`"reasoning":{"effort":"low"}`, ""),
		"reasoning.effort":       change(`"reasoning":{"effort":"low"}`, `"reasoning":{}`),
		"reasoning.enabled":      change(`"reasoning":{"enabled":true}`, `"reasoning":{}`),
		"reasoning_format":       change(`"reasoning_format":"none"`, `"enable_thinking":true`),
		"response_format":        change(`"response_format":{"type":"json_object"}`, ""),
		"response_format.type":   change(`"response_format":{"type":"json_object"}`, `"response_format":{}`),
		"response_format.json_schema": change(`"response_format":{"type":"json_schema","json_schema":{"schema":`+
			anySchema+`}}`, ""),
		"response_format.json_schema.schema": change(`"response_format":{"type":"json_schema","json_schema":{"schema":{"type":"string"}}}`, `"response_format":{"type":"json_schema","json_schema":{"schema":`+anySchema+`}}`),
		"response_format.json_schema.name": {kind: rig.Queued,
			with: `"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":` + anySchema + `}}`,
			base: `"response_format":{"type":"json_schema","json_schema":{"schema":` + anySchema + `}}`},
		"response_format.json_schema.description": {kind: rig.Warned,
			with: `"response_format":{"type":"json_schema","json_schema":{"description":"d","schema":` + anySchema + `}}`,
			base: `"response_format":{"type":"json_schema","json_schema":{"schema":` + anySchema + `}}`},
		"response_format.json_schema.strict": change(`"response_format":{"type":"json_schema","json_schema":{"strict":true,"schema":`+anySchema+`}}`, `"response_format":{"type":"json_schema","json_schema":{"schema":`+anySchema+`}}`),
		"stream_options": change(`"stream_options":{"include_usage":false},"stream":true`,
			`"stream":true`),
		"stream_options.include_usage": change(`"stream_options":{"include_usage":false}`,
			`"stream":true,"stream_options":{"include_usage":true}`),
		"stream_options.include_obfuscation": {kind: rig.ByRule, with: `"stream_options":{"include_obfuscation":true}`,
			base: `"stream":true,"stream_options":{}`},
		"tool_choice":          change(`"tool_choice":"none"`, ""),
		"tool_choice.type":     change(`"tool_choice":{"type":"none"}`, ""),
		"tool_choice.function": change(`"tool_choice":{"type":"function","function":{"name":"other"}}`, ""),
		"tool_choice.function.name": change(`"tool_choice":{"type":"function","function":{"name":"other"}}`,
			`"tool_choice":{"type":"function","function":{"name":"get_weather"}}`),
		"tool_choice.custom": change(`"tool_choice":{"type":"custom","custom":{"name":"c"}}`,
			`"tools":[{"type":"custom","custom":{"name":"c"}}]`),
		"tool_choice.custom.name": change(`"tool_choice":{"type":"custom","custom":{"name":"c"}}`,
			`"tools":[{"type":"custom","custom":{"name":"c"}},{"type":"custom","custom":{"name":"d"}}],"tool_choice":{"type":"custom","custom":{"name":"d"}}`),
		"tool_choice.allowed_tools":       change(`"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"function":{"name":"other"}}]}}`, ""),
		"tool_choice.allowed_tools.mode":  change(`"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"required","tools":[{"function":{"name":"other"}}]}}`, `"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"function":{"name":"other"}}]}}`),
		"tool_choice.allowed_tools.tools": change(`"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"required","tools":[{"function":{"name":"other"}}]}}`, `"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"required","tools":[{"function":{"name":"get_weather"}}]}}`),
		"verbosity":                       warn(`"verbosity":"low"`), "web_search_options": warn(`"web_search_options":{}`),
	})
	maps.Copy(chat, chatElements())
	completions := with(sharedRules(), map[string]fieldRule{
		"prompt": {}, "n": change(`"n":2`, ""), "best_of": refuse(`"best_of":3`, ""), "echo": change(`"echo":true`, ""),
		"logprobs": change(`"logprobs":2`, ""), "suffix": change(`"suffix":"x"`, ""),
		"stream_options": chat["stream_options"], "stream_options.include_usage": chat["stream_options.include_usage"],
		"stream_options.include_obfuscation": chat["stream_options.include_obfuscation"],
		"tools":                              warn(`"tools":[]`),
	})
	responses := with(without(chatRules(conversation("input")), "output_config", "output_config.effort"),
		map[string]fieldRule{
			"input": {}, "n": refuse(`"n":2`, ""),
			"access_programs":    warn(`"access_programs":{"cyber":"x"}`),
			"background":         refuse(`"background":true,"store":false`, ""),
			"context_management": warn(`"context_management":[{"type":"compaction"}]`),
			"conversation":       refuse(`"conversation":"c"`, ""), "image": warn(`"image":{}`),
			"include":        change(`"include":["message.output_text.logprobs"]`, ""),
			"instructions":   change(`"instructions":"Be brief."`, ""),
			"max_tool_calls": change(`"max_tool_calls":3`, ""), "metadata": change(`"metadata":{"a":"b"}`, ""),
			"moderation": warn(`"moderation":{}`), "user": change(`"user":"u"`, ""), "store": change(`"store":false`, ""),
			"previous_response_id": refuse(`"previous_response_id":"resp_x"`, ""), "prompt": refuse(`"prompt":{"id":"p"}`, ""),
			"prompt_cache_key":           change(`"prompt_cache_key":"k"`, ""),
			"prompt_cache_options":       ignore(`"prompt_cache_options":{"mode":"explicit"}`),
			"prompt_cache_retention":     ignore(`"prompt_cache_retention":"24h"`),
			"safety_identifier":          ignore(`"safety_identifier":"x"`),
			"reasoning":                  change(`"reasoning":{"effort":"low"}`, ""),
			"reasoning.effort":           change(`"reasoning":{"effort":"low"}`, `"reasoning":{}`),
			"reasoning.enabled":          change(`"reasoning":{"enabled":true}`, `"reasoning":{}`),
			"reasoning.summary":          change(`"reasoning":{"summary":"auto"}`, `"reasoning":{}`),
			"reasoning.generate_summary": change(`"reasoning":{"generate_summary":"auto"}`, `"reasoning":{}`),
			"reasoning.context":          {kind: rig.Warned, with: `"reasoning":{"context":"x"}`, base: `"reasoning":{}`},
			"reasoning.mode":             {kind: rig.Warned, with: `"reasoning":{"mode":"x"}`, base: `"reasoning":{}`},
			"stream_options":             ignore(`"stream_options":{"include_obfuscation":true}`),
			"text":                       change(`"text":{"format":{"type":"json_object"}}`, ""),
			"text.format":                change(`"text":{"format":{"type":"json_object"}}`, `"text":{}`),
			"text.format.type": change(`"text":{"format":{"type":"json_object"}}`,
				`"text":{"format":{"type":"text"}}`),
			"text.format.schema": change(`"text":{"format":{"type":"json_schema","schema":{"type":"string"}}}`,
				`"text":{"format":{"type":"json_schema","schema":`+anySchema+`}}`),
			"text.format.name": change(`"text":{"format":{"type":"json_schema","name":"n","schema":`+anySchema+`}}`,
				`"text":{"format":{"type":"json_schema","schema":`+anySchema+`}}`),
			"text.format.strict": change(`"text":{"format":{"type":"json_schema","strict":true,"schema":`+anySchema+`}}`,
				`"text":{"format":{"type":"json_schema","schema":`+anySchema+`}}`),
			"text.format.description": {kind: rig.Echoed,
				with: `"text":{"format":{"type":"json_schema","description":"d","schema":` + anySchema + `}}`,
				base: `"text":{"format":{"type":"json_schema","schema":` + anySchema + `}}`},
			"text.verbosity":   {kind: rig.Warned, with: `"text":{"verbosity":"low"}`, base: `"text":{}`},
			"tool_choice":      change(`"tool_choice":"none"`, ""),
			"tool_choice.type": change(`"tool_choice":{"type":"none"}`, ""),
			"tool_choice.name": change(`"tool_choice":{"type":"function","name":"other"}`,
				`"tool_choice":{"type":"function","name":"get_weather"}`),
			"tool_choice.mode": change(`"tool_choice":{"type":"allowed_tools","mode":"required","tools":[{"name":"other"}]}`,
				`"tool_choice":{"type":"allowed_tools","mode":"auto","tools":[{"name":"other"}]}`),
			"tool_choice.tools": change(`"tool_choice":{"type":"allowed_tools","mode":"auto","tools":[{"name":"other"}]}`,
				`"tool_choice":{"type":"allowed_tools","mode":"auto","tools":[{"name":"get_weather"}]}`),
			"tool_choice.server_label": refuse(`"tool_choice":{"type":"mcp","server_label":"s"}`, "tool_choice.type"),
			"top_logprobs":             change(`"top_logprobs":2`, ""), "truncation": change(`"truncation":"auto"`, ""),
		})
	maps.Copy(responses, responsesElements())
	messagesRules := func() map[string]fieldRule {
		return with(without(chatRules(conversation("messages")), "parallel_tool_calls", "reasoning"), map[string]fieldRule{
			"parallel_tool_calls": change(`"parallel_tool_calls":false`, ""),
			"messages":            {}, "n": refuse(`"n":2`, ""), "system": change(`"system":"Be brief."`, ""),
			"cache_control": ignore(`"cache_control":{"type":"ephemeral"}`), "container": warn(`"container":{"id":"x"}`),
			"diagnostics": ignore(`"diagnostics":{"previous_message_id":"x"}`), "inference_geo": ignore(`"inference_geo":"eu"`),
			"speed": ignore(`"speed":"fast"`), "user_profile_id": ignore(`"user_profile_id":"x"`),
			"workspace_id": ignore(`"workspace_id":"x"`),
			"output_config.format": change(`"output_config":{"format":{"type":"json_schema","schema":`+anySchema+`}}`,
				""),
			"output_config.format.type": refuse(`"output_config":{"format":{"type":"x"}}`, ""),
			"output_config.format.schema": change(`"output_config":{"format":{"type":"json_schema","schema":{"type":"string"}}}`,
				`"output_config":{"format":{"type":"json_schema","schema":`+anySchema+`}}`),
			"thinking.display": change(`"thinking":{"type":"enabled","display":"omitted"}`,
				`"thinking":{"type":"enabled"}`),
			"tool_choice":      change(`"tool_choice":{"type":"none"}`, ""),
			"tool_choice.type": change(`"tool_choice":{"type":"any"}`, `"tool_choice":{"type":"auto"}`),
			"tool_choice.name": change(`"tool_choice":{"type":"tool","name":"other"}`,
				`"tool_choice":{"type":"tool","name":"get_weather"}`),
			"tool_choice.disable_parallel_tool_use": change(`"tool_choice":{"type":"auto","disable_parallel_tool_use":true}`,
				`"tool_choice":{"type":"auto"}`),
			"betas":          warn(`"betas":["x"]`),
			"billing_policy": warn(`"billing_policy":{"type":"x"}`), "compaction": warn(`"compaction":{"type":"x"}`),
			"context_management":    warn(`"context_management":{"edits":[]}`),
			"fallback_credit_token": warn(`"fallback_credit_token":{"token":"x"}`), "fallbacks": warn(`"fallbacks":[]`),
			"mcp_servers": warn(`"mcp_servers":[{"name":"x"}]`),
			"output_config.task_budget": {kind: rig.Warned, with: `"output_config":{"task_budget":{"total":5}}`,
				base: `"output_config":{}`},
			"output_format":      change(`"output_format":{"type":"json_schema","schema":`+anySchema+`}`, ""),
			"output_format.type": refuse(`"output_format":{"type":"x"}`, ""),
			"output_format.schema": change(`"output_format":{"type":"json_schema","schema":{"type":"string"}}`,
				`"output_format":{"type":"json_schema","schema":`+anySchema+`}`),
			"thinking.block_binding": {kind: rig.Warned, with: `"thinking":{"type":"enabled","block_binding":{}}`,
				base: `"thinking":{"type":"enabled"}`},
			"thread": refuse(`"thread":{"type":"x"}`, ""),
		})
	}
	messages := with(messagesRules(), messagesElements())
	// Counting has no answer but the number: what does not change the prompt changes nothing.
	count := map[string]fieldRule{}
	for path, rule := range messagesRules() {
		switch top, _, _ := strings.Cut(path, "."); {
		case path == "system" || path == "tools" || path == "thinking" || path == "messages" || path == "enable_thinking" ||
			path == "chat_template_kwargs" || path == "reasoning_effort" || path == "output_config" ||
			path == "output_config.effort" || path == "thinking.type":
			count[path] = rule
		case path == "thinking.display",
			rule.kind == rig.Changes && (top == "output_config" || top == "output_format" || top == "tool_choice" ||
				top == "thinking" || top == "model"):
			rule.kind = rig.Queued
			count[path] = rule
		case slices.Contains([]string{"betas", "billing_policy", "compaction", "context_management", "mcp_servers",
			"output_format"}, top), path == "output_config.task_budget":
			count[path] = rule
		case top == "speed" || top == "cache_control" || top == "user_profile_id" || top == "workspace_id" ||
			top == "thinking" || strings.HasPrefix(path, "output_config.format"):
			count[path] = rule
		}
	}
	maps.Copy(count, messagesElements())
	// Templates and tokens show the prompt: what does not change it is checked, and changes nothing.
	prompt := map[string]fieldRule{}
	for path, rule := range chat {
		top, _, _ := strings.Cut(shape(path), ".")
		if rule.kind == rig.Changes && !slices.Contains(inPrompt, strings.TrimSuffix(top, "[]")) ||
			rule.kind == rig.Changes && slices.Contains(notInPrompt, path) {
			rule.kind = rig.Queued
		}
		prompt[path] = rule
	}
	text := map[string]fieldRule{
		"content": {}, "model": {kind: rig.Queued, with: `"model":"another"`}, "with_pieces": change(`"with_pieces":true`,
			""),
		"add_special":   {kind: rig.Queued, with: `"add_special":true`},
		"messages":      change(`"messages":[{"role":"user","content":"Go."}],"content":null`, ""),
		"parse_special": warn(`"parse_special":false`),
	}
	tokens := map[string]fieldRule{"tokens": {}, "model": {kind: rig.Queued, with: `"model":"another"`},
		"add_special": warn(`"add_special":true`)}
	chatOwn := own(chat, append(chatOwnElements, "reasoning", "reasoning.effort", "reasoning.enabled",
		"reasoning_format")...)
	base := `"seed":1,"messages":[{"role":"user","content":"Go."}],`
	return []dialect{
		{"/v1/chat/completions", []string{"chat"}, chatOwn, base + chatTools, chat},
		{"/v1/completions", []string{"completions"}, own(completions, "tools"), `"seed":1,"prompt":"Go."`, completions},
		{"/v1/responses", []string{"responses"}, own(responses, "n", "reasoning.enabled"),
			`"seed":1,"input":"Go.",` + flatTools, responses},
		{"/v1/messages", []string{"messages", "messages_beta"}, own(messages, "n"), base + anthTools, messages},
		{"/v1/messages/count_tokens", []string{"count_tokens", "count_tokens_beta"}, own(count), base + anthTools, count},
		{"/apply-template", []string{"chat"}, chatOwn, base + chatTools, prompt},
		{"/tokenize", []string{"chat"}, chatOwn, base + chatTools, prompt},
		{"/tokenize", nil, slices.Sorted(maps.Keys(text)), `"content":"Go."`, text},
		{"/detokenize", nil, slices.Sorted(maps.Keys(tokens)), `"tokens":[5,6]`, tokens},
	}
}
