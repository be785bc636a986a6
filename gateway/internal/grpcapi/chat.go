package grpcapi

import (
	"encoding/json"
	"fmt"

	"github.com/tandem-inference/tandem/gateway/internal/chat"
	"github.com/tandem-inference/tandem/gateway/internal/compress"
	"github.com/tandem-inference/tandem/gateway/internal/toolcall"
	"github.com/tandem-inference/tandem/gateway/internal/turn"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// chat reads a chat into a request.
func (s *Service) chat(in *tandemv1.Chat, c *tandemv1.Compression, req *turn.Request) error {
	if err := readMessages(in, req); err != nil {
		return err
	}
	if err := readTools(in, req); err != nil {
		return err
	}
	if in.GetThinkingBudget() < 0 {
		return rpcerr.InvalidArgument("chat.thinking_budget", "must not be negative, got %d", in.GetThinkingBudget())
	}
	req.Thinking = turn.Thinking{Effort: in.GetReasoningEffort(), Enable: in.EnableThinking,
		BudgetTokens: int(in.GetThinkingBudget())}
	switch c.GetMode() {
	case "", compress.ModeOff, compress.ModeAuto, compress.ModeAlways:
	default:
		return rpcerr.InvalidArgument("compression.mode", "must be off, auto or always, got %q", c.GetMode())
	}
	if n := c.GetThreshold(); n < 0 {
		return rpcerr.InvalidArgument("compression.threshold", "must not be negative, got %d", n)
	}
	if r := c.GetKeepRatio(); !(r >= 0 && r <= 1) {
		return rpcerr.InvalidArgument("compression.keep_ratio", "must be in (0, 1], got %g", r)
	}
	req.Pflash = compress.Settings{Mode: c.GetMode(), Threshold: int(c.GetThreshold()), KeepRatio: c.GetKeepRatio()}
	return nil
}

// readMessages converts the turns.
func readMessages(in *tandemv1.Chat, req *turn.Request) error {
	if len(in.GetMessages()) == 0 {
		return rpcerr.InvalidArgument("chat.messages", "is required and must not be empty")
	}
	for i, m := range in.GetMessages() {
		path := fmt.Sprintf("chat.messages[%d].", i)
		switch m.GetRole() {
		case chat.RoleSystem, chat.RoleUser, chat.RoleAssistant, chat.RoleTool:
		default:
			return rpcerr.InvalidArgument(path+"role", "must be system, user, assistant or tool, got %q", m.GetRole())
		}
		switch assistant := m.GetRole() == chat.RoleAssistant; {
		case m.GetReasoningContent() != "" && !assistant:
			return rpcerr.InvalidArgument(path+"reasoning_content", "needs role assistant, got %q", m.GetRole())
		case len(m.GetToolCalls()) > 0 && !assistant:
			return rpcerr.InvalidArgument(path+"tool_calls", "needs role assistant, got %q", m.GetRole())
		case m.GetToolCallId() != "" && m.GetRole() != chat.RoleTool:
			return rpcerr.InvalidArgument(path+"tool_call_id", "needs role tool, got %q", m.GetRole())
		}
		msg := chat.Message{Role: m.GetRole(), Content: m.GetContent(), Reasoning: m.GetReasoningContent(),
			HasReasoning: m.GetReasoningContent() != "", ToolCallID: m.GetToolCallId()}
		for j, call := range m.GetToolCalls() {
			if call.GetName() == "" {
				return rpcerr.InvalidArgument(fmt.Sprintf("%stool_calls[%d].name", path, j), "is required")
			}
			msg.ToolCalls = append(msg.ToolCalls,
				chat.ToolCall{ID: call.GetId(), Name: call.GetName(), Arguments: chat.ParseArguments(call.GetArgumentsJson())})
		}
		req.Messages = append(req.Messages, msg)
	}
	return nil
}

// readTools converts tools and the choice among them.
func readTools(in *tandemv1.Chat, req *turn.Request) error {
	for i, t := range in.GetTools() {
		path := fmt.Sprintf("chat.tools[%d]", i)
		tool := toolcall.Tool{Name: t.GetName(), Description: t.GetDescription(), Strict: t.GetStrict(),
			Path: path + ".parameters_json"}
		if p := t.GetParametersJson(); len(p) > turn.MaxSchemaBytes {
			return rpcerr.InvalidArgument(tool.Path, "has %d bytes, at most %d are allowed", len(p), turn.MaxSchemaBytes)
		} else if p != "" {
			tool.Schema = json.RawMessage(p)
		}
		if req.Tools == nil {
			req.Tools = &toolcall.Set{}
		}
		if err := req.Tools.Add(tool, nil); err != nil {
			return rpcerr.InvalidArgument(path, "cannot be used: %v", err)
		}
	}
	req.Parallel = !in.GetSingleToolCall()
	c := in.GetToolChoice()
	if c.GetName() != "" && c.GetMode() != tandemv1.ToolMode_TOOL_MODE_NAMED {
		return rpcerr.InvalidArgument("chat.tool_choice.name", "needs mode TOOL_MODE_NAMED")
	}
	switch c.GetMode() {
	case tandemv1.ToolMode_TOOL_MODE_UNSPECIFIED, tandemv1.ToolMode_TOOL_MODE_AUTO:
	case tandemv1.ToolMode_TOOL_MODE_NONE:
		req.Choice.Mode = turn.ToolNone
	case tandemv1.ToolMode_TOOL_MODE_REQUIRED:
		if req.Tools.Len() == 0 {
			return rpcerr.InvalidArgument("chat.tool_choice", "asks for a call, but the request has no tools")
		}
		req.Choice.Mode = turn.ToolRequired
	case tandemv1.ToolMode_TOOL_MODE_NAMED:
		if req.Tools.Get(c.GetName()) == nil {
			return rpcerr.InvalidArgument("chat.tool_choice.name", "names no tool of this request: %q", c.GetName())
		}
		req.Choice = turn.ToolChoice{Mode: turn.ToolNamed, Name: c.GetName()}
	default:
		return rpcerr.InvalidArgument("chat.tool_choice.mode", "%d is no mode", c.GetMode())
	}
	return nil
}

// format reads the limits of the visible text.
func format(f *tandemv1.Format) turn.Format {
	switch k := f.GetKind().(type) {
	case *tandemv1.Format_JsonObject:
		if k.JsonObject {
			return turn.Format{Kind: turn.FormatJSONObject, Path: "format.json_object"}
		}
	case *tandemv1.Format_JsonSchema:
		return turn.Format{Kind: turn.FormatJSONSchema, Path: "format.json_schema", Schema: json.RawMessage(k.JsonSchema)}
	case *tandemv1.Format_Grammar:
		return turn.Format{Kind: turn.FormatGrammar, Path: "format.grammar", Grammar: k.Grammar}
	}
	return turn.Format{}
}
