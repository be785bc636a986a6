package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/tandem-inference/tandem/services/gguf"
)

// trio names the model files of a cluster; draft and prefill may be empty.
type trio struct {
	target, draft, prefill string
}

// The models that ship with the project.
const (
	demoTarget  = "tandem-tiny-target-q4_k_m.gguf"
	demoDraft   = "tandem-tiny-draft-q8_0.gguf"
	demoPrefill = "tandem-tiny-prefill-q8_0.gguf"
)

// demoTrio finds the demonstration models: in TANDEM_MODELS_DIR, beside the program, or in the working directory.
func demoTrio() (trio, error) {
	var tried []string
	for _, dir := range modelDirs() {
		t := trio{filepath.Join(dir, demoTarget), filepath.Join(dir, demoDraft), filepath.Join(dir, demoPrefill)}
		if _, err := os.Stat(t.target); err == nil {
			return t, nil
		}
		tried = append(tried, dir)
	}
	return trio{}, fmt.Errorf("the demonstration models are not in any of %s; name their folder in TANDEM_MODELS_DIR",
		strings.Join(tried, ", "))
}

func modelDirs() []string {
	var dirs []string
	if dir := os.Getenv("TANDEM_MODELS_DIR"); dir != "" {
		dirs = append(dirs, dir)
	}
	if exe, err := os.Executable(); err == nil {
		bin := filepath.Dir(exe)
		dirs = append(dirs, filepath.Join(bin, "models"), filepath.Join(bin, "..", "models"),
			filepath.Join(bin, "..", "share", "tandem", "models"))
	}
	if dir, err := os.Getwd(); err == nil {
		dirs = append(dirs, filepath.Join(dir, "models"))
	}
	return dirs
}

// check opens the files and finds mistakes that a worker would report less clearly: swapped roles, cut files, models
// that do not belong together.
func (t trio) check() error {
	var problems []error
	target, err := readModel(t.target)
	switch {
	case err != nil:
		problems = append(problems, err) // and what is wrong with the others
	case target.Draft != nil:
		return fmt.Errorf("%s is a draft (%s); the target comes first, the draft after --draft", t.target, target.Arch)
	default:
		if err := target.CheckComplete(); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", t.target, err))
		}
	}
	if t.draft != "" {
		draft, err := readModel(t.draft)
		switch {
		case err != nil:
			problems = append(problems, fmt.Errorf("--draft: %w", err))
		case draft.Draft == nil:
			problems = append(problems, fmt.Errorf("--draft: %s is no DFlash draft but a %s model", t.draft, draft.Arch))
		case draft.Draft.CheckRuns() != nil:
			problems = append(problems, fmt.Errorf("--draft: %s %w", t.draft, draft.Draft.CheckRuns()))
		case target != nil && draft.Hidden != target.Hidden:
			problems = append(problems,
				fmt.Errorf("--draft: %s was trained for a target of hidden size %d, this one has %d", t.draft,
					draft.Hidden, target.Hidden))
		}
	}
	if t.prefill != "" {
		prefill, err := readModel(t.prefill)
		switch {
		case err != nil:
			problems = append(problems, fmt.Errorf("--prefill-drafter: %w", err))
		case prefill.Draft != nil:
			problems = append(problems,
				fmt.Errorf("--prefill-drafter: %s is a DFlash draft, a scorer is an ordinary small model", t.prefill))
		}
	}
	return errors.Join(problems...)
}

func readModel(path string) (*gguf.Model, error) {
	file, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return file.Model()
}
