// Package reference reads the reference outputs of tests/testdata/golden.
package reference

import (
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/tandem-inference/tandem/tests/cluster"
)

// Read decodes a JSON file of that folder into v, also a compressed one (.json.gz).
func Read(name string, v any) error {
	root, err := cluster.Root()
	if err != nil {
		return err
	}
	file, err := os.Open(filepath.Join(root, "tests", "testdata", "golden", name))
	if err != nil {
		return err
	}
	defer file.Close()
	var data io.Reader = file
	if strings.HasSuffix(name, ".gz") {
		if data, err = gzip.NewReader(file); err != nil {
			return err
		}
	}
	return json.NewDecoder(data).Decode(v)
}
