package hub

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Store is a folder of models: OWNER/NAME/FILE, as the hub calls them.
type Store struct{ Dir string }

// DefaultDir is where models are kept unless told otherwise.
func DefaultDir() (string, error) {
	dir := os.Getenv("XDG_DATA_HOME")
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("--model-store: %w", err)
		}
		dir = filepath.Join(home, ".local", "share")
	}
	return filepath.Join(dir, "tandem", "models"), nil
}

// Path is where a file of a repository lies.
func (s Store) Path(repo, path string) string {
	return filepath.Join(s.Dir, filepath.FromSlash(repo), filepath.FromSlash(path))
}

// ErrMissing means that a model was not pulled.
var ErrMissing = errors.New("is not there")

// Find returns the path of a pulled model, of a split one that of the first file.
func (s Store) Find(ref Ref) (string, error) {
	root := filepath.Join(s.Dir, filepath.FromSlash(ref.Repo))
	var files []File
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		relative, err := filepath.Rel(root, path)
		files = append(files, File{Path: filepath.ToSlash(relative)})
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	models := Models(files)
	if len(models) > 0 {
		for i := range models { // for the list of Choose
			for j := range models[i].Files {
				if info, err := os.Stat(s.Path(ref.Repo, models[i].Files[j].Path)); err == nil {
					models[i].Files[j].Size = info.Size()
				}
			}
		}
		model, err := Choose(ref.Repo, models, ref.Choice)
		if err == nil {
			return s.Path(ref.Repo, model.Path()), nil
		}
		if ref.Choice == "" {
			return "", err
		}
	}
	return "", fmt.Errorf("%s %w in %s: tandem pull %s", ref, ErrMissing, s.Dir, ref)
}
