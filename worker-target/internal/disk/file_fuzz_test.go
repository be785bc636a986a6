package disk

import (
	"os"
	"path/filepath"
	"testing"
)

// FuzzIndex: no bytes make readIndex panic, take much memory, or give chunks that are not in the file.
func FuzzIndex(f *testing.F) {
	for _, magic := range [][8]byte{magicKV, magicState} {
		x := &index{head: head{Magic: magic, Length: 70, PageBytes: 256, BlockBytes: 128, StateBytes: 300}}
		if magic == magicKV {
			x.tokens, x.Pages, x.Rows, x.RowWidth = make([]int32, 70), 2, 70, 3
		}
		chunks, size := x.plan()
		x.crcs = make([]uint32, len(chunks))
		raw := x.encode()
		f.Add(append(raw, make([]byte, int(size)-len(raw))...))
		f.Add(raw)
	}
	path := filepath.Join(f.TempDir(), "file")
	f.Fuzz(func(t *testing.T, raw []byte) {
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		for _, magic := range [][8]byte{magicKV, magicState} {
			if _, err := file.Seek(0, 0); err != nil {
				t.Fatal(err)
			}
			x, chunks, err := readIndex(file, magic)
			if err != nil {
				continue
			}
			at := int64(x.IndexBytes)
			for _, c := range chunks {
				at += int64(c.bytes)
			}
			if at != int64(len(raw)) || len(chunks) != len(x.crcs) {
				t.Fatalf("chunks end at %d of %d bytes", at, len(raw))
			}
		}
	})
}
