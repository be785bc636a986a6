package toolcall

import (
	"encoding/json"
	"testing"

	"pgregory.net/rapid"
)

func inputOf(fragments ...string) string {
	x := &InputText{}
	var out []byte
	for _, f := range fragments {
		out = x.Add(out, []byte(f))
	}
	return string(x.End(out))
}

func TestInputTextOfAnyTextAtAnyCut(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		text := rapid.StringOf(rapid.OneOf(rapid.Rune(), rapid.SampledFrom([]rune("\"\\\n\t{}:𝄞é")))).Draw(rt, "text")
		args, err := json.Marshal(map[string]string{"input": text})
		if err != nil {
			rt.Fatal(err)
		}
		cut := rapid.IntRange(0, len(args)).Draw(rt, "cut")
		next := rapid.IntRange(cut, len(args)).Draw(rt, "next")
		var want struct{ Input string }
		if err := json.Unmarshal(args, &want); err != nil {
			rt.Fatal(err)
		}
		if got := inputOf(string(args[:cut]), string(args[cut:next]), string(args[next:])); got != want.Input {
			rt.Fatalf("%s gives %q, want %q", args, got, want.Input)
		}
	})
}

func TestInputTextOfOtherForms(t *testing.T) {
	for args, want := range map[string]string{
		`{ "input" : "a\u00e9\ud834\udd1e\/" }`: "aé𝄞/",
		`{"input":""}`:                          "",
		`{"x":1,"input":"late"}`:                "late",
		`{"patch":"other key"}`:                 `{"patch":"other key"}`,
		`{"input":{"a":1}}`:                     `{"input":{"a":1}}`,
		`{}`:                                    `{}`,
		`{"input":"\ud834x"}`:                   "\uFFFDx",
	} {
		var bytes []string
		for _, c := range []byte(args) {
			bytes = append(bytes, string([]byte{c}))
		}
		if got := inputOf(bytes...); got != want {
			t.Errorf("%s gives %q, want %q", args, got, want)
		}
	}
}
