package seal

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
)

func TestSealOpens(t *testing.T) {
	key := NewKey()
	s := New(key, "a")
	for _, text := range []string{"", "why not", string(make([]byte, 1<<16))} {
		sealed := s.Seal(text)
		if got, ok := New(key, "a").Open(sealed); !ok || got != text {
			t.Errorf("%d bytes came back as %d, %v", len(text), len(got), ok)
		}
		if again := s.Seal(text); again == sealed {
			t.Error("the same text was sealed the same way twice")
		}
		if _, ok := New(key, "b").Open(sealed); ok {
			t.Error("opened for another purpose")
		}
		if _, ok := New(NewKey(), "a").Open(sealed); ok {
			t.Error("opened with another key")
		}
	}
}

func TestOpenRefusesForgeries(t *testing.T) {
	s := New(NewKey(), "a")
	sealed := s.Seal("the reasoning")
	for i := range sealed {
		c := byte('A')
		if sealed[i] == c {
			c = 'g'
		}
		forged := sealed[:i] + string(c) + sealed[i+1:]
		if text, ok := s.Open(forged); ok && text != "the reasoning" {
			t.Fatalf("byte %d changed, opened as %q", i, text)
		}
	}
	for _, bad := range []string{"", "A", "not base64!", sealed[:len(sealed)-4]} {
		if _, ok := s.Open(bad); ok {
			t.Errorf("%q was opened", bad)
		}
	}
}

func TestSignIsKeyed(t *testing.T) {
	key := NewKey()
	a := New(key, "a").Sign([]byte("text"))
	if a != New(key, "a").Sign([]byte("text")) {
		t.Error("two signatures of one text differ")
	}
	for name, other := range map[string]string{"text": New(key, "a").Sign([]byte("texT")),
		"key": New(NewKey(), "a").Sign([]byte("text"))} {
		if a == other {
			t.Errorf("another %s gives the same signature", name)
		}
	}
}

func TestKeyFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sub", "key")
	keys := make([]Key, 8)
	var wg sync.WaitGroup
	for i := range keys {
		wg.Go(func() {
			var err error
			if keys[i], err = ReadOrCreate(path); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, k := range keys {
		if k != keys[0] || k == (Key{}) {
			t.Fatal("gateways that started together have different keys")
		}
	}
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", st.Mode())
	}
	left, _ := os.ReadDir(filepath.Dir(path))
	if len(left) != 1 {
		t.Errorf("%d files, want the key alone", len(left))
	}
	if err := os.WriteFile(path, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadOrCreate(path); err == nil {
		t.Error("a broken key file was accepted")
	}
}
