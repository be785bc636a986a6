package responses

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"

	"github.com/tandem-inference/tandem/gateway/internal/chat"
	"github.com/tandem-inference/tandem/gateway/internal/jsontext"
	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	"github.com/tandem-inference/tandem/gateway/internal/turn"
)

// Bounds of a page of items.
const (
	pageDefault = 20
	pageMax     = 100
)

// settled is an input item in the form in which it is kept and listed: an object with an id, a type and a status, the
// content of a message in parts. find resolves references; an item that cannot be read, which add refuses or leaves
// out, stays as it is. newID makes the id of an item that has none.
func settled(raw json.RawMessage, find func(id string) (json.RawMessage, bool), newID func(prefix string) string,
) json.RawMessage {
	var text string
	item := map[string]json.RawMessage{}
	switch {
	case json.Unmarshal(raw, &text) == nil:
		item["role"], item["content"] = quoted(chat.RoleUser), raw
	case json.Unmarshal(raw, &item) != nil:
		return bytes.Clone(raw) // not the whole body
	}
	kind := member(item, "type")
	if kind == "" {
		kind = itemMessage
		if item["role"] == nil {
			kind = itemReference
		}
	}
	prefix := idPrefix[kind]
	switch kind {
	case itemReference:
		if known, ok := find(member(item, "id")); ok {
			return known
		}
		return bytes.Clone(raw) // not the whole body
	case itemMessage:
		part := "input_text"
		if member(item, "role") == chat.RoleAssistant {
			part = "output_text"
		}
		item["content"] = parts(item["content"], part)
		setDefault(item, "status", statusCompleted)
	case itemCall, itemCustom:
		setDefault(item, "status", statusCompleted)
	case itemCallOutput, itemCustomOutput:
		prefix = "fco_"
		setDefault(item, "status", statusCompleted)
	case itemReasoning:
	default:
		prefix = "item_"
	}
	item["type"] = quoted(kind)
	setDefault(item, "id", newID(prefix))
	out, err := jsontext.Marshal(item)
	if err != nil {
		panic(err) // it was part of a body that was parsed
	}
	return out
}

// parts is the content of a message as a list.
func parts(content json.RawMessage, kind string) json.RawMessage {
	var text string
	if content == nil || json.Unmarshal(content, &text) != nil {
		return content
	}
	if kind == "output_text" {
		return appendJSON(nil, []outputPart{{Type: kind, Text: text, Annotations: []any{}, Logprobs: emptyList}})
	}
	return appendJSON(nil, []textPart{{kind, text}})
}

func quoted(s string) json.RawMessage { return jsontext.AppendString(nil, s) }

// member is a text among the members of an item, empty when it is none.
func member(item map[string]json.RawMessage, name string) (s string) {
	// What is no text counts as absent here; the reader of items complains.
	_ = json.Unmarshal(item[name], &s)
	return s
}

func setDefault(item map[string]json.RawMessage, name, value string) {
	if member(item, name) == "" {
		item[name] = quoted(value)
	}
}

// page is a part of a list.
type page struct {
	Object  string            `json:"object"`
	Data    []json.RawMessage `json:"data"`
	FirstID *string           `json:"first_id"`
	LastID  *string           `json:"last_id"`
	HasMore bool              `json:"has_more"`
}

// InputItems serves GET /v1/responses/{id}/input_items: what the response continued, item by item, the newest first
// unless order=asc. after and before are ids of items, of a list in that order; limit is 20 unless given.
func (s *Service) InputItems(w http.ResponseWriter, r *http.Request) error {
	k := keyOf(r)
	items, err := s.inputs(r.Context(), k)
	if err != nil {
		return err
	}
	p, err := newPage(items, r)
	if err != nil {
		return err
	}
	return turn.WriteJSON(w, p)
}

// inputs of a response that is kept or will be.
func (s *Service) inputs(ctx context.Context, k key) ([]json.RawMessage, error) {
	if l, ok := s.running.get(k); ok && l.inputs != nil {
		return l.inputs, nil
	}
	e, err := s.kept(ctx, k)
	if err != nil {
		return nil, err
	}
	if e == nil {
		return nil, unknown(k.id)
	}
	return e.items[:e.inputs], nil
}

func newPage(items []json.RawMessage, r *http.Request) (*page, error) {
	query, limit := r.URL.Query(), pageDefault
	if v := query.Get("limit"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 || n > pageMax {
			return nil, reqerr.InvalidValue("limit", "must be between 1 and %d, got %q", pageMax, v)
		}
		limit = n
	}
	items = slices.Clone(items)
	switch order := query.Get("order"); order {
	case "", "desc":
		slices.Reverse(items)
	case "asc":
	default:
		return nil, reqerr.InvalidValue("order", "must be asc or desc, got %q", order)
	}
	at := func(name string, otherwise int) (int, error) {
		id := query.Get(name)
		if id == "" {
			return otherwise, nil
		}
		i := slices.IndexFunc(items, func(it json.RawMessage) bool { return idOf(it) == id })
		if i < 0 {
			return 0, reqerr.InvalidValue(name, "%q is no item of this response", id)
		}
		return i, nil
	}
	after, err := at("after", -1)
	if err != nil {
		return nil, err
	}
	before, err := at("before", len(items))
	if err != nil {
		return nil, err
	}
	from := after + 1
	part := items[from:max(from, before)]
	p := &page{Object: "list", Data: part, HasMore: len(part) > limit}
	if p.HasMore {
		// With before alone the page is the one next to that item.
		if after < 0 && before < len(items) {
			p.Data = part[len(part)-limit:]
		} else {
			p.Data = part[:limit]
		}
	}
	if n := len(p.Data); n > 0 {
		first, last := idOf(p.Data[0]), idOf(p.Data[n-1])
		p.FirstID, p.LastID = &first, &last
	}
	return p, nil
}

func idOf(item json.RawMessage) string {
	var it struct{ ID string }
	// Items that are no objects have none.
	_ = json.Unmarshal(item, &it)
	return it.ID
}
