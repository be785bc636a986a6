package disk

import (
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/services/engine"
)

// window is that of engines that release pages here.
const window = 128

// indexes reads the begins of all files of a kind, by length of their states.
func indexes(t *testing.T, dir, suffix string, magic [8]byte) map[int]*index {
	t.Helper()
	out := map[int]*index{}
	for path := range files(t, dir) {
		if !strings.HasSuffix(path, suffix) {
			continue
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		x, _, err := readIndex(f, magic)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		out[int(x.Length)] = x
	}
	return out
}

// TestReleasedPagesAreNotKept: of pages that no later row reads nothing is in files or asked for, and states come back
// from pages of their own and of ancestors, alone and beside a base.
func TestReleasedPagesAreNotKept(t *testing.T) {
	r, random, dir := newWindowRig(t, window), rand.New(rand.NewPCG(20, 1)), t.TempDir()
	s := openStore(t, dir, roomy)
	prompt := text(random, 1501)
	// The state of 340 needs a page of the one before, that of 420 none.
	lengths := []int{100, 127, 300, 340, 420, 1000, 1001, 1500}
	from := 0
	for _, n := range lengths {
		r.ok(r.write(s, "", prompt[:n], nil))
	}
	kept(t, s, dir)
	kv, states := indexes(t, dir, kvSuffix, magicKV), indexes(t, dir, stateSuffix, magicState)
	for _, n := range lengths {
		first := engine.FirstPage(n, window, page)
		pages := pagesOf(n) - max(first, from/page)
		if x := kv[n]; int(x.Pages) != pages || int(x.FirstPage) != first || int(states[n].FirstPage) != first {
			t.Errorf("%d tokens after %d: %d pages, first page %d and %d; want %d and %d", n, from, x.Pages, x.FirstPage,
				states[n].FirstPage, pages, first)
		}
		from = n
	}
	s.Close()
	s = openStore(t, dir, roomy)
	defer s.Close()
	for _, n := range lengths {
		for _, base := range []int{0, n / 2, n - 1} {
			var snapshot engine.Snapshot
			if base > 0 {
				snapshot = r.snapshot(prompt[:base])
			}
			if got, _, err := r.load(s, "", prompt[:n], snapshot, base); err != nil || got != n {
				t.Errorf("%d of %d tokens with a base of %d: %v", got, n, base, err)
			}
			if base > 0 {
				r.ok(r.e.FreeSnapshot(r.ctx, snapshot))
			}
		}
	}
	if got := s.Stats(); got.Damaged != 0 {
		t.Errorf("%+v", got)
	}
}

// TestWrongFirstPage: files with right checksums whose state begins with another page than the engine's are a miss and
// go, whether both say so or one.
func TestWrongFirstPage(t *testing.T) {
	r, random := newWindowRig(t, window), rand.New(rand.NewPCG(21, 1))
	prompt := text(random, 500)
	right := engine.FirstPage(len(prompt), window, page)
	snapshot := r.snapshot(prompt)
	for _, first := range []int{0, right - 1, right + 1} {
		dir := t.TempDir()
		s := openStore(t, dir, roomy)
		d := r.draft(snapshot, "", prompt, nil)
		d.Layout.FirstPage = first
		read := d.Read
		d.Read = func(at engine.Part, data []byte) (uint32, error) {
			if at.Page >= 0 && at.Page < right {
				return crc32.Checksum(data, castagnoli), nil
			}
			return read(at, data)
		}
		r.ok(s.Write(r.ctx, d))
		n, _, err := r.load(s, "", prompt, 0, 0)
		if n != 0 || !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "first_page") {
			t.Errorf("first page %d instead of %d: %d tokens, %v", first, right, n, err)
		}
		if n, _, err := r.load(s, "", prompt, 0, 0); n != 0 || err != nil || s.Stats().States != 0 {
			t.Errorf("first page %d: %d tokens, %v, %+v", first, n, err, s.Stats())
		}
		s.Close()
	}
	dir := t.TempDir()
	s := openStore(t, dir, roomy)
	defer s.Close()
	r.ok(r.write(s, "", prompt, nil))
	for path := range files(t, dir) {
		if !strings.HasSuffix(path, stateSuffix) {
			continue
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		r.ok(err)
		x, _, err := readIndex(f, magicState)
		r.ok(err)
		x.FirstPage--
		_, err = f.WriteAt(x.encode(), 0)
		r.ok(errors.Join(err, f.Close()))
	}
	if n, _, err := r.load(s, "", prompt, 0, 0); n != 0 || !errors.Is(err, ErrDamaged) ||
		!strings.Contains(err.Error(), "first page") {
		t.Errorf("%d tokens, %v", n, err)
	}
	r.ok(r.e.FreeSnapshot(r.ctx, snapshot))
}

// TestOtherVersions: files of another version are gone after the start; they are neither read nor counted.
func TestOtherVersions(t *testing.T) {
	r, random, dir := newRig(t), rand.New(rand.NewPCG(22, 1)), t.TempDir()
	s := openStore(t, dir, roomy)
	prompt := text(random, 300)
	r.ok(r.write(s, "", prompt, nil))
	s.Close()
	old := func(name, to string) string { return strings.Replace(name, "."+string(version)+".", to, 1) }
	for path := range files(t, dir) {
		r.ok(os.Rename(path, old(path, "."))) // the first version had no number there
		for _, to := range []string{old(path, "."), old(path, ".3.")} {
			r.ok(os.WriteFile(to, []byte("of another version"), 0o600))
		}
	}
	foreign := []string{"notes.kv", "10-20.state", "300-abc.9.kv"}
	for _, name := range foreign {
		r.ok(os.WriteFile(filepath.Join(dir, "1", name), nil, 0o600))
	}
	s = openStore(t, dir, roomy)
	defer s.Close()
	r.ok(s.ready(r.ctx))
	if n, _, err := r.load(s, "", prompt, 0, 0); n != 0 || err != nil {
		t.Errorf("%d tokens: %v", n, err)
	}
	if got := s.Stats(); got.Bytes != 0 || got.States != 0 || got.Damaged != 0 || len(files(t, dir)) != len(foreign) {
		t.Errorf("%+v, %v", got, files(t, dir))
	}
}
