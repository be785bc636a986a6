package responses

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/tandem-inference/tandem/gateway/internal/chat"
	"github.com/tandem-inference/tandem/gateway/internal/chattemplate"
	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	"github.com/tandem-inference/tandem/gateway/internal/reqjson"
	"github.com/tandem-inference/tandem/gateway/internal/seal"
	"github.com/tandem-inference/tandem/gateway/internal/toolcall"
	"github.com/tandem-inference/tandem/gateway/internal/turn"
)

// Types of input and output items.
const (
	itemMessage      = "message"
	itemReasoning    = "reasoning"
	itemCall         = "function_call"
	itemCallOutput   = "function_call_output"
	itemCustom       = "custom_tool_call"
	itemCustomOutput = "custom_tool_call_output"
	itemReference    = "item_reference"
	itemTools        = "additional_tools"
)

// reader turns input items into messages.
type reader struct {
	// omit decides about parts that the model cannot read, see turn.Service.Omit.
	omit   func(kind, path string) (string, error)
	sealed *seal.Sealer
	// find resolves an item_reference; false for an unknown id.
	find func(id string) (json.RawMessage, bool)
	// skipped are the types of items that were left out.
	skipped []string

	msgs []chat.Message
	// turn is the assistant's turn that further items join; nil = none is open.
	turn *assistantTurn
	// tools are those of the additional_tools items, toolsSkipped the types among them that a server would have to run.
	tools        []*toolcall.Set
	toolsSkipped []string
	// referred are the bytes of the items that references brought.
	referred int
}

// assistantTurn is a turn whose texts come in parts, of which there may be many.
type assistantTurn struct {
	content, reasoning strings.Builder
	hasReasoning       bool
	calls              []chat.ToolCall
}

// maxReferred bounds the items that references bring: a reference is short, and what it names may be long.
const maxReferred = 16 << 20

// parseItems reads the input of a request: a string is one user message.
func parseItems(o reqjson.Object) ([]json.RawMessage, error) {
	raw, _, ok := o.Raw("input")
	if !ok {
		return nil, nil
	}
	switch reqjson.Kind(raw) {
	case 's':
		text, _, err := o.String("input")
		if err != nil || text == "" {
			return nil, err
		}
		item, err := json.Marshal(map[string]string{"type": itemMessage, "role": chat.RoleUser, "content": text})
		return []json.RawMessage{item}, err
	case 'a':
		items, _, _, err := o.Array("input")
		return items, err
	}
	return nil, reqerr.InvalidValue("input", "must be a string or an array of items")
}

// add reads an item that the store keeps, which lies at path. What a request said in vain was reported to that request.
func (r *reader) add(raw json.RawMessage, path string) error {
	if reqjson.Kind(raw) == 's' {
		return r.bare(raw, path)
	}
	o, err := reqjson.Wrap(raw, path)
	if err != nil {
		return err
	}
	return r.item(o)
}

// element reads item i of the request's input.
func (r *reader) element(o reqjson.Object, i int, raw json.RawMessage) error {
	if reqjson.Kind(raw) == 's' {
		return r.bare(raw, reqjson.Index(o.Path("input"), i))
	}
	item, err := o.Element("input", i, raw)
	if err != nil {
		return err
	}
	if err := r.item(item); err != nil {
		return err
	}
	item.Close()
	return nil
}

// bare reads a string: some clients send them among the items.
func (r *reader) bare(raw json.RawMessage, path string) error {
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return reqerr.InvalidValue(path, "must be an object")
	}
	r.push(chat.Message{Role: chat.RoleUser, Content: text})
	return nil
}

// item reads one item.
func (r *reader) item(o reqjson.Object) error {
	kind, given, err := o.String("type")
	if err != nil {
		return err
	}
	if !given {
		if kind = itemMessage; !o.Has("role") && o.Has("id") {
			kind = itemReference
		}
	}
	// Answers carry both, clients send them back, and they mean nothing to the model.
	o.Ignore("id", "status")
	switch kind {
	case itemMessage:
		return r.message(o)
	case itemReasoning:
		return r.reasoning(o)
	case itemCall, itemCustom:
		return r.call(o, kind)
	case itemCallOutput, itemCustomOutput:
		return r.output(o)
	case itemReference:
		return r.reference(o)
	case itemTools:
		return r.more(o)
	}
	o.ReadAll()
	r.skip(kind)
	return nil
}

// more reads an additional_tools item. Its tools are the request's, whoever gave them.
func (r *reader) more(o reqjson.Object) error {
	o.Ignore("role")
	set, skipped, err := turn.ParseTools(o)
	if err != nil {
		return err
	}
	r.tools, r.toolsSkipped = append(r.tools, set), append(r.toolsSkipped, skipped...)
	return nil
}

// skip notes the type of an item that was left out.
func (r *reader) skip(kind string) {
	if !slices.Contains(r.skipped, kind) {
		r.skipped = append(r.skipped, kind)
	}
}

// push adds a message that is not the assistant's.
func (r *reader) push(m chat.Message) {
	r.close()
	r.msgs = append(r.msgs, m)
}

// assistant is the turn that the assistant's items join.
func (r *reader) assistant() *assistantTurn {
	if r.turn == nil {
		r.turn = &assistantTurn{}
	}
	return r.turn
}

func (r *reader) close() {
	if t := r.turn; t != nil {
		r.msgs = append(r.msgs, chat.Message{
			Role: chat.RoleAssistant, Content: t.content.String(), Reasoning: t.reasoning.String(),
			HasReasoning: t.hasReasoning, ToolCalls: t.calls,
		})
		r.turn = nil
	}
}

func (r *reader) message(o reqjson.Object) error {
	role, ok, err := o.String("role")
	if err != nil {
		return err
	}
	if !ok {
		return reqerr.Missing(o.Path("role"))
	}
	text, err := r.text(o, "content")
	if err != nil {
		return err
	}
	switch role {
	case chat.RoleAssistant:
		r.assistant().content.WriteString(text)
	case chat.RoleUser:
		r.push(chat.Message{Role: chat.RoleUser, Content: text})
	case chat.RoleSystem, "developer":
		r.push(chat.Message{Role: chat.RoleSystem, Content: text})
	default:
		return reqerr.InvalidValue(o.Path("role"), "must be user, assistant, system or developer, got %q", role)
	}
	return nil
}

// reasoning takes what this gateway sealed, else the text of content or summary. Without any the item is left out.
func (r *reader) reasoning(o reqjson.Object) error {
	sealed, _, err := o.String("encrypted_content")
	if err != nil {
		return err
	}
	text, ok := r.sealed.Open(sealed)
	for _, from := range []string{"content", "summary"} {
		if ok {
			o.Ignore(from) // the same text
			continue
		}
		if text, err = r.text(o, from); err != nil {
			return err
		}
		ok = text != ""
	}
	if !ok {
		return nil
	}
	t := r.assistant()
	if t.hasReasoning {
		t.reasoning.WriteString("\n\n")
	}
	t.reasoning.WriteString(text)
	t.hasReasoning = true
	return nil
}

func (r *reader) call(o reqjson.Object, kind string) error {
	c := chat.ToolCall{}
	var err error
	if c.ID, _, err = o.String("call_id"); err != nil {
		return err
	}
	if c.Name, err = toolName(o); err != nil {
		return err
	}
	if c.Name == "" {
		return reqerr.Missing(o.Path("name"))
	}
	field := "arguments"
	if kind == itemCustom {
		field = "input"
	}
	text, _, err := o.String(field)
	if err != nil {
		return err
	}
	if kind == itemCustom {
		args := chattemplate.NewDict()
		args.Set(toolcall.InputKey, text)
		c.Arguments = args
	} else {
		c.Arguments = chat.ParseArguments(text)
	}
	t := r.assistant()
	t.calls = append(t.calls, c)
	return nil
}

// toolName is the name of an item's tool as the model sees it, empty when the item has none.
func toolName(o reqjson.Object) (string, error) {
	name, _, err := o.String("name")
	if err != nil {
		return "", err
	}
	space, _, err := o.String("namespace")
	if err != nil || name == "" || space == "" {
		return name, err
	}
	return toolcall.Join(space, name), nil
}

func (r *reader) output(o reqjson.Object) error {
	id, _, err := o.String("call_id")
	if err != nil {
		return err
	}
	name, err := toolName(o)
	if err != nil {
		return err
	}
	text, err := r.text(o, "output")
	if err != nil {
		return err
	}
	r.push(chat.Message{Role: chat.RoleTool, Name: name, ToolCallID: id, Content: text})
	return nil
}

func (r *reader) reference(o reqjson.Object) error {
	id, _, err := o.String("id")
	if err != nil {
		return err
	}
	if id == "" {
		return reqerr.Missing(o.Path("id"))
	}
	item, ok := r.find(id)
	if !ok {
		r.skip(itemReference)
		return nil
	}
	if r.referred += len(item); r.referred > maxReferred {
		return reqerr.InvalidValue(o.Path("id"), "brings the items that are referred to above %d bytes", maxReferred)
	}
	return r.add(item, o.Path("id"))
}

// text reads a string or an array of parts, which are joined.
func (r *reader) text(o reqjson.Object, name string) (string, error) {
	raw, _, ok := o.Raw(name)
	if !ok {
		return "", nil
	}
	if reqjson.Kind(raw) == 's' {
		s, _, err := o.String(name)
		return s, err
	}
	parts, _, _, err := o.Array(name)
	if err != nil {
		return "", reqerr.InvalidValue(o.Path(name), "must be a string or an array of parts")
	}
	var b strings.Builder
	for i, p := range parts {
		part, err := o.Element(name, i, p)
		if err != nil {
			return "", err
		}
		text, err := r.part(part)
		if err != nil {
			return "", err
		}
		part.Close()
		b.WriteString(text)
	}
	return b.String(), nil
}

// part reads one part.
func (r *reader) part(o reqjson.Object) (string, error) {
	kind, _, err := o.String("type")
	if err != nil {
		return "", err
	}
	field := "text"
	switch kind {
	case "output_text":
		// What answers carry for their readers is not a part of the text.
		o.Ignore("annotations", "logprobs")
	case "", "text", "input_text", "reasoning_text", "summary_text":
	case "refusal":
		field = "refusal"
	case "input_image", "input_file", "input_audio", "input_video", "computer_screenshot":
		o.ReadAll()
		return r.omit(kind, o.Path("type"))
	default:
		return "", reqerr.InvalidValue(o.Path("type"), "%q is not a known part", kind)
	}
	text, ok, err := o.String(field)
	if err == nil && !ok {
		err = reqerr.Missing(o.Path(field))
	}
	return text, err
}

// messages are the conversation so far.
func (r *reader) messages() []chat.Message {
	r.close()
	return r.msgs
}
