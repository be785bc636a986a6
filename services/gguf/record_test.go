package gguf

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// forget drops what the process remembers: what comes then is what a new process does.
func forget() {
	digests.mu.Lock()
	clear(digests.m)
	digests.mu.Unlock()
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// modelFile writes a model with a tensor of n zero bytes that was changed an hour ago.
func modelFile(t *testing.T, n int64) string {
	t.Helper()
	w := NewWriter()
	if err := w.AddTensor("zeros", F32, []int64{n / 4}, io.LimitReader(zeros{}, n)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "model.gguf")
	if err := w.WriteFile(path); err != nil {
		t.Fatal(err)
	}
	age(t, path, time.Hour)
	return path
}

func age(t *testing.T, path string, by time.Duration) {
	t.Helper()
	at := time.Now().Add(-by).Truncate(time.Second)
	if err := os.Chtimes(path, at, at); err != nil {
		t.Fatal(err)
	}
}

func digestOf(t *testing.T, path string) string {
	t.Helper()
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sum, err := f.Digest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

func sumOf(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// change writes another byte at the end of the file, in place.
func change(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte{1}, st.Size()-1); err != nil {
		t.Fatal(err)
	}
}

// keep remembers digests in a new folder until the test ends.
func keep(t *testing.T) (dir string, complaints *[]error) {
	t.Helper()
	forget()
	dir, complaints = filepath.Join(t.TempDir(), "digests"), new([]error)
	RememberDigests(dir, func(err error) { *complaints = append(*complaints, err) })
	t.Cleanup(func() { RememberDigests("", nil); forget() })
	return dir, complaints
}

// TestDigestIsKept: a second start takes the digest from the record and does not read the file, which is shown by a
// change that leaves no trace in size, time and inode; a change that does is seen.
func TestDigestIsKept(t *testing.T) {
	keep(t)
	path := modelFile(t, 64<<10)
	want := sumOf(t, path)
	if got := digestOf(t, path); got != want {
		t.Fatalf("digest %s, want %s", got, want)
	}
	change(t, path)
	age(t, path, time.Hour)
	st, _ := os.Stat(path)
	forget()
	if got := digestOf(t, path); got != want {
		t.Error("the file was read again")
	}
	for name, touch := range map[string]func(){
		"time": func() { age(t, path, 2*time.Hour) },
		"inode": func() {
			text, _ := os.ReadFile(path)
			if err := os.WriteFile(path+".new", text, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(path+".new", st.ModTime(), st.ModTime()); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(path+".new", path); err != nil {
				t.Fatal(err)
			}
		},
	} {
		forget()
		digestOf(t, path)
		change(t, path)
		touch()
		forget()
		if got, want := digestOf(t, path), sumOf(t, path); got != want {
			t.Errorf("%s changed: digest %s, want %s", name, got, want)
		}
	}
}

// TestDigestOfAPartIsKept: a part has a digest of its own, which a second start takes from the record until the file
// changes.
func TestDigestOfAPartIsKept(t *testing.T) {
	keep(t)
	path := modelFile(t, 64<<10)
	whole := sumOf(t, path)
	computed := 0
	digest := func(part, sum string) string {
		t.Helper()
		f, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		got, err := f.PartDigest(part, func() (string, error) {
			computed++
			return sum, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	one, two := strings.Repeat("01", sha256.Size), strings.Repeat("02", sha256.Size)
	if digest("head", one) != one || digest("tail", two) != two || digestOf(t, path) != whole || computed != 2 {
		t.Fatalf("parts and whole share digests, %d computed", computed)
	}
	forget()
	if digest("head", two) != one || digest("tail", one) != two || computed != 2 {
		t.Errorf("parts are hashed again, %d computed", computed)
	}
	forget()
	age(t, path, 2*time.Hour)
	if digest("head", two) != two || computed != 3 {
		t.Errorf("the digest of a file that has changed, %d computed", computed)
	}
}

// TestRecordIsChecked: entries that are cut, for another file or no digest are not believed.
func TestRecordIsChecked(t *testing.T) {
	dir, complaints := keep(t)
	path := modelFile(t, 64<<10)
	want := digestOf(t, path)
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("record %v, %v", files, err)
	}
	good, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"empty": "", "cut": string(good[:len(good)-20]), "short digest": strings.Replace(string(good), want, want[:60], 1),
		"no hex":       strings.Replace(string(good), want, strings.Repeat("x", 64), 1),
		"another path": strings.Replace(string(good), "model.gguf", "other.gguf", 1),
	} {
		if err := os.WriteFile(files[0], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		forget()
		if got := digestOf(t, path); got != want {
			t.Errorf("%s: digest %s, want %s", name, got, want)
		}
		if text, _ := os.ReadFile(files[0]); string(text) != string(good) {
			t.Errorf("%s: the entry was not replaced", name)
		}
	}
	if len(*complaints) > 0 {
		t.Error(*complaints)
	}
}

// TestFreshFilesAreReadAgain: a digest of a file that may still be written is not kept on disk.
func TestFreshFilesAreReadAgain(t *testing.T) {
	dir, _ := keep(t)
	path := modelFile(t, 64<<10)
	age(t, path, -time.Minute)
	digestOf(t, path)
	if files, _ := filepath.Glob(filepath.Join(dir, "*")); len(files) > 0 {
		t.Errorf("kept: %v", files)
	}
}

// TestRecordOfManyProcesses: starts at the same time leave one whole entry.
func TestRecordOfManyProcesses(t *testing.T) {
	dir, complaints := keep(t)
	path := modelFile(t, 256<<10)
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	want := sumOf(t, path)
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			r := &record{dir: dir, complain: func(err error) { t.Error(err) }}
			for range 20 {
				r.write(statOf(path, st), want)
				if got, ok := r.read(statOf(path, st)); !ok || got != want {
					t.Errorf("read %q, %v", got, ok)
				}
			}
		})
	}
	group.Wait()
	if files, _ := os.ReadDir(dir); len(files) != 1 || len(*complaints) > 0 {
		t.Errorf("%d files, complaints %v", len(files), *complaints)
	}
}

// TestRecordCannotBeWritten: the digest is right all the same, and the complaint comes once.
func TestRecordCannotBeWritten(t *testing.T) {
	forget()
	blocked := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	complaints := 0
	RememberDigests(filepath.Join(blocked, "digests"), func(error) { complaints++ })
	t.Cleanup(func() { RememberDigests("", nil); forget() })
	for range 2 {
		path := modelFile(t, 64<<10)
		if got, want := digestOf(t, path), sumOf(t, path); got != want {
			t.Errorf("digest %s, want %s", got, want)
		}
	}
	if complaints != 1 {
		t.Errorf("%d complaints", complaints)
	}
}

// TestDigestLeavesNoPages: hashing a model does not make it resident in the process.
func TestDigestLeavesNoPages(t *testing.T) {
	resident := func() int {
		text, err := os.ReadFile("/proc/self/status")
		if err != nil {
			t.Skip("no /proc")
		}
		_, rest, _ := strings.Cut(string(text), "RssFile:")
		kb, err := strconv.Atoi(strings.Fields(rest)[0])
		if err != nil {
			t.Fatal(err)
		}
		return kb << 10
	}
	forget()
	const size = 96 << 20
	path := modelFile(t, size)
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	before := resident()
	if _, err := f.Digest(t.Context()); err != nil {
		t.Fatal(err)
	}
	if grown := resident() - before; grown > size/8 {
		t.Errorf("%d MB of %d are resident after hashing", grown>>20, size>>20)
	}
	// The mapping of a file that was replaced is given back, too.
	forget()
	if err := os.Rename(path, path+".old"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Digest(t.Context()); err != nil {
		t.Fatal(err)
	}
	if grown := resident() - before; grown > size/8 {
		t.Errorf("%d MB of %d are resident after hashing a mapping", grown>>20, size>>20)
	}
	if tensor, _ := f.Tensor("zeros"); len(f.Data(tensor)) != size || f.Data(tensor)[size-1] != 0 {
		t.Error("the mapping is gone")
	}
	for _, b := range f.Data(f.Tensors()[0]) {
		_ = b
	}
	f.Release()
	if grown := resident() - before; grown > size/8 {
		t.Errorf("%d MB of %d are resident after Release", grown>>20, size>>20)
	}
}
