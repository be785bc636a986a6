package openai

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/tandem-inference/tandem/gateway/internal/chat"
	"github.com/tandem-inference/tandem/gateway/internal/chattemplate"
	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	"github.com/tandem-inference/tandem/gateway/internal/reqjson"
	"github.com/tandem-inference/tandem/gateway/internal/toolcall"
	"github.com/tandem-inference/tandem/gateway/internal/turn"
)

// omitter decides about parts that the model cannot read, see turn.Service.Omit.
type omitter func(kind, path string) (string, error)

// parseMessages reads the messages of a chat request.
func parseMessages(o reqjson.Object, omit omitter) ([]chat.Message, error) {
	raw, _, ok, err := o.Array("messages")
	if err != nil {
		return nil, err
	}
	if !ok || len(raw) == 0 {
		return nil, reqerr.Missing("messages")
	}
	out := make([]chat.Message, 0, len(raw))
	for i, r := range raw {
		e, err := o.Element("messages", i, r)
		if err != nil {
			return nil, err
		}
		m, err := parseMessage(e, omit)
		if err != nil {
			return nil, err
		}
		e.Close()
		out = append(out, m)
	}
	return out, nil
}

func parseMessage(o reqjson.Object, omit omitter) (m chat.Message, err error) {
	role, ok, err := o.String("role")
	if err != nil {
		return m, err
	}
	switch {
	case !ok:
		return m, reqerr.Missing(o.Path("role"))
	case role == "developer":
		m.Role = chat.RoleSystem
	case role == "function":
		m.Role = chat.RoleTool
	case role == chat.RoleSystem, role == chat.RoleUser, role == chat.RoleAssistant, role == chat.RoleTool:
		m.Role = role
	default:
		return m, reqerr.InvalidValue(o.Path("role"),
			"must be system, developer, user, assistant, tool or function, got %q", role)
	}
	if m.Content, err = parseContent(o, omit); err != nil {
		return m, err
	}
	m.CacheMark = turn.CacheMarked(o)
	if m.Name, _, err = o.String("name"); err != nil {
		return m, err
	}
	if m.ToolCallID, _, err = o.String("tool_call_id"); err != nil {
		return m, err
	}
	if m.Role != chat.RoleAssistant {
		return m, nil
	}
	if err := parseSpoken(o, &m, omit); err != nil {
		return m, err
	}
	if m.Reasoning, m.HasReasoning, err = parseReasoning(o); err != nil {
		return m, err
	}
	m.ToolCalls, err = parseToolCalls(o)
	return m, err
}

// parseSpoken adds what an assistant said outside of the content: a refusal, and sound, which the model cannot hear.
func parseSpoken(o reqjson.Object, m *chat.Message, omit omitter) error {
	refusal, _, err := o.String("refusal")
	if err != nil {
		return err
	}
	texts := []string{m.Content, refusal}
	if audio, ok, err := o.Object("audio"); err != nil {
		return err
	} else if ok {
		audio.ReadAll()
		text, err := omit("audio", o.Path("audio"))
		if err != nil {
			return err
		}
		texts = append(texts, text)
	}
	m.Content = strings.Join(slices.DeleteFunc(texts, func(s string) bool { return s == "" }), "\n")
	return nil
}

// parseContent reads a string or an array of text parts, which are joined.
func parseContent(o reqjson.Object, omit omitter) (string, error) {
	raw, _, ok := o.Raw("content")
	if !ok {
		return "", nil
	}
	path := o.Path("content")
	switch reqjson.Kind(raw) {
	case 's':
		s, _, err := o.String("content")
		return s, err
	case 'a':
	default:
		return "", reqerr.InvalidValue(path, "must be a string or an array of parts")
	}
	parts, _, _, err := o.Array("content")
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for i, p := range parts {
		at := reqjson.Index(path, i)
		if reqjson.Kind(p) == 's' {
			var s string
			if err := json.Unmarshal(p, &s); err != nil {
				return "", reqerr.InvalidValue(at, "must be an object or a string")
			}
			b.WriteString(s)
			continue
		}
		part, err := o.Element("content", i, p)
		if err != nil {
			return "", err
		}
		text, err := parsePart(part, omit)
		if err != nil {
			return "", err
		}
		part.Close()
		b.WriteString(text)
	}
	return b.String(), nil
}

// parsePart reads one part.
func parsePart(o reqjson.Object, omit omitter) (string, error) {
	kind, _, err := o.String("type")
	if err != nil {
		return "", err
	}
	field := "text"
	switch kind {
	case "", "text", "input_text", "output_text":
	case "refusal":
		field = "refusal"
	case "image_url", "input_image", "image", "input_audio", "audio", "input_file", "file", "video_url", "video":
		o.ReadAll()
		return omit(kind, o.Path("type"))
	default:
		return "", reqerr.InvalidValue(o.Path("type"), "%q is not a known part", kind)
	}
	text, ok, err := o.String(field)
	if err == nil && !ok {
		err = reqerr.Missing(o.Path(field))
	}
	return text, err
}

// parseReasoning reads reasoning_content, reasoning, or the texts of reasoning_details. Answers hold the same text in
// all of them, so that those after the first that is there say nothing new.
func parseReasoning(o reqjson.Object) (string, bool, error) {
	if s, ok, err := o.String("reasoning_content"); ok || err != nil {
		o.Ignore("reasoning", "reasoning_details")
		return s, ok, err
	}
	if s, ok, err := o.String("reasoning"); ok || err != nil {
		o.Ignore("reasoning_details")
		return s, ok, err
	}
	details, _, ok, err := o.Array("reasoning_details")
	if err != nil || !ok {
		return "", false, err
	}
	var b strings.Builder
	for i, d := range details {
		part, err := o.Element("reasoning_details", i, d)
		if err != nil {
			return "", false, err
		}
		s, _, err := part.String("text", "summary")
		if err != nil {
			return "", false, err
		}
		part.Ignore("type", "id", "index", "format")
		part.Close()
		b.WriteString(s)
	}
	return b.String(), b.Len() > 0, nil
}

// parseToolCalls reads an assistant's calls; the old function_call is one of them.
func parseToolCalls(o reqjson.Object) ([]chat.ToolCall, error) {
	raw, _, _, err := o.Array("tool_calls")
	if err != nil {
		return nil, err
	}
	var out []chat.ToolCall
	for i, r := range raw {
		call, err := o.Element("tool_calls", i, r)
		if err != nil {
			return nil, err
		}
		c, err := parseToolCall(call)
		if err != nil {
			return nil, err
		}
		call.Close()
		out = append(out, c)
	}
	if len(out) > 0 {
		return out, nil
	}
	if fn, ok, err := o.Object("function_call"); err != nil {
		return nil, err
	} else if ok {
		c := chat.ToolCall{}
		if c.Name, c.Arguments, err = parseCall(fn); err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}

// parseToolCall reads one call. It is of the kind whose member is there. Clients that joined a stream's deltas send
// their index, too.
func parseToolCall(o reqjson.Object) (c chat.ToolCall, err error) {
	if _, _, err = o.String("type"); err != nil {
		return c, err
	}
	o.Ignore("index")
	if c.ID, _, err = o.String("id"); err != nil {
		return c, err
	}
	if custom, ok, err := o.Object("custom"); err != nil {
		return c, err
	} else if ok {
		c.Name, c.Arguments, err = parseCustom(custom)
		return c, err
	}
	fn, ok, err := o.Object("function")
	if err != nil {
		return c, err
	}
	if !ok {
		return c, reqerr.Missing(o.Path("function"))
	}
	c.Name, c.Arguments, err = parseCall(fn)
	return c, err
}

// parseCustom reads name and text of a custom tool's call.
func parseCustom(o reqjson.Object) (name string, args chattemplate.Value, err error) {
	name, ok, err := o.String("name")
	if err != nil {
		return "", nil, err
	}
	if !ok || name == "" {
		return "", nil, reqerr.Missing(o.Path("name"))
	}
	input, _, err := o.String("input")
	if err != nil {
		return "", nil, err
	}
	dict := chattemplate.NewDict()
	dict.Set(toolcall.InputKey, input)
	return name, dict, nil
}

// parseCall reads name and arguments of a call. Arguments that are a JSON object, or text that holds one, keep the
// order of their keys; other text stays text.
func parseCall(fn reqjson.Object) (name string, args chattemplate.Value, err error) {
	name, ok, err := fn.String("name")
	if err != nil {
		return "", nil, err
	}
	if !ok || name == "" {
		return "", nil, reqerr.Missing(fn.Path("name"))
	}
	raw, _, ok := fn.Raw("arguments")
	if !ok {
		return name, chattemplate.NewDict(), nil
	}
	switch reqjson.Kind(raw) {
	case 'o':
		v, err := chattemplate.FromJSON(raw)
		if err != nil {
			return "", nil, reqerr.InvalidValue(fn.Path("arguments"), "cannot be read: %v", err)
		}
		return name, v, nil
	case 's':
		text, _, err := fn.String("arguments")
		if err != nil {
			return "", nil, err
		}
		return name, chat.ParseArguments(text), nil
	}
	return "", nil, reqerr.InvalidValue(fn.Path("arguments"), "must be a string or an object")
}
