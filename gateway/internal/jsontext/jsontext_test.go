package jsontext

import (
	"encoding/json"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestAppendStringReadsBack(t *testing.T) {
	for _, s := range []string{"", "plain", "quote\" back\\ line\n tab\t nul\x00 del\x7f",
		"日本 \U0001F600 \u2028\u2029", "bad \xff\xc3"} {
		out := AppendString(nil, s)
		var back string
		if err := json.Unmarshal(out, &back); err != nil {
			t.Fatalf("%q: %v", out, err)
		}
		if want := strings.ToValidUTF8(s, "\uFFFD"); back != want && s != "bad \xff\xc3" {
			t.Errorf("%q came back as %q", s, back)
		}
		if string(AppendString(nil, []byte(s))) != string(out) {
			t.Errorf("%q: bytes and string differ", s)
		}
	}
}

func TestAppendStringAnyText(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := string(rapid.SliceOf(rapid.Byte()).Draw(rt, "bytes"))
		out := AppendString(nil, s)
		if strings.ContainsAny(string(out), "\n\r\u2028") {
			rt.Fatalf("%q holds a line end", out)
		}
		var got, want string
		if err := json.Unmarshal(out, &got); err != nil {
			rt.Fatal(err)
		}
		ref, _ := json.Marshal(s)
		json.Unmarshal(ref, &want)
		if got != want {
			rt.Fatalf("%q, want %q", got, want)
		}
	})
}

func TestAppendStringDoesNotAllocate(t *testing.T) {
	buf, text := make([]byte, 0, 256), []byte("func main() {\n\tprintln(\"日本\")\n}")
	if n := testing.AllocsPerRun(100, func() { AppendString(buf, text) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
