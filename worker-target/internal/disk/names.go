package disk

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"slices"
	"strconv"
	"strings"
)

// ID is the name of a state: a digest of its namespace and token ids. The zero ID names none.
type ID [16]byte

// digest of a prompt in a namespace, token by token.
type digest struct {
	h      hash.Hash
	buffer [4096]byte
}

// digestOf is how a namespace stands in files: it is made of what tells users apart.
func digestOf(text string) [32]byte { return sha256.Sum256([]byte(text)) }

func newDigest(space [32]byte) *digest {
	d := &digest{h: sha256.New()}
	d.h.Write(space[:])
	return d
}

// add goes on with tokens.
func (d *digest) add(tokens []int32) {
	for part := range slices.Chunk(tokens, len(d.buffer)/4) {
		b := d.buffer[:0]
		for _, t := range part {
			b = binary.LittleEndian.AppendUint32(b, uint32(t))
		}
		d.h.Write(b)
	}
}

// id is that of the tokens so far.
func (d *digest) id() ID {
	var sum [sha256.Size]byte
	return ID(d.h.Sum(sum[:0])[:len(ID{})])
}

func idOf(space string, tokens []int32) ID {
	d := newDigest(digestOf(space))
	d.add(tokens)
	return d.id()
}

func (id ID) String() string { return hex.EncodeToString(id[:]) }

// version of files. It stands in their names, too: those of another version are deleted without being read.
const version = '2'

const (
	kvSuffix    = "." + string(version) + ".kv"
	stateSuffix = "." + string(version) + ".state"
)

// isOther reports whether a name is that of a file of another version; the first one is not in names.
func isOther(name string) bool {
	stem, isKV := strings.CutSuffix(name, ".kv")
	if !isKV {
		var isState bool
		if stem, isState = strings.CutSuffix(name, ".state"); !isState {
			return false
		}
	}
	suffix := stateSuffix
	if isKV {
		suffix = kvSuffix
	}
	stem, number, _ := strings.Cut(stem, ".")
	_, ok := parseName(stem + suffix)
	return ok && number != string(version)
}

func kvName(length int, id, parent ID) string {
	return fmt.Sprintf("%d-%v-%v%s", length, id, parent, kvSuffix)
}

// stateName is the name of a state with a number of services/prefixhash, 0 = it is not known.
func stateName(length int, id ID, number uint64) string {
	if number == 0 {
		return fmt.Sprintf("%d-%v%s", length, id, stateSuffix)
	}
	return fmt.Sprintf("%d-%v-%016x%s", length, id, number, stateSuffix)
}

// parsed is what a name says.
type parsed struct {
	length     int
	id, parent ID
	state      bool
	number     uint64 // of a state, 0 = not known
}

// parseName reads a name; ok is false for that of another file.
func parseName(name string) (p parsed, ok bool) {
	stem, isKV := strings.CutSuffix(name, kvSuffix)
	if !isKV {
		stem, p.state = strings.CutSuffix(name, stateSuffix)
	}
	parts := strings.Split(stem, "-")
	if !isKV && !p.state || isKV && len(parts) != 3 || p.state && len(parts) != 2 && len(parts) != 3 {
		return p, false
	}
	var err error
	if p.state && len(parts) == 3 {
		if p.number, err = strconv.ParseUint(parts[2], 16, 64); err != nil || len(parts[2]) != 16 {
			return p, false
		}
		parts = parts[:2]
	}
	if p.length, err = strconv.Atoi(parts[0]); err != nil || p.length < 1 {
		return p, false
	}
	ids := []*ID{&p.id, &p.parent}
	for i, text := range parts[1:] {
		raw, err := hex.DecodeString(text)
		if err != nil || len(raw) != len(ID{}) {
			return p, false
		}
		*ids[i] = ID(raw)
	}
	return p, p.id != ID{}
}

// kind says what rows of features are, as Rows.Kind does.
type kind [32]byte

func kindOf(text string) (k kind) {
	copy(k[:], text)
	return k
}

func (k kind) String() string { return strings.TrimRight(string(k[:]), "\x00") }
