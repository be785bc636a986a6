// Package benchcard measures servers of language models at the client and writes what was found as a card: a table, a
// JSON file that other cards can be compared with, or a picture.
package benchcard

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/tandem-inference/tandem/services/wholefile"
)

// Schema names the form of the file. The number rises when a field changes its meaning.
const Schema = "tandem-bench/1"

// Card is the result of tandem bench.
type Card struct {
	Schema string `json:"schema"`
	// Version is that of the measuring program, Commit what it was built from, where the build recorded that.
	Version string   `json:"version"`
	Commit  string   `json:"commit,omitempty"`
	Taken   string   `json:"taken"`
	Machine Machine  `json:"machine"`
	Plan    Plan     `json:"plan"`
	Servers []Server `json:"servers"`
}

// Machine is where the client ran. Load is that of the last minute when the measurement began.
type Machine struct {
	System      string  `json:"system"`
	Processor   string  `json:"processor"`
	Cores       int     `json:"cores"`
	MemoryBytes int64   `json:"memory_bytes,omitempty"`
	Load        float64 `json:"load"`
}

// Plan says what is measured, and how often.
type Plan struct {
	Kind string `json:"kind"` // quick or full
	// Repeats is how often everything is asked after the warm-up. What is expected to end more than BudgetS seconds after
	// the beginning of the warm-up is not repeated.
	Repeats int     `json:"repeats"`
	BudgetS float64 `json:"budget_s"`
	// Tokens is the longest answer, PerClass the number of prompts of each class.
	Tokens   int `json:"tokens"`
	PerClass int `json:"prompts_per_class"`
	// Requests are the numbers of requests at a time, Seconds the time of each of those measurements.
	Requests []int   `json:"requests"`
	Seconds  float64 `json:"seconds"`
	// PromptTokens are the approximate lengths of long prompts.
	PromptTokens []int `json:"prompt_tokens"`
}

// Quick takes less than a minute on the demonstration models.
func Quick() Plan {
	return Plan{Kind: "quick", Repeats: 3, BudgetS: 40, Tokens: 64, PerClass: 1, Requests: []int{1, 4, 8}, Seconds: 1,
		PromptTokens: []int{512}}
}

// Full takes minutes.
func Full() Plan {
	return Plan{Kind: "full", Repeats: 5, BudgetS: 1200, Tokens: 256, PerClass: 3, Requests: []int{1, 4, 8}, Seconds: 5,
		PromptTokens: []int{512, 4096, 16384}}
}

// Server is what was measured of one server.
type Server struct {
	Name    string `json:"name"`
	Address string `json:"address"`
	// Version and Models are what the server says of itself.
	Version string  `json:"version,omitempty"`
	Model   string  `json:"model"`
	Models  []Model `json:"models,omitempty"`
	// Modes of speculation that were measured; of servers that have none, "default".
	Modes  []string `json:"modes"`
	Rates  []Rate   `json:"rates"`
	Pieces []Pieces `json:"pieces"`
	// Together are several requests at a time, Prompts long prompts.
	Together []Together `json:"together"`
	Prompts  []Prompt   `json:"prompts"`
	Texts    Texts      `json:"texts"`
	// OverheadMS is the time of a request at the client less the one that the server reports: HTTP, network, and reading
	// the stream.
	OverheadMS *Spread `json:"overhead_ms,omitempty"`
	// Counted says that the server gives no usage: a piece of text counts as a token.
	Counted bool `json:"tokens_are_pieces,omitempty"`
}

// Model is a model file that a worker serves.
type Model struct {
	Role     string `json:"role"`
	Name     string `json:"name"`
	Digest   string `json:"digest,omitempty"`
	Device   string `json:"device"`
	Backend  string `json:"backend"`
	Numerics string `json:"numerics,omitempty"`
	Contract string `json:"contract,omitempty"`
}

// Spread of a value over the repeats.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	N      int     `json:"n"`
}

// Rate is how fast answers to one class of prompts are written, without their first token.
type Rate struct {
	Mode         string `json:"mode"`
	Class        string `json:"class"`
	TokensPerSec Spread `json:"tokens_per_second"`
	// Of each verified step, as the server reports it; 0 where it does not.
	TokensPerStep float64 `json:"tokens_per_step,omitempty"`
	Drafted       int64   `json:"drafted_tokens,omitempty"`
	Accepted      int64   `json:"accepted_tokens,omitempty"`
}

// Pieces are the gaps between pieces of text as they come, of one request at a time. A piece may hold several tokens.
type Pieces struct {
	Mode    string  `json:"mode"`
	FirstMS Spread  `json:"first_ms"` // of a prompt that was asked before
	P50MS   float64 `json:"gap_p50_ms"`
	P99MS   float64 `json:"gap_p99_ms"`
	Gaps    int     `json:"gaps"`
}

// Together is the rate of all of several requests at a time, first tokens included.
type Together struct {
	Mode         string  `json:"mode"`
	Requests     int     `json:"requests"`
	TokensPerSec Spread  `json:"tokens_per_second"`
	P50MS        float64 `json:"gap_p50_ms"`
	P99MS        float64 `json:"gap_p99_ms"`
}

// Prompt is the first token after a long prompt: one of which nothing was read before, and the same again.
type Prompt struct {
	Asked  int `json:"asked_tokens"`
	Tokens int `json:"tokens"`
	// Cached are the tokens of the warm prompt that the server did not read again, where it reports them.
	Cached       int    `json:"cached_tokens"`
	ColdMS       Spread `json:"cold_ms"`
	WarmMS       Spread `json:"warm_ms"`
	TokensPerSec Spread `json:"tokens_per_second"` // prompt over the time to the first token when cold
}

// Texts counts the greedy answers that were compared with the plain one alone, and names those that differ.
type Texts struct {
	Compared  int         `json:"compared"`
	Different []Different `json:"different,omitempty"`
	// Omitted is how many more differ.
	Omitted int `json:"omitted,omitempty"`
}

// Different is an answer that is another one than the plain answer of the same prompt alone.
type Different struct {
	Mode     string `json:"mode"`
	Requests int    `json:"requests"`
	Class    string `json:"class"`
	Prompt   int    `json:"prompt"`
	Byte     int    `json:"byte"` // the first that differs
}

// spreadOf values, in any order.
func spreadOf(values []float64) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	s := slices.Sorted(slices.Values(values))
	median := s[len(s)/2]
	if len(s)%2 == 0 {
		median = (s[len(s)/2-1] + median) / 2
	}
	return Spread{median, s[0], s[len(s)-1], len(s)}
}

// quantile of values, in any order; 0 of none.
func quantile(values []float64, share float64) float64 {
	if len(values) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(values))
	return s[min(len(s)-1, int(share*float64(len(s))))]
}

// WriteJSON writes the card to a file, whole or not at all.
func (c *Card) WriteJSON(path string) error {
	data, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	return wholefile.Write(path, append(data, '\n'))
}

// mostCard bounds a card's file, in bytes.
const mostCard = 16 << 20

// Read reads a card that WriteJSON has written.
func Read(path string) (*Card, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, mostCard+1))
	if err != nil {
		return nil, err
	}
	if len(data) > mostCard {
		return nil, fmt.Errorf("%s: has more than %d bytes", path, mostCard)
	}
	var c Card
	if err := json.Unmarshal(data, &c); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	switch {
	case c.Schema != Schema:
		return nil, fmt.Errorf("%s: schema is %q, this version reads %s", path, c.Schema, Schema)
	case len(c.Servers) == 0:
		return nil, fmt.Errorf("%s: has no server", path)
	}
	return &c, nil
}

// ErrTexts is the error of a run in which speculation or company changed an answer.
var ErrTexts = errors.New("greedy answers differ from the plain ones, see the card")

// Err is ErrTexts when answers of a server with modes of speculation differ. Other servers promise nothing about that.
func (c *Card) Err() error {
	for _, s := range c.Servers {
		if len(s.Texts.Different) > 0 && !slices.Equal(s.Modes, []string{ModeDefault}) {
			return ErrTexts
		}
	}
	return nil
}
