package turn

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-inference/tandem/gateway/internal/reqjson"
	"github.com/tandem-inference/tandem/services/chattemplate"
)

func object(t *testing.T, body string) reqjson.Object {
	t.Helper()
	o, err := reqjson.Parse([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestToolsAreCanonical(t *testing.T) {
	const want = `[{"type": "function", "function": {"name": "f", "strict": true, "parameters": {"z": 1, "a": 2}}}]`
	for name, body := range map[string]string{
		"nested":       `{"type":"function","function":{"name":"f","strict":true,"parameters":{"z":1,"a":2}}}`,
		"flat":         `{"type":"function","name":"f","strict":true,"parameters":{"z":1,"a":2}}`,
		"without type": `{"function":{"name":"f","strict":true,"parameters":{"z":1,"a":2}}}`,
	} {
		ts, skipped, err := ParseTools(object(t, `{"tools":[`+body+`,{"type":"web_search"}]}`))
		if err != nil {
			t.Fatal(name, err)
		}
		if got, err := chattemplate.ToJSON(ts.Shown()); err != nil || got != want {
			t.Errorf("%s: %s, %v", name, got, err)
		}
		if d := cmp.Diff([]string{"web_search"}, skipped); d != "" {
			t.Error(name, d)
		}
	}
}
