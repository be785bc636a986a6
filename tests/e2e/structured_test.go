package e2e

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-inference/tandem/tests/client"
)

// answerSchema is what the tests of structured output ask for.
const answerSchema = `{"type":"object","properties":{"name":{"type":"string","minLength":1,"maxLength":30},"kind":{"enum":["function","type"]},
	"lines":{"type":"integer","minimum":1,"maximum":99}},"required":["name","kind","lines"],"additionalProperties":false}`

// callSchema is that of a strict tool: text in calls is not quoted, and held to its limits all the same.
const callSchema = `{"type":"object","properties":{"id":{"type":"string","pattern":"^[A-Z]{2}-[0-9]{2}$"},"note":{"type":"string","minLength":3,"maxLength":20},"kind":{"enum":["function","type"]},"lines":{"type":"integer","minimum":1,"maximum":99},
	"tags":{"type":"array","items":{"type":"string","maxLength":10},"maxItems":2}},"required":["id","note","kind","lines"],"additionalProperties":false}`

var callID = regexp.MustCompile(`^[A-Z]{2}-[0-9]{2}$`)

// checkAnswer holds a text against answerSchema.
func checkAnswer(t *testing.T, text string) {
	t.Helper()
	var v struct {
		Name, Kind *string
		Lines      *int
	}
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil || v.Name == nil || v.Kind == nil || v.Lines == nil {
		t.Fatalf("%q: %v", text, err)
	}
	if n := len([]rune(*v.Name)); n < 1 || n > 30 || *v.Kind != "function" && *v.Kind != "type" ||
		*v.Lines < 1 || *v.Lines > 99 {
		t.Errorf("%q is outside the schema", text)
	}
}

// structured is an answer as text: the content, or the arguments of the one call.
type structured struct{ Content, Arguments, Finish string }

func askStructured(t *testing.T, c *client.Client, body map[string]any) structured {
	t.Helper()
	raw, err := c.Post(t.Context(), "/v1/chat/completions", body)
	if err != nil {
		t.Fatal(err)
	}
	var v struct {
		Choices []struct {
			Message struct {
				Content   string
				ToolCalls []struct {
					Function struct{ Arguments string }
				} `json:"tool_calls"`
			}
			FinishReason string `json:"finish_reason"`
		}
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	m := v.Choices[0].Message
	out := structured{Content: m.Content, Finish: v.Choices[0].FinishReason}
	if len(m.ToolCalls) == 1 {
		out.Arguments = m.ToolCalls[0].Function.Arguments
	}
	return out
}

// TestStructuredOutput: schemas, grammars and forced calls hold over HTTP with the demonstration models, greedy and
// sampled, and speculation does not change a byte.
func TestStructuredOutput(t *testing.T) {
	_, c := demo(t)
	format := map[string]any{"type": "json_schema",
		"json_schema": map[string]any{"name": "answer", "schema": json.RawMessage(answerSchema)}}
	strict := []any{map[string]any{"type": "function",
		"function": map[string]any{"name": "answer", "strict": true, "parameters": json.RawMessage(callSchema)}}}
	for n, prompt := range []string{"Describe a Go function.", "What is DFlash?", "Write a type for users."} {
		for seed := range 3 {
			turn := n + seed
			base := func(more map[string]any) map[string]any {
				body := map[string]any{
					"messages": []any{map[string]any{"role": "user", "content": prompt}}, "max_tokens": 300, "seed": seed,
					"temperature": 0.4 * float64(seed),
				}
				for k, v := range more {
					body[k] = v
				}
				return body
			}
			for name, more := range map[string]map[string]any{
				"schema": {"response_format": format},
				"schema, thinking": {"response_format": format,
					"thinking": map[string]any{"type": "enabled", "budget_tokens": 30}},
				"grammar":             {"grammar": `root ::= "yes" | "no" | "maybe" (" " [a-z]{2,8}){1,3} "."`},
				"strict call, forced": {"tools": strict, "tool_choice": "required", "parallel_tool_calls": false},
			} {
				got := map[string]structured{}
				drafted := []string{"lookup", "chain", "tree", "auto"} // two of them take turns
				for _, mode := range []string{"off", drafted[turn%4], drafted[(turn+1)%4]} {
					body := base(more)
					body["speculation"] = map[string]any{"mode": mode}
					got[mode] = askStructured(t, c, body)
					if d := cmp.Diff(got["off"], got[mode]); d != "" {
						t.Errorf("%s, %q: %s differs from off: %s", name, prompt, mode, d)
					}
				}
				a := got["off"]
				switch {
				case name == "grammar":
					if w := strings.Fields(a.Content); a.Content != "yes" && a.Content != "no" && (w[0] != "maybe" || len(w) > 4) {
						t.Errorf("%q is outside the grammar", a.Content)
					}
				case name == "strict call, forced":
					var v struct {
						ID, Note, Kind string
						Lines          int
						Tags           []string
					}
					d := json.NewDecoder(strings.NewReader(a.Arguments))
					d.DisallowUnknownFields()
					if err := d.Decode(&v); err != nil || a.Finish != "tool_calls" || v.Kind != "function" && v.Kind != "type" ||
						v.Lines < 1 || v.Lines > 99 || len(v.Tags) > 2 ||
						!callID.MatchString(v.ID) || utf8.RuneCountInString(v.Note) < 3 || utf8.RuneCountInString(v.Note) > 20 {
						t.Errorf("%q: %+v, %v", prompt, a, err)
					}
				default:
					if a.Finish != "stop" {
						t.Errorf("%s, %q: finished with %s", name, prompt, a.Finish)
					}
					checkAnswer(t, a.Content)
				}
			}
		}
	}
}
