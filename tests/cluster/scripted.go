package cluster

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// Rule is an entry of the scripted engine's rules; see native/plugin/internal/script.
type Rule struct {
	Prompt          string  `json:"prompt"`
	Emit            string  `json:"emit"`
	TokensPerSecond float64 `json:"tokens_per_second,omitempty"`
	FirstTokenMs    int     `json:"first_token_ms,omitempty"`
	Accept          []int   `json:"accept,omitempty"`
}

// Scripted returns the options of a demonstration cluster whose engines follow rules, which are written into dir. More
// flags may follow.
func Scripted(dir string, rules []Rule, args ...string) (Options, error) {
	root, err := Root()
	if err != nil {
		return Options{}, err
	}
	engine := filepath.Join(root, "bin", "tandem-engine-scripted")
	if _, err := os.Stat(engine); err != nil {
		return Options{}, fmt.Errorf("%w: run make build", err)
	}
	text, err := json.MarshalIndent(rules, "", "  ")
	if err != nil {
		return Options{}, err
	}
	path := filepath.Join(dir, "rules.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return Options{}, err
	}
	return Options{Args: append([]string{"--demo", "--engine", engine}, args...), Env: []string{"TANDEM_SCRIPT=" + path}},
		nil
}
