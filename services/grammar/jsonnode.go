package grammar

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/big"
	"slices"
)

// jsonNode is a JSON value with the order of its members kept.
type jsonNode struct {
	kind    byte // 'o' object, 'a' array, 's' string, 'n' number, 'b' boolean, '0' null
	text    string
	members []member // of different keys; only ever appended to
	items   []*jsonNode
	places  map[string]int // of the members, when there are many of them

	// Of schemas: a number from 1, 0 = not used as one yet; where it is in the text, the address and the root of the
	// resource it is in.
	id         int
	path, base string
	resource   *jsonNode
}

type member struct {
	key   string
	value *jsonNode
}

// maxSchemaNesting of a schema's JSON text.
const maxSchemaNesting = 200

func parseJSON(data []byte) (*jsonNode, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	n, err := readJSON(d, 0)
	if err != nil {
		return nil, err
	}
	if d.More() {
		return nil, fmt.Errorf("more than one JSON value")
	}
	return n, nil
}

func readJSON(d *json.Decoder, depth int) (*jsonNode, error) {
	if depth > maxSchemaNesting {
		return nil, fmt.Errorf("nested deeper than %d", maxSchemaNesting)
	}
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case string:
		return &jsonNode{kind: 's', text: t}, nil
	case json.Number:
		return &jsonNode{kind: 'n', text: t.String()}, nil
	case bool:
		return &jsonNode{kind: 'b', text: fmt.Sprint(t)}, nil
	case json.Delim:
		n := &jsonNode{kind: 'o'}
		if t == '[' {
			n.kind = 'a'
		}
		for d.More() {
			var key string
			if n.kind == 'o' {
				k, err := d.Token()
				if err != nil {
					return nil, err
				}
				key, _ = k.(string)
			}
			v, err := readJSON(d, depth+1)
			if err != nil {
				return nil, err
			}
			if n.kind == 'a' {
				n.items = append(n.items, v)
				continue
			}
			if old := n.get(key); old != nil {
				*old = *v // the last of equal keys wins
				continue
			}
			n.members = append(n.members, member{key, v})
		}
		_, err := d.Token()
		return n, err
	}
	return &jsonNode{kind: '0', text: "null"}, nil
}

// get returns a member of an object, nil when there is none.
func (n *jsonNode) get(key string) *jsonNode {
	if i := n.place(key); i >= 0 {
		return n.members[i].value
	}
	return nil
}

// fewMembers are searched one by one.
const fewMembers = 16

// place returns the index of a member, -1 when there is none.
func (n *jsonNode) place(key string) int {
	if len(n.members) <= fewMembers {
		return slices.IndexFunc(n.members, func(m member) bool { return m.key == key })
	}
	if n.places == nil {
		n.places = map[string]int{}
	}
	for i := len(n.places); i < len(n.members); i++ {
		n.places[n.members[i].key] = i
	}
	if i, ok := n.places[key]; ok {
		return i
	}
	return -1
}

// spell writes a value as JSON without whitespace.
func (n *jsonNode) spell() string {
	switch n.kind {
	case 's':
		return spellString(n.text)
	case 'a':
		b := []byte("[")
		for i, v := range n.items {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(b, v.spell()...)
		}
		return string(append(b, ']'))
	case 'o':
		b := []byte("{")
		for i, m := range n.members {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(append(append(b, spellString(m.key)...), ':'), m.value.spell()...)
		}
		return string(append(b, '}'))
	}
	return n.text
}

func spellString(s string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // strings always encode
	return string(bytes.TrimSuffix(b.Bytes(), []byte("\n")))
}

// number reads a number exactly, nil when n is none.
func (n *jsonNode) number() *big.Rat {
	if n == nil || n.kind != 'n' || len(n.text) > 64 {
		return nil
	}
	// Exponents are bounded: an exact 1e999999999 would fill the memory.
	if i := slices.IndexFunc([]byte(n.text), func(c byte) bool { return c == 'e' || c == 'E' }); i >= 0 &&
		len(n.text)-i > 4 {
		return nil
	}
	r, ok := new(big.Rat).SetString(n.text)
	if !ok {
		return nil
	}
	return r
}

func (n *jsonNode) equal(m *jsonNode) bool {
	if n.kind != m.kind {
		return false
	}
	switch n.kind {
	case 'n':
		a, b := n.number(), m.number()
		return a != nil && b != nil && a.Cmp(b) == 0 || n.text == m.text
	case 'a':
		return slices.EqualFunc(n.items, m.items, (*jsonNode).equal)
	case 'o':
		if len(n.members) != len(m.members) {
			return false
		}
		for _, x := range n.members {
			if y := m.get(x.key); y == nil || !x.value.equal(y) {
				return false
			}
		}
		return true
	}
	return n.text == m.text
}
