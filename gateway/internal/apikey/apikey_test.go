package apikey

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestReadFile(t *testing.T) {
	keys, err := ReadFile(write(t, "# team\n\n plain \nbob:b-key\nops, trusted : o-key\n,trusted:nameless\n"))
	if err != nil {
		t.Fatal(err)
	}
	ring := NewRing(keys...)
	for secret, want := range map[string]Key{"plain": {}, "b-key": {Name: "bob"}, "o-key": {Name: "ops", Trusted: true},
		"nameless": {Trusted: true}} {
		k, ok := ring.Find([]string{"wrong", secret})
		if !ok || k.Name != want.Name || k.Trusted != want.Trusted {
			t.Errorf("%s is %q, trusted %v, found %v", secret, k.Name, k.Trusted, ok)
		}
		if strings.Contains(k.Scope(), secret) {
			t.Errorf("the scope of %s shows it", secret)
		}
	}
	if _, ok := ring.Find([]string{"", "wrong"}); ok || ring.Open() {
		t.Error("a wrong key is accepted")
	}
}

func TestReadFileRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                  "holds no key",
		"# only a comment":  "holds no key",
		"ok\nbob:":          "line 2: the key of \"bob\" is empty",
		"bob,boss:k-secret": "line 1: \"boss\" after the name \"bob\" is not \"trusted\"",
	} {
		_, err := ReadFile(write(t, text))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "k-secret") {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func TestRingIsReplaced(t *testing.T) {
	ring := NewRing(New("old", "a"))
	ring.Set([]Key{New("new", "b")})
	if _, ok := ring.Find([]string{"a"}); ok {
		t.Error("a removed key is still valid")
	}
	if k, ok := ring.Find([]string{"b"}); !ok || k.Name != "new" {
		t.Error("an added key is not valid")
	}
	var none *Ring
	if !none.Open() || !NewRing().Open() {
		t.Error("no keys, but not open")
	}
}

func TestPresented(t *testing.T) {
	h := http.Header{}
	h.Add("Authorization", "Bearer one")
	h.Add("Authorization", "Basic zero")
	h.Add("X-Api-Key", "two")
	h.Add("Api-Key", "three")
	if got := strings.Join(Presented(h.Values), " "); got != "two three one" {
		t.Errorf("presented %q", got)
	}
}
