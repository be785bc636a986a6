package anthropic

import (
	"slices"
	"strings"

	"github.com/tandem-inference/tandem/gateway/internal/chat"
	"github.com/tandem-inference/tandem/gateway/internal/chattemplate"
	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	"github.com/tandem-inference/tandem/gateway/internal/reqjson"
	"github.com/tandem-inference/tandem/gateway/internal/toolcall"
	"github.com/tandem-inference/tandem/gateway/internal/turn"
)

// billingHeader begins a system block that a client adds for its vendor's accounts. It differs from session to session
// and would keep them from sharing a prefix.
const billingHeader = "x-anthropic-billing-header:"

// reader turns messages with content blocks into the canonical ones.
type reader struct {
	// omit decides about blocks that the model cannot read, see turn.Service.Omit.
	omit func(kind, path string) (string, error)
	// open reads the signature of a thinking block whose text was not shown; nil = no such signature is known.
	open  func(signature string) (string, bool)
	tools *toolcall.Set
	// skipped are the types of blocks that were left out.
	skipped []string
	// referred are the bytes of the definitions that references brought.
	referred int

	msgs []chat.Message
}

// maxReferred bounds the definitions that references bring: a reference is short, and what it names may be long.
const maxReferred = 16 << 20

// system reads the system prompt: a string or blocks of text.
func (r *reader) system(o reqjson.Object) error {
	return r.instructions(o, "system")
}

// instructions adds a message of the system's.
func (r *reader) instructions(o reqjson.Object, name string) error {
	var texts []string
	err := blocks(o, name, func(b block) error {
		if billing(b) {
			return nil
		}
		return r.collect(b, &texts)
	})
	if text := strings.Join(texts, "\n"); err == nil && text != "" {
		r.msgs = append(r.msgs, chat.Message{Role: chat.RoleSystem, Content: text})
	}
	return err
}

// billing reports whether a block is there for the vendor's accounts.
func billing(b block) bool {
	if b.kind != "text" {
		return false
	}
	text, err := b.words()
	return err == nil && strings.HasPrefix(text, billingHeader)
}

// messages reads the conversation.
func (r *reader) messages(o reqjson.Object) error {
	list, _, _, err := o.Array("messages")
	if err != nil {
		return err
	}
	if len(list) == 0 {
		return reqerr.Missing("messages")
	}
	for i, raw := range list {
		m, err := o.Element("messages", i, raw)
		if err != nil {
			return err
		}
		if err := r.message(m); err != nil {
			return err
		}
		if len(r.msgs) > 0 && turn.CacheMarked(m) {
			r.msgs[len(r.msgs)-1].CacheMark = true
		}
		m.Close()
	}
	return nil
}

func (r *reader) message(o reqjson.Object) error {
	role, ok, err := o.String("role")
	if err != nil {
		return err
	}
	if !ok {
		return reqerr.Missing(o.Path("role"))
	}
	switch role {
	case chat.RoleUser:
		return r.user(o)
	case chat.RoleAssistant:
		return r.assistant(o)
	case chat.RoleSystem:
		// Newer clients put instructions between the turns.
		return r.instructions(o, "content")
	}
	return reqerr.InvalidValue(o.Path("role"), "must be user, assistant or system, got %q", role)
}

// blocks calls read for each content block under a name; a string is one block of text.
func blocks(o reqjson.Object, name string, read func(block) error) error {
	raw, _, ok := o.Raw(name)
	if !ok {
		return nil
	}
	if reqjson.Kind(raw) == 's' {
		text, _, err := o.String(name)
		if err != nil {
			return err
		}
		return read(block{kind: "text", text: &text})
	}
	list, _, _, err := o.Array(name)
	if err != nil {
		return reqerr.InvalidValue(o.Path(name), "must be a string or an array of blocks")
	}
	for i, raw := range list {
		b := block{}
		if b.Object, err = o.Element(name, i, raw); err != nil {
			return err
		}
		if b.kind, ok, err = b.String("type"); err != nil {
			return err
		}
		if !ok {
			return reqerr.Missing(b.Path("type"))
		}
		if err := read(b); err != nil {
			return err
		}
		b.Close()
	}
	return nil
}

// block is one content block.
type block struct {
	reqjson.Object
	kind string
	text *string // of content that is a plain string
}

// words reads the text of a text block.
func (b block) words() (string, error) {
	if b.text != nil {
		return *b.text, nil
	}
	text, ok, err := b.String("text")
	if err == nil && !ok {
		err = reqerr.Missing(b.Path("text"))
	}
	return text, err
}

// user reads a user's message. Results of tools become messages of their own in front of the user's text.
func (r *reader) user(o reqjson.Object) error {
	var texts []string
	results := 0
	err := blocks(o, "content", func(b block) error {
		if b.kind == "tool_result" {
			results++
			return r.result(b)
		}
		return r.collect(b, &texts)
	})
	if err != nil {
		return err
	}
	if len(texts) > 0 || results == 0 {
		r.msgs = append(r.msgs, chat.Message{Role: chat.RoleUser, Content: strings.Join(texts, "\n")})
	}
	return nil
}

// piece reads a block that is text or stands for some; ok is false for one that is left out.
func (r *reader) piece(b block) (text string, ok bool, err error) {
	switch b.kind {
	case "text":
		text, err = b.words()
		return text, true, err
	case "image", "audio", "video":
		b.ReadAll()
		text, err = r.omit(b.kind, b.Path("type"))
		return text, true, err
	case "document":
		text, err = r.document(b)
		return text, true, err
	case "search_result":
		text, err = r.searchResult(b)
		return text, true, err
	case "tool_reference":
		text, err = r.toolReference(b)
		return text, true, err
	}
	r.skip(b)
	return "", false, nil
}

// collect adds the text of a block to texts, if it has one.
func (r *reader) collect(b block, texts *[]string) error {
	text, ok, err := r.piece(b)
	if err == nil && ok {
		*texts = append(*texts, text)
	}
	return err
}

// skip notes the type of a block that was left out. What redacted_thinking holds was never readable here.
func (r *reader) skip(b block) {
	b.ReadAll()
	if b.kind != "redacted_thinking" && !slices.Contains(r.skipped, b.kind) {
		r.skipped = append(r.skipped, b.kind)
	}
}

// thinking is the text of a block, from its signature when the text was not shown. A text that is there needs
// no signature.
func (r *reader) thinking(b block) (string, error) {
	text, _, err := b.String("thinking")
	if err != nil {
		return "", err
	}
	signature, _, err := b.String("signature")
	if err != nil || text != "" || r.open == nil {
		return text, err
	}
	text, _ = r.open(signature)
	return text, nil
}

// document reads a document whose source is text; another is content that the model cannot read.
func (r *reader) document(b block) (string, error) {
	heading, err := labels(b, "title", "context")
	if err != nil {
		return "", err
	}
	src, _, err := b.Object.Object("source")
	if err != nil {
		return "", err
	}
	kind, _, err := src.String("type")
	if err != nil {
		return "", err
	}
	var text string
	switch kind {
	case "text":
		src.Ignore("media_type") // any text is read as it is
		text, _, err = src.String("data")
	case "content":
		text, err = r.text(src, "content")
	default:
		src.ReadAll()
		text, err = r.omit("document", b.Path("source"))
	}
	return heading + text, err
}

// searchResult reads what a search found, with its title and where it was found.
func (r *reader) searchResult(b block) (string, error) {
	heading, err := labels(b, "title", "source")
	if err != nil {
		return "", err
	}
	text, err := r.text(b.Object, "content")
	return heading + text, err
}

// labels returns a line such as "Title: …" for each named member that has text, and a blank line after them.
func labels(b block, names ...string) (string, error) {
	var out strings.Builder
	for _, name := range names {
		text, _, err := b.String(name)
		if err != nil {
			return "", err
		}
		if text != "" {
			out.WriteString(strings.ToUpper(name[:1]) + name[1:] + ": " + text + "\n")
		}
	}
	if out.Len() > 0 {
		out.WriteByte('\n')
	}
	return out.String(), nil
}

// toolReference shows the model a tool that the request deferred until now: its definition stands where it was found,
// so that what came before stays as it was.
func (r *reader) toolReference(b block) (string, error) {
	name, ok, err := b.String("tool_name")
	if err != nil {
		return "", err
	}
	if !ok {
		return "", reqerr.Missing(b.Path("tool_name"))
	}
	tool := r.tools.Get(name)
	if tool == nil {
		return "The tool " + name + " is not available.", nil
	}
	def, err := chattemplate.ToJSON(tool.Definition())
	if err != nil {
		return "", reqerr.InvalidValue(b.Path("tool_name"), "names a tool that cannot be shown: %v", err)
	}
	if r.referred += len(def); r.referred > maxReferred {
		return "", reqerr.InvalidValue(b.Path("tool_name"),
			"brings the tools that are referred to above %d bytes", maxReferred)
	}
	return "This tool can be called from now on: " + def, nil
}

// result reads the result of a call.
func (r *reader) result(b block) error {
	id, ok, err := b.String("tool_use_id")
	if err != nil {
		return err
	}
	if !ok {
		return reqerr.Missing(b.Path("tool_use_id"))
	}
	text, err := r.text(b.Object, "content")
	if err != nil {
		return err
	}
	failed, _, err := b.Bool("is_error")
	if err != nil {
		return err
	}
	if failed {
		text = failure(text)
	}
	r.msgs = append(r.msgs, chat.Message{Role: chat.RoleTool, ToolCallID: id, Content: text})
	return nil
}

// failure says that a tool failed, which templates have no place for, unless its text begins by saying so.
func failure(text string) string {
	switch {
	case text == "":
		return "The tool failed."
	case strings.Contains(strings.ToLower(text[:min(len(text), 64)]), "error"):
		return text
	}
	return "Error: " + text
}

// text reads a string or blocks of text, which are joined by newlines.
func (r *reader) text(o reqjson.Object, name string) (string, error) {
	var texts []string
	err := blocks(o, name, func(b block) error { return r.collect(b, &texts) })
	return strings.Join(texts, "\n"), err
}

// assistant reads an assistant's message. Texts are joined as they are: they were one text before calls were taken out.
func (r *reader) assistant(o reqjson.Object) error {
	m := chat.Message{Role: chat.RoleAssistant}
	var content, reasoning strings.Builder
	err := blocks(o, "content", func(b block) error {
		switch b.kind {
		case "text":
			text, err := b.words()
			if err != nil {
				return err
			}
			content.WriteString(text)
		case "thinking":
			text, err := r.thinking(b)
			if err != nil {
				return err
			}
			reasoning.WriteString(text)
		case "tool_use":
			call, err := toolUse(b)
			if err != nil {
				return err
			}
			m.ToolCalls = append(m.ToolCalls, call)
		default:
			// redacted_thinking, server_tool_use and the like say nothing to this model.
			r.skip(b)
		}
		return nil
	})
	if err != nil {
		return err
	}
	m.Content, m.Reasoning, m.HasReasoning = content.String(), reasoning.String(), reasoning.Len() > 0
	r.msgs = append(r.msgs, m)
	return nil
}

func toolUse(b block) (c chat.ToolCall, err error) {
	if c.ID, _, err = b.String("id"); err != nil {
		return c, err
	}
	name, _, err := b.String("name")
	if err != nil {
		return c, err
	}
	if name == "" {
		return c, reqerr.Missing(b.Path("name"))
	}
	c.Name, c.Arguments = name, chattemplate.NewDict()
	if raw, _, ok := b.Raw("input"); ok && reqjson.Kind(raw) == 's' {
		// Clients that could not read what they were sent keep the text.
		text, _, err := b.String("input")
		c.Arguments = chat.ParseArguments(text)
		return c, err
	}
	if _, ok, err := b.Object.Object("input"); !ok || err != nil {
		return c, err
	}
	raw, _, _ := b.Raw("input")
	if c.Arguments, err = chattemplate.FromJSON(raw); err != nil {
		return c, reqerr.InvalidValue(b.Path("input"), "cannot be read: %v", err)
	}
	return c, nil
}
