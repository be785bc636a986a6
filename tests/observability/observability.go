// Package observability reads what deploy/observability asks Prometheus for, so that tests can hold it against what the
// processes export.
package observability

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

// Board is what tests look at in a board of Grafana.
type Board struct {
	File, UID, Title string
	SchemaVersion    int
	Refresh          string
	Tags             []string
	Panels           []Panel
	Raw              []byte `json:"-"` // the whole file
}

// Panel is one of a board.
type Panel struct {
	ID          int
	Type, Title string
	Datasource  struct{ UID string }
	GridPos     struct{ X, Y, W, H int }
	FieldConfig struct{ Defaults struct{ Unit string } }
	Targets     []struct {
		RefID      string
		Expr       string
		Datasource struct{ UID string }
	}
}

// Boards reads those of a checkout.
func Boards(root string) ([]Board, error) {
	files, err := filepath.Glob(filepath.Join(root, "deploy/observability/grafana/boards/*.json"))
	if err != nil {
		return nil, err
	}
	boards := make([]Board, len(files))
	for i, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(raw, &boards[i]); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		boards[i].File, boards[i].Raw = filepath.Base(file), raw
	}
	return boards, nil
}

// Rules reads the alert rules of a checkout as Prometheus does.
func Rules(root string) (*rulefmt.RuleGroups, error) {
	groups, errs := rulefmt.ParseFile(filepath.Join(root, "deploy/observability/rules.yaml"), false, model.UTF8Validation)
	if len(errs) > 0 {
		return nil, errs[0]
	}
	return groups, nil
}

// Selector is a series that an expression reads, with the labels that it names.
type Selector struct {
	Place, Metric string
	Labels        []string
}

// interval stands for the variable that Grafana fills in.
var interval = strings.NewReplacer("$__rate_interval", "1m")

// Selectors returns what all boards and rules read.
func Selectors(root string) ([]Selector, error) {
	boards, err := Boards(root)
	if err != nil {
		return nil, err
	}
	var all []Selector
	add := func(place, text string) error {
		expr, err := parser.ParseExpr(interval.Replace(text))
		if err != nil {
			return fmt.Errorf("%s: %w", place, err)
		}
		parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
			if v, ok := n.(*parser.VectorSelector); ok {
				s := Selector{Place: place, Metric: v.Name}
				for _, m := range v.LabelMatchers {
					if m.Name != model.MetricNameLabel {
						s.Labels = append(s.Labels, m.Name)
					}
				}
				all = append(all, s)
			}
			return nil
		})
		return nil
	}
	for _, b := range boards {
		for _, p := range b.Panels {
			for _, t := range p.Targets {
				if err := add(b.File+", "+p.Title, t.Expr); err != nil {
					return nil, err
				}
			}
		}
	}
	groups, err := Rules(root)
	if err != nil {
		return nil, err
	}
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			if err := add("rules.yaml, "+r.Alert, r.Expr); err != nil {
				return nil, err
			}
		}
	}
	slices.SortFunc(all, func(a, b Selector) int { return strings.Compare(a.Place, b.Place) })
	return all, nil
}

// Input is an expression that an alert compares with something.
type Input struct{ Place, Expr string }

// AlertInputs returns what the alert rules look at: both sides of their comparisons, and all parts that "and" joins.
func AlertInputs(root string) ([]Input, error) {
	groups, err := Rules(root)
	if err != nil {
		return nil, err
	}
	var all []Input
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			expr, err := parser.ParseExpr(r.Expr)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", r.Alert, err)
			}
			for _, text := range inputs(expr) {
				all = append(all, Input{r.Alert, text})
			}
		}
	}
	return all, nil
}

func inputs(expr parser.Expr) []string {
	switch e := expr.(type) {
	case *parser.ParenExpr:
		return inputs(e.Expr)
	case *parser.NumberLiteral:
		return nil
	case *parser.BinaryExpr:
		if e.Op.IsSetOperator() || e.Op.IsComparisonOperator() {
			return append(inputs(e.LHS), inputs(e.RHS)...)
		}
	}
	return []string{expr.String()}
}
