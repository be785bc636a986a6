package responses

import (
	"fmt"
	"strings"
)

// ids makes the ids of what belongs to a response. They follow from the response's own, so that a gateway that runs a
// request again gives the same ones, and an item tells its response.
type ids struct {
	response string // what follows the prefix of the response's id
	kind     byte   // keeps what a request brings and what the answer has apart
	next     int
}

// Kinds of ids.
const (
	idInput  = 'a'
	idOutput = 'b'
	idCall   = 'c'
)

const responsePrefix = "resp_"

func newIDs(response string, kind byte) *ids {
	return &ids{response: strings.TrimPrefix(response, responsePrefix), kind: kind}
}

// make returns the next id with a prefix.
func (i *ids) make(prefix string) string {
	i.next++
	return fmt.Sprintf("%s%s%c%04x", prefix, i.response, i.kind, i.next)
}

// responseOf is the id of the response to which an output item belongs.
func responseOf(item string) (string, bool) {
	_, rest, ok := strings.Cut(item, "_")
	response, _, found := strings.Cut(rest, "_")
	const digits = 24 // of an id that turn.NewID made
	if !ok || found || len(response) <= digits || response[digits] != idOutput {
		return "", false
	}
	return responsePrefix + response[:digits], true
}
