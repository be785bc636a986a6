package rig

// Wire is an endpoint that generates, with a body that asks for a stream or not.
type Wire struct{ Path, Body string }

// Wires are the endpoints that generate, each with a body that asks for a stream or not.
var Wires = []Wire{
	{"/v1/chat/completions", `{"messages":[{"role":"user","content":"Hi"}],"stream":%v}`},
	{"/v1/completions", `{"prompt":"Hi","stream":%v}`},
	{"/v1/responses", `{"input":"Hi","stream":%v}`},
	{"/v1/messages", `{"messages":[{"role":"user","content":"Hi"}],"max_tokens":100,"stream":%v}`},
}

// WeatherCall is a call of get_weather as the model writes it.
const WeatherCall = "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>"

// WeatherTool is the member that declares get_weather to chat completions.
const WeatherTool = `"tools":[{"type":"function","function":{"name":"get_weather","description":"w","parameters":{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}}}}}]`

// The same conversation in each dialect: three rounds of a tool loop with reasoning, after an earlier question.
const (
	LoopChat = `{"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Hello."},{"role":"assistant","content":"Hello!"},
		{"role":"user","content":"Compare the files."},
		{"role":"assistant","content":"I read a.","reasoning_content":"First a.","tool_calls":[{"id":"call_1","type":"function","function":{"name":"read","arguments":"{\"path\": \"a.go\", \"lines\": 12}"}}]},
		{"role":"tool","tool_call_id":"call_1","content":"package a"},
		{"role":"assistant","content":null,"reasoning_content":"Now both others.","tool_calls":[{"id":"call_2","type":"function","function":{"name":"read","arguments":"{\"path\":\"b.go\"}"}},{"id":"call_3","type":"function","function":{"name":"list","arguments":"{}"}}]},
		{"role":"tool","tool_call_id":"call_2","content":"package b"},{"role":"tool","tool_call_id":"call_3","content":"a.go\nb.go"},
		{"role":"assistant","content":null,"reasoning_content":"Again.","tool_calls":[{"id":"call_4","type":"function","function":{"name":"read","arguments":"{\"path\":\"c.go\"}"}}]},
		{"role":"tool","tool_call_id":"call_4","content":""}],
		"tools":[{"type":"function","function":{"name":"read","description":"Read a file","parameters":{"type":"object","properties":{"path":{"type":"string"},"lines":{"type":"integer"}},"required":["path"]}}},
			{"type":"function","function":{"name":"list","parameters":{"type":"object","properties":{}}}}]`
	LoopResponses = `{"instructions":"Be brief.","input":[{"role":"user","content":"Hello."},
		{"type":"message","role":"assistant","id":"msg_0","status":"completed","content":[{"type":"output_text","text":"Hello!","annotations":[]}]},
		{"type":"message","role":"user","content":[{"type":"input_text","text":"Compare "},{"type":"input_text","text":"the files."}]},
		{"type":"reasoning","id":"rs_1","summary":[],"content":[{"type":"reasoning_text","text":"First a."}]},
		{"type":"message","role":"assistant","content":[{"type":"output_text","text":"I read a."}]},
		{"type":"function_call","call_id":"call_1","name":"read","arguments":"{\"path\":\"a.go\",\"lines\":12}"},
		{"type":"function_call_output","call_id":"call_1","output":"package a"},
		{"type":"reasoning","id":"rs_2","summary":[{"type":"summary_text","text":"Now both others."}]},
		{"type":"function_call","call_id":"call_2","name":"read","arguments":"{\"path\":\"b.go\"}"},
		{"type":"web_search_call","id":"ws_1","status":"completed"},
		{"type":"function_call","call_id":"call_3","name":"list","arguments":""},
		{"type":"function_call_output","call_id":"call_2","output":[{"type":"input_text","text":"package b"}]},
		{"type":"function_call_output","call_id":"call_3","output":"a.go\nb.go"},
		{"type":"reasoning","id":"rs_3","summary":[],"content":[{"type":"reasoning_text","text":"Again."}]},
		{"type":"function_call","call_id":"call_4","name":"read","arguments":"{\"path\":\"c.go\"}"},
		{"type":"function_call_output","call_id":"call_4","output":""}],
		"tools":[{"type":"function","name":"read","description":"Read a file","parameters":{"type":"object","properties":{"path":{"type":"string"},"lines":{"type":"integer"}},"required":["path"]}},
			{"type":"web_search"},{"type":"function","name":"list","parameters":{"type":"object","properties":{}},"strict":false}]`
	LoopMessages = `{"system":[{"type":"text","text":"x-anthropic-billing-header: cc_version=2.1; cch=0;"},{"type":"text","text":"Be brief.","cache_control":{"type":"ephemeral"}}],
		"messages":[{"role":"user","content":"Hello."},{"role":"assistant","content":[{"type":"text","text":"Hello!"}]},
		{"role":"user","content":[{"type":"text","text":"Compare the files."}]},
		{"role":"assistant","content":[{"type":"thinking","thinking":"First a.","signature":"wrong"},{"type":"text","text":"I read a."},{"type":"tool_use","id":"call_1","name":"read","input":{"path":"a.go","lines":12}}]},
		{"role":"user","content":[{"type":"tool_result","tool_use_id":"call_1","content":"package a","is_error":false}]},
		{"role":"assistant","content":[{"type":"thinking","thinking":"Now both others.","signature":""},{"type":"redacted_thinking","data":"x"},{"type":"tool_use","id":"call_2","name":"read","input":{"path":"b.go"}},{"type":"tool_use","id":"call_3","name":"list","input":{}}]},
		{"role":"user","content":[{"type":"tool_result","tool_use_id":"call_2","content":[{"type":"text","text":"package b"}]},{"type":"tool_result","tool_use_id":"call_3","content":"a.go\nb.go"}]},
		{"role":"assistant","content":[{"type":"thinking","thinking":"Again.","signature":""},{"type":"tool_use","id":"call_4","name":"read","input":{"path":"c.go"}}]},
		{"role":"user","content":[{"type":"tool_result","tool_use_id":"call_4"}]}],
		"tools":[{"name":"read","description":"Read a file","input_schema":{"type":"object","properties":{"path":{"type":"string"},"lines":{"type":"integer"}},"required":["path"]},"cache_control":{"type":"ephemeral"}},
			{"type":"web_search_20250305","name":"web_search","max_uses":8},{"type":"custom","name":"list","input_schema":{"type":"object","properties":{}},"eager_input_streaming":true}]`
)
