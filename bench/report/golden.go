package report

import (
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/tandem-inference/tandem/tests/cluster"
)

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
	err := read("tandem-tiny-q4km.json", &file)
	return file.Cases, err
}

// Needles reads the retrieval prompts.
func Needles() ([]Needle, error) {
	var out []Needle
	err := read("tandem-tiny-needle.json", &out)
	return out, err
}

func read(name string, v any) error {
	root, err := cluster.Root()
	if err != nil {
		return err
	}
	data, err := os.ReadFile(filepath.Join(root, "tests", "testdata", "golden", name))
	if err != nil {
		return err
	}
	return json.Unmarshal(data, v)
}
