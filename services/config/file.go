package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// entry is one key of a settings file.
type entry struct {
	line   int
	values []string
	list   bool
}

// fileResolver gives kong the values of a settings file. It differs from kong's own in two ways: a flag whose
// environment variable is set is left alone, because the environment is stronger than the file; and keys are checked.
type fileResolver struct {
	path    string
	cli     any // the command line, which may explain unknown keys
	entries map[string]entry
	order   []string
}

// readFile parses a settings file: one mapping, keys are flag names (dashes or underscores), values scalars or lists of
// scalars.
func readFile(path string) (*fileResolver, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("--config: %w", err)
	}
	name := filepath.Base(path)
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		return nil, fmt.Errorf("--config: %s: %w", name, err)
	}
	r := &fileResolver{path: name, entries: map[string]entry{}}
	for _, doc := range file.Docs {
		if doc.Body == nil || doc.Body.Type() == ast.NullType {
			continue
		}
		if err := r.readMapping(doc.Body); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (r *fileResolver) readMapping(body ast.Node) error {
	var pairs []*ast.MappingValueNode
	switch node := body.(type) {
	case *ast.MappingNode:
		pairs = node.Values
	case *ast.MappingValueNode:
		pairs = []*ast.MappingValueNode{node}
	case *ast.CommentGroupNode:
		return nil
	default:
		return r.fail(body.GetToken(), "settings are written as \"flag: value\"")
	}
	for _, pair := range pairs {
		key := strings.ReplaceAll(pair.Key.GetToken().Value, "_", "-")
		if _, twice := r.entries[key]; twice {
			return r.fail(pair.Key.GetToken(), fmt.Sprintf("key %q is given twice", key))
		}
		e := entry{line: pair.Key.GetToken().Position.Line}
		switch value := pair.Value.(type) {
		case *ast.NullNode:
			continue // "key:" alone means: not set here
		case *ast.SequenceNode:
			e.list = true
			for _, item := range value.Values {
				text, ok := scalar(item)
				if !ok {
					return r.fail(item.GetToken(), fmt.Sprintf("key %q holds something that is not a plain value", key))
				}
				e.values = append(e.values, text)
			}
		default:
			text, ok := scalar(value)
			if !ok {
				return r.fail(value.GetToken(), fmt.Sprintf("key %q is not a plain value or a list of them", key))
			}
			e.values = []string{text}
		}
		r.entries[key] = e
		r.order = append(r.order, key)
	}
	return nil
}

// scalar returns a value as it is written, so that sizes, durations and numbers reach the flag's own parser unchanged.
func scalar(node ast.Node) (string, bool) {
	switch n := node.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return n.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return n.GetToken().Value, true
	}
	return "", false
}

func (r *fileResolver) fail(at *token.Token, text string) error {
	line := 1
	if at != nil && at.Position != nil {
		line = at.Position.Line
	}
	return fmt.Errorf("--config: %s:%d: %s", r.path, line, text)
}

// Validate reports keys that no flag of the program has, each with its line.
func (r *fileResolver) Validate(app *kong.Application) error {
	known, earlier := map[string]bool{}, map[string]bool{}
	for _, flag := range allFlags(app) {
		known[flag.Name] = true
		for _, name := range earlierNames(flag) {
			earlier[name] = true
		}
	}
	for _, name := range ownFlags {
		delete(known, name)
	}
	var problems []error
	for _, key := range r.order {
		if !known[key] && !earlier[key] {
			problems = append(problems,
				fmt.Errorf("--config: %s:%d: unknown key %q%s", r.path, r.entries[key].line, key, r.hint(key, known)))
		}
	}
	return errors.Join(problems...)
}

// hint says why a key is unknown, or which one may have been meant.
func (r *fileResolver) hint(key string, known map[string]bool) string {
	if why := absent(r.cli, key); why != "" {
		return ": " + why
	}
	return suggest(key, known)
}

// Resolve returns the file's value of a flag, or nil when the file does not set it or its environment variable is set.
func (r *fileResolver) Resolve(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	e, ok := r.entries[flag.Name]
	for _, name := range earlierNames(flag) {
		if !ok {
			e, ok = r.entries[name]
		}
	}
	if !ok {
		return nil, nil
	}
	for _, env := range flag.Envs {
		if _, set := os.LookupEnv(env); set {
			return nil, nil
		}
	}
	if !e.list {
		return e.values[0], nil
	}
	if !flag.IsSlice() {
		return nil, fmt.Errorf("--config: %s:%d: key %q takes one value, not a list", r.path, e.line, flag.Name)
	}
	if flag.Tag.Sep == -1 {
		list := make([]any, len(e.values))
		for i, v := range e.values {
			list[i] = v
		}
		return list, nil
	}
	return kong.JoinEscaped(e.values, flag.Tag.Sep), nil
}

// suggest names the known key that differs least, if any is close.
func suggest(key string, known map[string]bool) string {
	best, bestDistance := "", 3
	names := make([]string, 0, len(known))
	for name := range known {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if d := EditDistance(key, name); d < bestDistance {
			best, bestDistance = name, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(", did you mean %q?", best)
}

// EditDistance counts insertions, deletions and replacements of bytes between two short names.
func EditDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
