package modelcard

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
)

// shipped are the cards that come with the program; files of the same name in a card directory win over them.
//
//go:embed cards/*.json
var shipped embed.FS

// Found is a card with the place it came from.
type Found struct {
	*Card
	// Path of the file as it is reported: relative to the working directory where that is shorter, or "built-in/NAME".
	Path     string
	Warnings []error
}

// Dirs are the directories in which cards are looked up, in order: flag, environment variable TANDEM_MODEL_CARDS_DIR,
// then share/model_cards beside and one above the executable and in the working directory. Empty arguments are
// left out.
func Dirs(flag, env, executable string) []string {
	var dirs []string
	for _, d := range []string{flag, env} {
		if d != "" {
			dirs = append(dirs, d)
		}
	}
	if executable != "" {
		dir := filepath.Dir(executable)
		dirs = append(dirs, filepath.Join(dir, "share", "model_cards"),
			filepath.Join(filepath.Dir(dir), "share", "model_cards"))
	}
	return append(dirs, filepath.Join("share", "model_cards"))
}

// Lookup finds the card of a model by its general.name. It returns nil when there is none; a file that exists and
// cannot be used is an error that names it.
func Lookup(model string, dirs []string) (*Found, error) {
	name := FileName(model)
	if name == ".json" {
		return nil, nil
	}
	for _, d := range dirs {
		file := filepath.Join(d, name)
		data, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("model card: %w", err)
		}
		return found(data, display(file))
	}
	data, err := shipped.ReadFile(path.Join("cards", name))
	if err != nil {
		return nil, nil
	}
	return found(data, "built-in/"+name)
}

// Read reads the card that an operator named.
func Read(file string) (*Found, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("model card: %w", err)
	}
	return found(data, display(file))
}

func found(data []byte, where string) (*Found, error) {
	c, warnings, err := Parse(data)
	for i, w := range warnings {
		warnings[i] = fmt.Errorf("model card %s: %w", where, w)
	}
	if err != nil {
		return nil, errors.Join(append(warnings, fmt.Errorf("model card %s: %w", where, err))...)
	}
	return &Found{Card: c, Path: where, Warnings: warnings}, nil
}

// display shortens a path for reports.
func display(file string) string {
	wd, err := os.Getwd()
	if err != nil {
		return file
	}
	if rel, err := filepath.Rel(wd, file); err == nil && filepath.IsLocal(rel) {
		return rel
	}
	return file
}
