package assets

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/services/gguf"
	"github.com/tandem-inference/tandem/services/gguf/gguftest"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

const (
	draftModel  = "../../../models/tandem-tiny-draft-q8_0.gguf"
	targetModel = "../../../models/tandem-tiny-target-q4_k_m.gguf"
)

func TestOpen(t *testing.T) {
	s, err := Open(t.Context(), draftModel, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if s.Model.Hidden != 512 || s.Model.Draft.BlockSize != 16 || len(s.Digest) != 64 {
		t.Errorf("%+v, digest %q", s.Model.Draft, s.Digest)
	}
	path, digest, err := s.Fuse()
	if err != nil || len(digest) != 64 {
		t.Fatal(digest, err)
	}
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if n := len(f.Tensors()); n != 2 {
		t.Errorf("%d tensors in the fuse file", n)
	}
	if _, err := Open(t.Context(), targetModel, t.TempDir()); err == nil {
		t.Error("a target was opened as a draft")
	}
	successor := filepath.Join(t.TempDir(), "dflash2.gguf")
	gguftest.PublishedDraft(t, draftModel, successor, map[string]any{"dflash.selector_top_k": uint32(16)})
	if _, err := Open(t.Context(), successor, t.TempDir()); err == nil ||
		!strings.Contains(err.Error(), "dflash2.gguf: is a DFlash2 draft") {
		t.Errorf("a DFlash2 draft: %v", err)
	}
}

// TestOpenSafetensors: a folder with a safetensors draft is opened like a GGUF, and its projection is cut as a GGUF.
func TestOpenSafetensors(t *testing.T) {
	dir := t.TempDir()
	gguftest.SafetensorsDraft(t, draftModel, dir, gguf.BF16)
	s, err := Open(t.Context(), dir, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if s.Model.Hidden != 512 || s.Model.Draft.BlockSize != 16 || len(s.Digest) != 64 {
		t.Errorf("%+v, digest %q", s.Model.Draft, s.Digest)
	}
	path, _, err := s.Fuse()
	if err != nil {
		t.Fatal(err)
	}
	f := gguftest.Open(t, path)
	if fc, ok := f.Tensor("fc.weight"); !ok || fc.Type != gguf.BF16 || len(f.Tensors()) != 2 {
		t.Errorf("tensors of the fuse file: %+v", f.Tensors())
	}
}

// TestReceive: tables cut from a target have the digest of the whole file; what does not match what was announced is
// refused and leaves nothing after.
func TestReceive(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(t.Context(), draftModel, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	digest, err := Tables(t.Context(), targetModel)
	if err != nil {
		t.Fatal(err)
	}
	target, err := gguf.Open(targetModel)
	if err != nil {
		t.Fatal(err)
	}
	defer target.Close()
	names, err := gguf.TableTensors(target)
	if err != nil {
		t.Fatal(err)
	}
	cut := filepath.Join(t.TempDir(), "cut.gguf")
	if err := gguf.ExtractTensors(target, cut, names); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(cut)
	if err != nil {
		t.Fatal(err)
	}
	pieces := func(data []byte) func() ([]byte, error) {
		return func() ([]byte, error) {
			if len(data) == 0 {
				return nil, io.EOF
			}
			n := min(len(data), 1<<16)
			part := data[:n]
			data = data[n:]
			return part, nil
		}
	}
	receive := func(digest string, total int, data []byte) error {
		_, err := s.Receive(context.Background(), digest, int64(total), pieces(data))
		return err
	}
	wrong := []byte(digest)
	wrong[0] ^= 1
	damaged := append([]byte(nil), data...)
	damaged[len(damaged)/2] ^= 1
	for name, test := range map[string]struct {
		err  error
		want error
	}{
		"short":   {receive(digest, len(data), data[:len(data)-1]), rpcerr.AnyDataLoss},
		"long":    {receive(digest, len(data)-1, data), rpcerr.AnyDataLoss},
		"damaged": {receive(digest, len(data), damaged), rpcerr.AnyDataLoss},
		"no file": {receive(digest, 5, []byte("hello")), rpcerr.AnyDataLoss},
		"path":    {receive("../../x", len(data), data), rpcerr.AnyInvalidArgument},
	} {
		if !errors.Is(test.err, test.want) {
			t.Errorf("%s: %v", name, test.err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	if _, ok := s.Cached(t.Context(), digest); ok {
		t.Error("cached before it came")
	}
	if err := receive(digest, len(data), data); err != nil {
		t.Fatal(err)
	}
	if path, ok := s.Cached(t.Context(), digest); !ok || filepath.Dir(path) != dir {
		t.Errorf("not cached: %q", path)
	}
}
