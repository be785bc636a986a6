package hub

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-inference/tandem/services/config"
)

// Ref names a model: OWNER/NAME, or with a file or the name of a quantisation OWNER/NAME:CHOICE.
type Ref struct{ Repo, Choice string }

var refForm = regexp.MustCompile(`^([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::([\w.+/-]+))?$`)

// ParseRef reads a reference.
func ParseRef(text string) (Ref, bool) {
	found := refForm.FindStringSubmatch(text)
	if found == nil || found[2] != "" && !safePath(found[2]) || strings.Contains(found[1], "..") {
		return Ref{}, false
	}
	return Ref{found[1], found[2]}, true
}

func (r Ref) String() string {
	if r.Choice == "" {
		return r.Repo
	}
	return r.Repo + ":" + r.Choice
}

// Model is a model file, or the files of one that is split.
type Model struct{ Files []File }

// Path names the model: the first of its files.
func (m Model) Path() string { return m.Files[0].Path }

// Size is that of all files.
func (m Model) Size() (n int64) {
	for _, f := range m.Files {
		n += f.Size
	}
	return n
}

var splitName = regexp.MustCompile(`^(.*)-([0-9]{5})-of-([0-9]{5})\.gguf$`)

// Models finds the GGUF models among files. One that lacks a part is none.
func Models(files []File) []Model {
	var models []Model
	parts := map[string][]File{}
	for _, f := range files {
		switch split := splitName.FindStringSubmatch(f.Path); {
		case split != nil:
			name := split[1] + "/" + split[3]
			parts[name] = append(parts[name], f)
		case strings.HasSuffix(f.Path, ".gguf"):
			models = append(models, Model{[]File{f}})
		}
	}
	for name, files := range parts {
		slices.SortFunc(files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
		total, _ := strconv.Atoi(path.Base(name))
		if len(files) == total && strings.Contains(files[0].Path, "-00001-of-") {
			models = append(models, Model{files})
		}
	}
	slices.SortFunc(models, func(a, b Model) int { return strings.Compare(a.Path(), b.Path()) })
	return models
}

var (
	draftName = regexp.MustCompile(`(?i)dflash|(^|[-_.])draft([-_.]|$)`)
	// otherName is of files that are no language models by themselves.
	otherName = regexp.MustCompile(`(?i)^mmproj|[-_.]mmproj|imatrix`)
)

// IsDraft says whether a model calls itself a draft.
func (m Model) IsDraft() bool { return draftName.MatchString(path.Base(m.Path())) }

// quantisation is the part of a name like Q4_K_M.
var quantisation = regexp.MustCompile(`(?i)(?:^|[-_.])((?:UD-)?(?:I?Q[0-9]\w*|BF16|F16|F32|TQ[0-9]\w*|MXFP4\w*))(?:-[0-9]{5}-of-[0-9]{5})?\.gguf$`)

func (m Model) quantisation() string {
	if found := quantisation.FindStringSubmatch(path.Base(m.Path())); found != nil {
		return strings.ToUpper(found[1])
	}
	return ""
}

// Choose returns the model that choice means: its path, its file's name, or the name of its quantisation. Without a
// choice there must be only one that is no draft. The error lists what there is.
func Choose(repo string, models []Model, choice string) (Model, error) {
	var fit []Model
	for _, m := range models {
		name := path.Base(m.Path())
		switch {
		case m.Path() == choice || name == choice && choice != "":
			return m, nil
		case otherName.MatchString(name):
		case choice == "" && !m.IsDraft():
			fit = append(fit, m)
		case choice != "" && (strings.EqualFold(m.quantisation(), choice) ||
			strings.EqualFold(strings.TrimSuffix(name, ".gguf"), choice)):
			fit = append(fit, m)
		}
	}
	// A draft is named in full where a target has the same quantisation.
	if len(fit) > 1 && choice != "" {
		fit = slices.DeleteFunc(slices.Clone(fit), Model.IsDraft)
	}
	if len(fit) == 1 {
		return fit[0], nil
	}
	var b strings.Builder
	switch {
	case len(models) == 0:
		return Model{}, fmt.Errorf("%s has no GGUF file", repo)
	case choice == "":
		fmt.Fprintf(&b, "%s has several models, choose one:", repo)
	case len(fit) > 1:
		fmt.Fprintf(&b, "%s has several models called %s, choose one:", repo, choice)
		models = fit
	default:
		fmt.Fprintf(&b, "%s has no model %s, but:", repo, choice)
	}
	for _, m := range models {
		note := ""
		if m.IsDraft() {
			note = "  (a draft)"
		}
		fmt.Fprintf(&b, "\n  %s:%s  %s%s", repo, m.Path(), config.Size(m.Size()).Human(), note)
	}
	return Model{}, fmt.Errorf("%s", b.String())
}

// DraftFor finds the draft that lies beside a target: the only one, or the one of its quantisation.
func DraftFor(target Model, models []Model) (Model, bool) {
	drafts := slices.DeleteFunc(slices.Clone(models), func(m Model) bool {
		return !m.IsDraft() ||
			m.Path() == target.Path()
	})
	if len(drafts) > 1 {
		drafts = slices.DeleteFunc(drafts, func(m Model) bool { return m.quantisation() != target.quantisation() })
	}
	if len(drafts) != 1 {
		return Model{}, false
	}
	return drafts[0], true
}
