package report

import "github.com/tandem-inference/tandem/tests/reference"

// Case is a golden prompt with its reference text.
type Case struct {
	Kind          string
	Prompt        string
	IDs           []int32
	Greedy        []int32
	AcceptLengths []int `json:"accept_lengths"`
}

// Needle is a prompt with one fact hidden in it.
type Needle struct {
	Tokens int
	Prompt string
	Answer string
	FullOK bool `json:"full_ok"`
}

// Cases reads the golden prompts.
func Cases() ([]Case, error) {
	var file struct{ Cases []Case }
	err := reference.Read("tandem-tiny-q4km.json", &file)
	return file.Cases, err
}

// Needles reads the retrieval prompts.
func Needles() ([]Needle, error) {
	var out []Needle
	err := reference.Read("tandem-tiny-needle.json.gz", &out)
	return out, err
}
