package script

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/gguf"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/tokenizer"
)

// Opener opens engines that have the shapes of real model files and follow rules.
type Opener struct {
	// Rules is the path of the rules, empty = none: every answer then says so.
	Rules string
}

// OpenTarget implements engine.Opener, as do the methods below.
func (o Opener) OpenTarget(ctx context.Context, options engine.OpenOptions, p engine.Progress) (engine.Target, error) {
	fake, err := o.fake(engine.RoleTarget, &options)
	if err != nil {
		return nil, err
	}
	return fake.OpenTarget(ctx, options, p)
}

// OpenDraft opens a draft.
func (o Opener) OpenDraft(ctx context.Context, options engine.OpenOptions, p engine.Progress) (engine.Draft, error) {
	fake, err := o.fake(engine.RoleDraft, &options)
	if err != nil {
		return nil, err
	}
	return fake.OpenDraft(ctx, options, p)
}

// OpenScorer opens a scorer.
func (o Opener) OpenScorer(ctx context.Context, options engine.OpenOptions, p engine.Progress) (engine.Scorer, error) {
	fake, err := o.fake(engine.RoleScore, &options)
	if err != nil {
		return nil, err
	}
	return fake.OpenScorer(ctx, options, p)
}

// fake returns the opener of a fake that has the shape of the model at options.ModelPath and follows the rules.
func (o Opener) fake(role engine.Role, options *engine.OpenOptions) (*enginefake.Opener, error) {
	var rules []Rule
	if o.Rules != "" {
		var err error
		if rules, err = Load(o.Rules); err != nil {
			return nil, rpcerr.InvalidArgument("script", "%v", err)
		}
	}
	fake := enginefake.Options{CheckFile: checkFile, FuseLayers: fuseLayers, Backend: "scripted"}
	// A path of no file is refused by the fake, after the options themselves.
	if checkFile("model_path", options.ModelPath) == nil {
		if err := shape(&fake, role, options, rules); err != nil {
			return nil, err
		}
	}
	return enginefake.New(fake), nil
}

func checkFile(field, path string) error {
	if path == "" {
		return rpcerr.InvalidArgument(field, "is empty")
	}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return rpcerr.NotFound("%s: no such file: %s", field, path)
	} else if err != nil {
		return rpcerr.InvalidArgument(field, "%v", err)
	}
	return nil
}

// shape takes the shapes of the model at options.ModelPath over.
func shape(fake *enginefake.Options, role engine.Role, options *engine.OpenOptions, rules []Rule) error {
	file, model, err := open("model_path", options.ModelPath)
	if err != nil {
		return err
	}
	defer file.Close()
	fake.Arch, fake.Name = model.Arch, model.Name
	fake.Layers, fake.Hidden, fake.Context, fake.Vocab = model.Layers, model.Hidden, model.Context, model.Vocab
	fake.Truncatable = true
	for _, recurrent := range model.Recurrent {
		fake.Truncatable = fake.Truncatable && !recurrent
	}
	switch role {
	case engine.RoleScore:
		return nil
	case engine.RoleDraft:
		if options.TablesPath == "" || checkFile("tables_path", options.TablesPath) != nil {
			return nil // the fake refuses it
		}
		return shapeDraft(fake, model, options.TablesPath)
	}
	tok, err := tokenizer.FromGGUF(file)
	if err != nil {
		return rpcerr.InvalidArgument("model_path", "%s: %v", options.ModelPath, err)
	}
	fake.Vocab = tok.VocabSize()
	fake.Text = NewModel(tok, rules)
	return nil
}

func shapeDraft(fake *enginefake.Options, model *gguf.Model, tablesPath string) error {
	if model.Draft == nil || len(model.Draft.TargetLayers) == 0 {
		return rpcerr.InvalidArgument("model_path", "is not a draft that names the layers it reads")
	}
	file, target, err := open("tables_path", tablesPath)
	if err != nil {
		return err
	}
	defer file.Close()
	fake.Vocab, fake.BlockSize, fake.MaskToken = target.Vocab, model.Draft.BlockSize, int32(max(model.Draft.MaskToken, 0))
	fake.CaptureLayers = layers(model)
	// A draft only reads hints, for which it needs the size of the vocabulary.
	fake.Text = &Model{vocab: target.Vocab}
	return nil
}

func layers(model *gguf.Model) []int32 {
	var out []int32
	for _, l := range model.Draft.TargetLayers {
		out = append(out, int32(l))
	}
	return out
}

// fuseLayers reads the layers that the projection of a draft captures.
func fuseLayers(path string) ([]int32, error) {
	file, model, err := open("path", path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if model.Draft == nil || len(model.Draft.TargetLayers) == 0 {
		return nil, rpcerr.InvalidArgument("path", "%s is not of a draft that names the layers it reads", path)
	}
	return layers(model), nil
}

func open(field, path string) (*gguf.File, *gguf.Model, error) {
	file, err := gguf.Open(path)
	if err != nil {
		return nil, nil, rpcerr.InvalidArgument(field, "%v", err)
	}
	model, err := file.Model()
	if err != nil {
		file.Close()
		return nil, nil, rpcerr.InvalidArgument(field, "%v", err)
	}
	return file, model, nil
}
