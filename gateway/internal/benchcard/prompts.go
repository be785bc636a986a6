package benchcard

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"
)

// class is a kind of text. How much a draft helps depends on it.
type class struct {
	Name    string   `json:"name"`
	Prompts []string `json:"prompts"`
}

//go:embed prompts.json
var promptsFile []byte

// classes returns the prompts, perClass of each class.
func classes(perClass int) ([]class, error) {
	var list []class
	if err := json.Unmarshal(promptsFile, &list); err != nil {
		return nil, fmt.Errorf("prompts.json: %w", err)
	}
	for i := range list {
		list[i].Prompts = list[i].Prompts[:min(perClass, len(list[i].Prompts))]
	}
	return list, nil
}

// fillers are the words of long prompts.
var fillers = strings.Fields("river window seven market north copper little engine paper garden slow letter bright " +
	"harbour winter bread table green stone quiet signal bottle early carpet violin forest mirror ladder silver cloud")

// filler returns words that no other seed gives in this order, so that nothing of a prompt was read before.
func filler(words int, seed uint64) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%016x", seed)
	for range words {
		seed = seed*6364136223846793005 + 1442695040888963407
		b.WriteByte(' ')
		b.WriteString(fillers[seed>>33%uint64(len(fillers))])
	}
	return b.String()
}
