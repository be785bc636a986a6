package gguftest

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/services/gguf"
)

// Random writes the random model of that name in a description (native/tests/data/random_models.txt) to a folder of the
// test, checks its hash and returns its path.
func Random(t testing.TB, description, name string) string {
	t.Helper()
	file, err := os.Open(description)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	m := randomFile{w: gguf.NewWriter()}
	want := ""
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		kind, rest, _ := strings.Cut(line, " ")
		key, value, _ := strings.Cut(rest, " ")
		switch {
		case kind != "model":
			if want == "" {
				continue
			}
			if err := m.add(kind, key, value); err != nil {
				t.Fatalf("%s: %q: %v", description, line, err)
			}
		case want != "":
			return m.write(t, name, want)
		case key == name:
			if _, err := fmt.Sscan(value, &m.state, &want); err != nil {
				t.Fatalf("%s: %q: %v", description, line, err)
			}
		}
	}
	if err := lines.Err(); err != nil || want == "" {
		t.Fatalf("%s: no model %s (%v)", description, name, err)
	}
	return m.write(t, name, want)
}

// randomFile collects what the description says of one model; state is that of SplitMix64.
type randomFile struct {
	w     *gguf.Writer
	state uint64
}

func (m *randomFile) write(t testing.TB, name, want string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name+".gguf")
	if err := m.w.WriteFile(path); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != want {
		t.Fatalf("random model %s has the hash %x, its description says %s", name, sum, want)
	}
	return path
}

// add takes one line of the description.
func (m *randomFile) add(kind, key, value string) error {
	var n []int64 // numbers of the line, where it has only these
	if kind != "text" && kind != "f32" && kind != "tensor" {
		for word := range strings.FieldsSeq(value) {
			i, err := strconv.ParseInt(word, 10, 32)
			if err != nil {
				return err
			}
			n = append(n, i)
		}
	}
	switch kind {
	case "text":
		return m.w.Put(key, value)
	case "f32":
		x, err := strconv.ParseFloat(value, 32)
		if err != nil {
			return err
		}
		return m.w.Put(key, float32(x))
	case "u32":
		return m.w.Put(key, uint32(n[0]))
	case "i32s":
		values := make([]int32, len(n))
		for i := range n {
			values[i] = int32(n[i])
		}
		return m.w.Put(key, values)
	case "names":
		names := make([]string, n[0])
		for i := range names {
			names[i] = "<t" + strconv.Itoa(i) + ">"
		}
		return m.w.Put(key, names)
	case "same":
		values := make([]int32, n[0])
		for i := range values {
			values[i] = int32(n[1])
		}
		return m.w.Put(key, values)
	case "tensor":
		return m.tensor(key, strings.Fields(value))
	}
	return fmt.Errorf("%s is no kind of line", kind)
}

// tensor draws the values of a tensor: type, centre, spread and shape are given.
func (m *randomFile) tensor(name string, words []string) error {
	types := map[string]gguf.Type{"f32": gguf.F32, "bf16": gguf.BF16}
	var n []int64
	for _, word := range words[1:] {
		i, err := strconv.ParseInt(word, 10, 64)
		if err != nil {
			return err
		}
		n = append(n, i)
	}
	centre, spread, shape := n[0], n[1], n[2:]
	values := int64(1)
	for _, ne := range shape {
		values *= ne
	}
	var data []byte
	for range values {
		bits := math.Float32bits(m.value(centre, spread))
		if words[0] == "bf16" {
			data = binary.LittleEndian.AppendUint16(data, uint16((bits+0x7FFF+bits>>16&1)>>16))
		} else {
			data = binary.LittleEndian.AppendUint32(data, bits)
		}
	}
	return m.w.AddTensor(name, types[words[0]], shape, bytes.NewReader(data))
}

// value draws one value: all operations are exact or rounded once.
func (m *randomFile) value(centre, spread int64) float32 {
	m.state += 0x9E3779B97F4A7C15
	r := m.state
	r = (r ^ r>>30) * 0xBF58476D1CE4E5B9
	r = (r ^ r>>27) * 0x94D049BB133111EB
	r ^= r >> 31
	n := int64(r&0xFFFF+r>>16&0xFFFF+r>>32&0xFFFF+r>>48) - 131070
	return float32(centre*131072+spread*n) * 0x1p-24
}
