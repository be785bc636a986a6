package grpcapi_test

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// rpcRule is a fieldRule of the gRPC API, in the text form of the message, parts to be merged apart by ##.
type rpcRule struct {
	kind, with, base string
}

const (
	rpcChat = `chat{messages{role:"user" content:"Go."}} sampling{seed:1} max_tokens:60`
	rpcTool = `chat{messages{role:"user" content:"Go."} tools{name:"get_weather" parameters_json:"{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"}}}"} tools{name:"other"}} sampling{seed:1} max_tokens:60`
	rpcTurn = `chat{messages{role:"user" content:"Go."} messages{role:"assistant" content:"So." tool_calls{id:"c" name:"f" arguments_json:"{}"}} messages{role:"tool" content:"r"}} sampling{seed:1} max_tokens:60`
)

func rpcRules() map[string]rpcRule {
	long := `chat{messages{role:"user" content:` + string(rig.JSON(rig.Haystack(150, 60))) +
		`} messages{role:"assistant" content:"I read it."} messages{role:"user" content:"What is the code of raven?"}} sampling{seed:1} max_tokens:60 `
	plain := func(with string) rpcRule { return rpcRule{rig.Changes, rpcChat + "##" + with, rpcChat} }
	in := func(base, old, new string) rpcRule {
		if !strings.Contains(base, old) {
			panic(old)
		}
		return rpcRule{rig.Changes, strings.Replace(base, old, new, 1), base}
	}
	return map[string]rpcRule{
		"model": {rig.Queued, rpcChat + `##model:"tiny"`, rpcChat}, // one model is served; TestStrictModel
		"chat":  {}, "chat.messages": {}, "chat.messages.role": in(rpcChat, `role:"user"`, `role:"system"`),
		"chat.messages.content":                   in(rpcChat, `content:"Go."`, `content:"Stop."`),
		"chat.messages.reasoning_content":         in(rpcTurn, `content:"So."`, `content:"So." reasoning_content:"why"`),
		"chat.messages.tool_calls":                in(rpcTurn, `tool_calls{id:"c" name:"f" arguments_json:"{}"}`, ``),
		"chat.messages.tool_calls.id":             in(rpcTurn, `id:"c"`, `id:"d"`),
		"chat.messages.tool_calls.name":           in(rpcTurn, `name:"f"`, `name:"g"`),
		"chat.messages.tool_calls.arguments_json": in(rpcTurn, `arguments_json:"{}"`, `arguments_json:"{\"a\":1}"`),
		"chat.messages.tool_call_id":              in(rpcTurn, `content:"r"`, `content:"r" tool_call_id:"c"`),
		"chat.enable_thinking":                    in(rpcChat, `chat{`, `chat{enable_thinking:true `),
		"chat.tools":                              {rig.Changes, rpcTool, rpcChat},
		"chat.tools.name":                         in(rpcTool, `name:"other"`, `name:"another"`),
		"chat.tools.description":                  in(rpcTool, `name:"other"`, `name:"other" description:"d"`),
		"chat.tools.parameters_json":              in(rpcTool, `name:"other"`, `name:"other" parameters_json:"{}"`),
		"chat.tools.strict":                       in(rpcTool, `name:"get_weather"`, `name:"get_weather" strict:true`),
		"chat.tool_choice":                        in(rpcTool, `chat{`, `chat{tool_choice{mode:TOOL_MODE_NONE} `),
		"chat.tool_choice.mode":                   in(rpcTool, `chat{`, `chat{tool_choice{mode:TOOL_MODE_REQUIRED} `),
		"chat.tool_choice.name": {rig.Changes,
			strings.Replace(rpcTool, `chat{`, `chat{tool_choice{mode:TOOL_MODE_NAMED name:"other"} `, 1),
			strings.Replace(rpcTool, `chat{`, `chat{tool_choice{mode:TOOL_MODE_NAMED name:"get_weather"} `, 1)},
		"chat.single_tool_call": in(rpcTool, `chat{`, `chat{single_tool_call:true `),
		"chat.reasoning_effort": in(rpcChat, `chat{`, `chat{reasoning_effort:"low" `),
		"chat.thinking_budget": {rig.Changes,
			strings.Replace(rpcChat, `chat{`, `chat{enable_thinking:true thinking_budget:5 `, 1),
			strings.Replace(rpcChat, `chat{`, `chat{enable_thinking:true `, 1)},
		"prompt": {rig.Changes, `prompt:"Go." sampling{seed:1} max_tokens:60`, rpcChat},
		"tokens": {rig.Changes, `tokens{ids:[5,6]} sampling{seed:1} max_tokens:60`, rpcChat},
		"tokens.ids": {rig.Changes, `tokens{ids:[5,7]} sampling{seed:1} max_tokens:60`,
			`tokens{ids:[5,6]} sampling{seed:1} max_tokens:60`},
		"sampling": {}, "sampling.temperature": plain(`sampling{temperature:0.5}`),
		"sampling.top_p": plain(`sampling{top_p:0.5}`), "sampling.top_k": plain(`sampling{top_k:5}`),
		"sampling.min_p":              plain(`sampling{min_p:0.1}`),
		"sampling.repetition_penalty": plain(`sampling{repetition_penalty:1.1}`),
		"sampling.frequency_penalty":  plain(`sampling{frequency_penalty:1}`),
		"sampling.presence_penalty":   plain(`sampling{presence_penalty:1}`),
		"sampling.penalty_window":     plain(`sampling{penalty_window:9}`), "sampling.seed": plain(`sampling{seed:2}`),
		"sampling.logit_bias": plain(`sampling{logit_bias{key:5 value:1}}`), "max_tokens": plain(`max_tokens:3`),
		"stop": plain(`stop:"one"`), "speculation": plain(`speculation{mode:SPECULATION_MODE_OFF}`),
		"speculation.mode":   plain(`speculation{mode:SPECULATION_MODE_TREE}`),
		"speculation.budget": {rig.Changes, rpcChat + `##speculation{budget:9}`, rpcChat + `##speculation{}`},
		"speculation.block":  {rig.Changes, rpcChat + `##speculation{block:9}`, rpcChat + `##speculation{}`},
		"compression":        {rig.Changes, long + `compression{mode:"always"}`, long},
		"compression.mode":   {rig.Changes, long + `compression{mode:"always"}`, long + `compression{mode:"off"}`},
		"compression.threshold": {rig.Changes, long + `compression{mode:"auto" threshold:1000}`,
			long + `compression{mode:"auto"}`},
		"compression.keep_ratio": {rig.Changes, long + `compression{mode:"always" keep_ratio:0.3}`,
			long + `compression{mode:"always"}`},
		"top_logprobs": plain(`top_logprobs:2`), "format": plain(`format{json_object:true}`),
		"format.json_object": {rig.Changes, rpcChat + `##format{json_object:true}`, rpcChat + `##format{json_object:false}`},
		"format.json_schema": plain(`format{json_schema:"{\"type\":\"string\"}"}`),
		"format.grammar":     plain(`format{grammar:"root ::= [a-z]+"}`),
		"session_id":         {rig.Changes, rpcChat + `##session_id:"s"`, rpcChat},
	}
}

// rpcShown are the fields that only a template shows that writes ids.
var rpcShown = []string{"chat.messages.tool_calls.id", "chat.messages.tool_call_id"}

// messageFields are the dotted paths of all fields below a message.
func messageFields(d protoreflect.MessageDescriptor, prefix string) []string {
	var out []string
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		path := prefix + string(f.Name())
		out = append(out, path)
		if f.Message() != nil && !f.IsMap() {
			out = append(out, messageFields(f.Message(), path+".")...)
		}
	}
	return out
}

type rpcSeen struct {
	Text, Reasoning, Last, Worker, Scorer string
	Code                                  codes.Code
	Message                               string
}

func call(w *rig.Walk, api tandemv1.InferenceServiceClient, text string) rpcSeen {
	req := &tandemv1.GenerateRequest{}
	for part := range strings.SplitSeq(text, "##") {
		more := &tandemv1.GenerateRequest{}
		if err := prototext.Unmarshal([]byte(part), more); err != nil {
			w.T.Fatalf("%s: %v", text, err)
		}
		proto.Merge(req, more)
	}
	before, scored := len(w.Target.Requests()), len(w.Scorer.Scored())
	g, err := rig.RunRPC(w.T.Context(), api, req)
	out := rpcSeen{Text: g.Text, Reasoning: g.Reasoning, Code: status.Code(err), Message: status.Convert(err).Message()}
	if g.Last != nil {
		last := proto.Clone(g.Last).(*tandemv1.GenerateResponse)
		last.Timings = nil
		out.Last = rig.CompactProto(last)
	}
	for _, r := range w.Target.Requests()[before:] {
		r = proto.Clone(r).(*tandemv1.DecodeRequest)
		r.RequestId, r.Watch = "", 0
		out.Worker += rig.CompactProto(r)
	}
	for _, r := range w.Scorer.Scored()[scored:] {
		r = proto.Clone(r).(*tandemv1.CompressRequest)
		r.RequestId = ""
		out.Scorer += rig.CompactProto(r)
	}
	return out
}

// TestEveryFieldOfRPC walks the fields of GenerateRequest as its descriptor has them.
func TestEveryFieldOfRPC(t *testing.T) {
	w, shown := rig.StartWalk(t, nil), rig.StartLabels(t)
	api := w.RPC()
	rules := rpcRules()
	fields := messageFields((&tandemv1.GenerateRequest{}).ProtoReflect().Descriptor(), "")
	for _, path := range fields {
		rule, ok := rules[path]
		if !ok {
			t.Errorf("the field %s has no rule: what does it do?", path)
			continue
		}
		if rule.kind == "" {
			continue // part of every request
		}
		t.Run(path, func(t *testing.T) {
			w, api := w, api
			if slices.Contains(rpcShown, path) {
				w, api = shown, shown.RPC()
			}
			without, with := call(w, api, rule.base), call(w, api, rule.with)
			if without.Code != codes.OK || with.Code != codes.OK {
				t.Fatalf("without %v %s, with %v %s", without.Code, without.Message, with.Code, with.Message)
			}
			if d := cmp.Diff(without, with, cmpopts.EquateEmpty()); (d != "") != (rule.kind == rig.Changes) {
				t.Errorf("%s, and it changes: %s", rule.kind, d)
			}
		})
	}
	for path := range rules {
		if !slices.Contains(fields, path) {
			t.Errorf("the rule for %s is about no field", path)
		}
	}
	// What cannot be followed is refused by name.
	for text, field := range map[string]string{
		`prompt:"Go." compression{mode:"always"}`: "compression", rpcChat + `##speculation{mode:99}`: "speculation.mode",
		rpcChat + `##speculation{budget:-1}`:   "speculation.budget",
		rpcChat + `##speculation{block:99999}`: "speculation.block", rpcChat + `##sampling{top_p:5e-324}`: "sampling.top_p",
		rpcChat + `##sampling{repetition_penalty:1e-50}`:                                            "sampling.repetition_penalty",
		rpcChat + `##compression{mode:"some"}`:                                                      "compression.mode",
		rpcChat + `##compression{threshold:-1}`:                                                     "compression.threshold",
		rpcChat + `##compression{keep_ratio:nan}`:                                                   "compression.keep_ratio",
		strings.Replace(rpcTool, `chat{`, `chat{tool_choice{mode:TOOL_MODE_AUTO name:"other"} `, 1): "chat.tool_choice.name",
		strings.Replace(rpcTool, `chat{`, `chat{tool_choice{mode:99} `, 1):                          "chat.tool_choice.mode",
		strings.Replace(rpcTurn, `content:"Go."`, `content:"Go." reasoning_content:"why"`,
			1): "chat.messages[0].reasoning_content",
		strings.Replace(rpcTurn, `content:"Go."`, `content:"Go." tool_calls{name:"f"}`, 1): "chat.messages[0].tool_calls",
		strings.Replace(rpcTurn, `content:"So."`, `content:"So." tool_call_id:"c"`, 1):     "chat.messages[1].tool_call_id",
		strings.Replace(rpcTurn, `role:"tool"`, `role:"tools"`, 1):                         "chat.messages[2].role",
		strings.Replace(rpcTurn, `name:"f"`, ``,
			1): "chat.messages[1].tool_calls[0].name",
		strings.Replace(rpcChat, `max_tokens:60`, `max_tokens:-1`, 1): "max_tokens",
		rpcChat + `##top_logprobs:21`:                                 "top_logprobs",
		rpcChat + `##stop:""`:                                         "stop",
	} {
		if got := call(w, api, text); got.Code != codes.InvalidArgument ||
			!strings.Contains(got.Message, field) || got.Worker != "" {
			t.Errorf("%.80s: %v %s, want a fault of %s", text, got.Code, got.Message, field)
		}
	}
}

// TestEveryFieldOfTokenizing walks the fields of the other requests of the service.
func TestEveryFieldOfTokenizing(t *testing.T) {
	w, shown := rig.StartWalk(t, nil), rig.StartLabels(t)
	api, shownAPI := w.RPC(), shown.RPC()
	tokenize := func(api tandemv1.InferenceServiceClient, text string) (string, error) {
		in := &tandemv1.GenerateRequest{}
		if err := prototext.Unmarshal([]byte(text), in); err != nil {
			t.Fatal(err)
		}
		ids, err := api.Tokenize(t.Context(),
			&tandemv1.TokenizeRequest{Input: &tandemv1.TokenizeRequest_Chat{Chat: in.GetChat()}})
		return fmt.Sprint(ids.GetIds()), err
	}
	rules := rpcRules()
	// What does not change the prompt is checked, and changes nothing.
	quiet := []string{"chat.tool_choice", "chat.tool_choice.mode", "chat.tool_choice.name",
		"chat.single_tool_call", "chat.thinking_budget"}
	requests := []proto.Message{&tandemv1.TokenizeRequest{}, &tandemv1.DetokenizeRequest{}, &tandemv1.ListModelsRequest{},
		&tandemv1.GetClusterRequest{}}
	for _, req := range requests {
		for _, path := range messageFields(req.ProtoReflect().Descriptor(), "") {
			rule := rules[path]
			switch {
			case path == "model", path == "text", path == "ids": // below
			case !strings.HasPrefix(path, "chat") || rule.kind == "" && path != "chat" && path != "chat.messages":
				t.Errorf("%s: the field %s has no rule: what does it do?", req.ProtoReflect().Descriptor().Name(), path)
			case rule.kind != "":
				use := api
				if slices.Contains(rpcShown, path) {
					use = shownAPI
				}
				without, err := tokenize(use, rule.base)
				with, fault := tokenize(use, rule.with)
				if err != nil || fault != nil || (without == with) != slices.Contains(quiet, path) {
					t.Errorf("%s: %v %v, %s and %s", path, err, fault, without, with)
				}
			}
		}
	}
	ids, err := api.Tokenize(t.Context(),
		&tandemv1.TokenizeRequest{Model: "another", Input: &tandemv1.TokenizeRequest_Text{Text: "Go on."}})
	if err != nil || len(ids.GetIds()) < 2 {
		t.Fatalf("%v, %v", ids, err)
	}
	if text, err := api.Detokenize(t.Context(), &tandemv1.DetokenizeRequest{Ids: ids.GetIds()}); err != nil ||
		text.GetText() != "Go on." {
		t.Errorf("%v, %v", text, err)
	}
}

// TestFieldsOfNewerCallers: fields that this gateway's definition does not have are named in the metadata, by the
// number that they have in the message around them, once.
func TestFieldsOfNewerCallers(t *testing.T) {
	w := rig.StartWalk(t, nil)
	api := w.RPC()
	newer := func(m proto.Message, numbers ...int) {
		var b []byte
		for _, n := range numbers {
			b = protowire.AppendVarint(protowire.AppendTag(b, protowire.Number(n), protowire.VarintType), 1)
		}
		m.ProtoReflect().SetUnknown(b)
	}
	user := func() *tandemv1.Message { return &tandemv1.Message{Role: "user", Content: "Go."} }
	chat := &tandemv1.Chat{Messages: []*tandemv1.Message{user(), user()}, Tools: []*tandemv1.Tool{{Name: "f"}}}
	req := &tandemv1.GenerateRequest{Input: &tandemv1.GenerateRequest_Chat{Chat: chat},
		Sampling: &tandemv1.Sampling{}, MaxTokens: 5}
	warning := func(call func(...grpc.CallOption) error) string {
		var md metadata.MD
		if err := call(grpc.Header(&md)); err != nil {
			t.Fatal(err)
		}
		return strings.Join(md.Get("x-tandem-warning"), ";")
	}
	generate := func(opts ...grpc.CallOption) error {
		stream, err := api.Generate(t.Context(), req, opts...)
		for err == nil {
			_, err = stream.Recv()
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	}
	tokenize := func(opts ...grpc.CallOption) error {
		_, err := api.Tokenize(t.Context(), &tandemv1.TokenizeRequest{Input: &tandemv1.TokenizeRequest_Chat{Chat: chat}},
			opts...)
		return err
	}
	if got := warning(generate) + warning(tokenize); got != "" {
		t.Errorf("known fields: %q", got)
	}
	newer(req, 900, 900)
	newer(req.GetSampling(), 901)
	for _, m := range chat.GetMessages() {
		newer(m, 902, 903)
	}
	newer(chat.GetTools()[0], 904)
	if got := warning(generate); got != "fields-ignored: 900,chat.messages[].902,chat.messages[].903,chat.tools[].904,sampling.901" {
		t.Errorf("Generate: %q", got)
	}
	if got := warning(tokenize); got != "fields-ignored: chat.messages[].902,chat.messages[].903,chat.tools[].904" {
		t.Errorf("Tokenize: %q", got)
	}
	ids := &tandemv1.DetokenizeRequest{Ids: []int32{5}}
	newer(ids, 905)
	if got := warning(func(opts ...grpc.CallOption) error {
		_, err := api.Detokenize(t.Context(), ids, opts...)
		return err
	}); got != "fields-ignored: 905" {
		t.Errorf("Detokenize: %q", got)
	}
}
