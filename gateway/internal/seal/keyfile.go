package seal

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// ReadOrCreate reads the key in a file of 64 hexadecimal digits. A missing file is made, readable by its owner only; of
// several gateways that start at once one makes it and all use it.
func ReadOrCreate(path string) (Key, error) {
	key, err := read(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return Key{}, err
	}
	key = NewKey()
	tmp, err := os.CreateTemp(filepath.Dir(path), ".key-*")
	if err != nil {
		return Key{}, err
	}
	defer os.Remove(tmp.Name())
	_, err = fmt.Fprintf(tmp, "%x\n", key[:])
	if err = errors.Join(err, tmp.Close()); err != nil {
		return Key{}, err
	}
	// A link, unlike a rename, never replaces the file of a gateway that was faster.
	if err := os.Link(tmp.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return Key{}, err
	}
	return read(path)
}

func read(path string) (key Key, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return key, err
	}
	raw, err := hex.DecodeString(strings.TrimSpace(string(data)))
	if err != nil || len(raw) != KeyBytes {
		return key, fmt.Errorf("%s does not hold a key of %d hexadecimal digits", path, 2*KeyBytes)
	}
	return Key(raw), nil
}
