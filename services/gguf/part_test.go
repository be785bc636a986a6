package gguf

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// partOf reads a part whole.
func partOf(t *testing.T, p *Part, err error) []byte {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	r, err := p.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	data, err := io.ReadAll(io.NewSectionReader(r, 0, p.Size()))
	if err != nil || int64(len(data)) != p.Size() {
		t.Fatalf("%d of %d bytes: %v", len(data), p.Size(), err)
	}
	return data
}

const demoModel = "../../models/tandem-tiny-target-q4_k_m.gguf"

// TestPart: a part holds its tensors and the metadata, is the same when it is made of another part, and can be read
// from anywhere to anywhere.
func TestPart(t *testing.T) {
	f, err := Open(demoModel)
	if err != nil {
		t.Skip("needs the demonstration models: ", err)
	}
	defer f.Close()
	var names, fewer []string
	for i, tensor := range f.Tensors() {
		if i%3 == 0 {
			names = append(names, tensor.Name)
		}
		if i%6 == 0 {
			fewer = append(fewer, tensor.Name)
		}
	}
	part, err := f.Part(names)
	data := partOf(t, part, err)
	g, err := OpenBytes(data)
	if err != nil {
		t.Fatal(err)
	}
	if len(g.Tensors()) != len(names) || len(g.Keys()) != len(f.Keys()) {
		t.Fatalf("%d tensors, %d keys", len(g.Tensors()), len(g.Keys()))
	}
	for _, key := range f.Keys() {
		want, _ := f.Lookup(key)
		if got, ok := g.Lookup(key); !ok || got.Type != want.Type || !bytes.Equal(got.Raw(), want.Raw()) {
			t.Errorf("%s is %v", key, got)
		}
	}
	for _, tensor := range g.Tensors() {
		want, _ := f.Tensor(tensor.Name)
		if tensor.Type != want.Type || !bytes.Equal(g.Data(tensor), f.Data(want)) {
			t.Errorf("%s differs", tensor.Name)
		}
	}

	path := filepath.Join(t.TempDir(), "part.gguf")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	again, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	p, err := again.Part(fewer)
	q, err2 := f.Part(fewer)
	if !bytes.Equal(partOf(t, p, err), partOf(t, q, err2)) {
		t.Error("a part of a part is another file")
	}
	if _, err := again.Part([]string{"nothing"}); err == nil {
		t.Error("a tensor that is not there is part of a file")
	}

	r, err := part.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		off := random.Int64N(int64(len(data)))
		b := make([]byte, random.IntN(1<<uint(random.IntN(20))+1))
		n, err := r.ReadAt(b, off)
		want := data[off:min(off+int64(len(b)), int64(len(data)))]
		if !bytes.Equal(b[:n], want) || (err == io.EOF) != (len(want) < len(b)) || err != nil && err != io.EOF {
			t.Fatalf("%d bytes at %d: %d, %v", len(b), off, n, err)
		}
	}

	whole, err := f.Shard(0)
	file, ferr := os.ReadFile(demoModel)
	if ferr != nil || !bytes.Equal(partOf(t, whole, err), file) {
		t.Errorf("the file itself differs: %v", ferr)
	}
	if _, err := f.Shard(1); err == nil {
		t.Error("one file has two shards")
	}
}

// TestPartOfChangedFile: a file that is written to, cut or replaced while it is read is noticed.
func TestPartOfChangedFile(t *testing.T) {
	data := tiny(t, nil)
	for name, change := range map[string]func(path string) error{
		"written to": func(path string) error { return os.WriteFile(path, data, 0o600) },
		"cut":        func(path string) error { return os.Truncate(path, int64(len(data)-1)) },
		"replaced": func(path string) error {
			if err := os.WriteFile(path+".new", data, 0o600); err != nil {
				return err
			}
			return os.Rename(path+".new", path)
		},
		"removed": os.Remove,
	} {
		path := filepath.Join(t.TempDir(), "m.gguf")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		before := time.Now().Add(-time.Hour)
		if err := os.Chtimes(path, before, before); err != nil {
			t.Fatal(err)
		}
		f, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		p, err := f.Shard(0)
		if err != nil {
			t.Fatal(err)
		}
		r, err := p.Open()
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Unchanged(); err != nil {
			t.Errorf("%s: before: %v", name, err)
		}
		if err := change(path); err != nil {
			t.Fatal(err)
		}
		if err := r.Unchanged(); !errors.Is(err, ErrChanged) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := p.Open(); !errors.Is(err, ErrChanged) {
			t.Errorf("%s, opened: %v", name, err)
		}
		if name == "cut" {
			if _, err := r.ReadAt(make([]byte, len(data)), 0); !errors.Is(err, ErrChanged) {
				t.Errorf("%s, read: %v", name, err)
			}
		}
		_, _ = r.Close(), f.Close()
	}
}
