package reqjson

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/services/bounds"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"google.golang.org/grpc/codes"
)

func parse(t *testing.T, body string) Object {
	t.Helper()
	o, err := Parse([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestAliasesAndExtraBody(t *testing.T) {
	o := parse(t, `{"b":2,"a":null,"extra_body":{"a":5,"c":7,"b":9,"d":null}}`)
	for _, tt := range []struct {
		names []string
		want  int64
		ok    bool
	}{
		{[]string{"b"}, 2, true}, {[]string{"a"}, 5, true}, {[]string{"c", "b"}, 7, true}, {[]string{"d"}, 0, false},
		{[]string{"none", "b"}, 2, true},
	} {
		got, ok, err := o.Int(bounds.Any(), tt.names...)
		if got != tt.want || ok != tt.ok || err != nil {
			t.Errorf("%v: %d %v %v, want %d %v", tt.names, got, ok, err, tt.want, tt.ok)
		}
	}
}

func TestRangesNameThePath(t *testing.T) {
	in, _, err := parse(t, `{"x":{"y":1.5,"z":3.0}}`).Object("x")
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = in.Float(bounds.Between(0, 1), "y")
	if v := rpcerr.From(err).Violations(); len(v) != 1 || v[0].Field != "x.y" ||
		!strings.Contains(v[0].Message, "between 0 and 1, got 1.5") {
		t.Errorf("error %v", err)
	}
	if _, _, err := in.Int(bounds.Any(), "y"); err == nil {
		t.Error("1.5 was taken for an integer")
	}
	if v, _, err := in.Int(bounds.Any(), "z"); v != 3 || err != nil {
		t.Errorf("3.0: %d %v", v, err)
	}
}

// FuzzParse: whatever comes in, the answer is an object or an error of the table, and depth never overflows.
// TestManySmallElements: an array of small elements takes memory for where they are, not for copies of them.
func TestManySmallElements(t *testing.T) {
	const n = 1 << 20
	o := parse(t, `{"a":[`+strings.Repeat("1, ", n-1)+`2 ]}`)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	list, _, _, err := o.Array("a")
	runtime.ReadMemStats(&after)
	if err != nil || len(list) != n || string(list[n-2]) != "1" || string(list[n-1]) != "2" {
		t.Fatalf("%d elements, %v", len(list), err)
	}
	if got := after.TotalAlloc - before.TotalAlloc; got > 26*n {
		t.Errorf("%d bytes an element were allocated", got/n)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{`{}`, `{"a":[1,{"b":null}]}`, `[]`, `{"extra_body":{"x":1}}`, `{"a":"\"[[[["}`,
		` {"a": [ 1 , "x]\"," ,{"b":[1,2],"c":"}"}, null,[] ] , "b":[], "c":[ ]}`, strings.Repeat("[", 300),
		`{"extra_body":3}`, "\xff"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if len(body) > 4096 {
			return
		}
		o, err := Parse(body)
		if err != nil {
			if rpcerr.Code(err) != codes.InvalidArgument {
				t.Fatalf("error %v is not an answer", err)
			}
			return
		}
		if !json.Valid(body) {
			t.Fatalf("invalid JSON was accepted: %q", body)
		}
		for name := range o.Members() {
			_, _, _ = o.String(name)
			_, _, _ = o.Int(bounds.Between(0, 5), name)
			raw, _, _ := o.Raw(name)
			var want []json.RawMessage
			isArray := json.Unmarshal(raw, &want) == nil
			if got, _, _, err := o.Array(name); (err == nil) != isArray ||
				!slices.EqualFunc(got, want, func(a, b json.RawMessage) bool { return bytes.Equal(a, b) }) {
				t.Fatalf("elements of %s: %s, want %s", raw, got, want)
			}
			_, _, _, _ = o.Strings(name)
		}
	})
}

// TestByteOrderMark: some editors and shells put one in front of a file that becomes a body.
func TestByteOrderMark(t *testing.T) {
	if s, _, err := parse(t, "\xef\xbb\xbf{\"a\":\"x\"}").String("a"); err != nil || s != "x" {
		t.Errorf("%q, %v", s, err)
	}
	if _, err := Parse([]byte("\xef\xbb\xbf\xef\xbb\xbf{}")); err == nil {
		t.Error("two marks are accepted")
	}
}

func TestBoundsAreWrittenAsWholeNumbers(t *testing.T) {
	o, err := Parse([]byte(`{"max_tokens":-3}`))
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = o.Int(bounds.Between(1, 2147483647), "max_tokens")
	if err == nil || !strings.Contains(err.Error(), "between 1 and 2147483647") {
		t.Errorf("%v", err)
	}
}

// TestUnreadElements: members of elements are listed by their path without indexes, once, when the element is closed.
func TestUnreadElements(t *testing.T) {
	o := parse(t, `{"a":[{"x":1,"y":{"p":1,"q":2},"b":[{"k":1},{"k":2,"l":3}]},{"x":1,"z":2}],"c":[{"whole":1}],"d":[{"left":1}],"e":1}`)
	list, name, _, err := o.Array("a")
	if err != nil {
		t.Fatal(err)
	}
	for i, raw := range list {
		e, err := o.Element(name, i, raw)
		if err != nil {
			t.Fatal(err)
		}
		_, _, _ = e.Int(bounds.Any(), "x")
		if y, ok, _ := e.Object("y"); ok {
			_, _, _ = y.Int(bounds.Any(), "p")
		}
		inner, _, _, _ := e.Array("b")
		for j, raw := range inner {
			in, err := e.Element("b", j, raw)
			if err != nil {
				t.Fatal(err)
			}
			if want := fmt.Sprintf("a[%d].b[%d].k", i, j); in.Path("k") != want {
				t.Errorf("path %s, want %s", in.Path("k"), want)
			}
			in.Close()
		}
		e.Close()
	}
	c, _, _, _ := o.Array("c")
	e, err := o.Element("c", 0, c[0])
	if err != nil {
		t.Fatal(err)
	}
	e.ReadAll()
	e.Close()
	o.Ignore("e")
	want := []string{"a[].b[].k", "a[].b[].l", "a[].y.q", "a[].z", "d"}
	if got := o.Unread(); !slices.Equal(got, want) {
		t.Errorf("unread %v, want %v", got, want)
	}
	if _, err := o.Element("c", 1, json.RawMessage(`3`)); err == nil || !strings.Contains(err.Error(), "c[1]") {
		t.Errorf("a number as an element: %v", err)
	}
}

// TestUnreadElementsAreBounded: the names are the client's choice.
func TestUnreadElementsAreBounded(t *testing.T) {
	o := parse(t, `{"a":[]}`)
	_, _, _, _ = o.Array("a")
	for i := range 100 * maxLost {
		e, err := o.Element("a", i, json.RawMessage(fmt.Sprintf(`{"n%d":1}`, i)))
		if err != nil {
			t.Fatal(err)
		}
		e.Close()
	}
	if n := len(o.Unread()); n != maxLost {
		t.Errorf("%d paths are kept, want %d", n, maxLost)
	}
}

// FuzzMembers: the members of an object are those of encoding/json.
func FuzzMembers(f *testing.F) {
	for _, s := range []string{`{}`, ` { } `, `{"a":1,"a":null}`, `{"a":null,"a":1}`,
		"\t{\"a\" \n:\r [1 , {\"b\":\",\"}] ,\"c\\u0064\":\"x\"}",
		`{"":{"":{}},"b":"\\\"","c":[]}`, `{"\ud800":0,"a":"}"}`, `[{"a":1}]`, `null`, `"a"`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 4096 || !json.Valid(text) {
			return
		}
		var want map[string]json.RawMessage
		isObject := json.Unmarshal(text, &want) == nil && want != nil
		for name, value := range want {
			if string(value) == "null" {
				delete(want, name)
			}
		}
		got, ok := members(text)
		if ok != isObject || !maps.EqualFunc(got, want, func(a, b json.RawMessage) bool { return bytes.Equal(a, b) }) {
			t.Fatalf("%q: %q %v, want %q", text, got, ok, want)
		}
	})
}
