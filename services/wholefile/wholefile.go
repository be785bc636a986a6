// Package wholefile writes files that are whole or not there.
package wholefile

import (
	"errors"
	"os"
	"path/filepath"
)

// Write gives a file of mode 0600 its name once it is complete. What had the name stays when it fails.
func Write(path string, data []byte) error {
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		_ = os.Remove(file.Name())
	}
	return err
}
