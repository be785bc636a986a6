package app

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/tandem-inference/tandem/gateway/internal/cluster"
	"github.com/tandem-inference/tandem/gateway/internal/model"
	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	"github.com/tandem-inference/tandem/services/telemetry"
	"github.com/tandem-inference/tandem/services/tokenizer"
	"go.uber.org/zap"
)

// models loads tokenizer and template of the served model, and the scorer's tokenizer: from the configured files, else
// from the paths that workers report.
type models struct {
	cfg     Config
	version string
	cluster *cluster.Cluster
	log     *zap.Logger

	target atomic.Pointer[model.Model]
	scorer atomic.Pointer[tokenizer.Tokenizer]
	tried  chan struct{} // closed when a worker's model was loaded for the first time, or could not be
	// What is loaded, to notice changes; used by run's goroutine only.
	targetDigest, scorerPath string
}

func newModels(cfg Config, version string, c *cluster.Cluster, log *zap.Logger) *models {
	return &models{cfg: cfg, version: version, cluster: c, log: log, tried: make(chan struct{})}
}

// loadConfigured reads the files that the configuration names.
func (m *models) loadConfigured() error {
	if m.cfg.Model != "" {
		if err := m.load(m.cfg.Model, "", 0); err != nil {
			return fmt.Errorf("--model: %w", err)
		}
	}
	if m.cfg.PrefillDrafter != "" {
		tok, err := model.LoadTokenizer(m.cfg.PrefillDrafter)
		if err != nil {
			return fmt.Errorf("--prefill-drafter: %w", err)
		}
		m.scorer.Store(tok)
	}
	return nil
}

// load reads a model file and serves with it. vocab is the width of the target's logits, 0 = unknown: a tokenizer of
// another width would feed the target nonsense.
func (m *models) load(path, digest string, vocab int) error {
	mod, err := model.Load(model.Options{Path: path, Name: m.cfg.ModelName,
		TemplateFile: m.cfg.ChatTemplateFile, Digest: digest,
		Version: m.version, Logger: m.log})
	if err != nil {
		return err
	}
	if v := mod.Tokenizer.VocabSize(); vocab > 0 && v != vocab {
		return fmt.Errorf("%s has a vocabulary of %d tokens, the target worker's model %d", path, v, vocab)
	}
	m.target.Store(mod)
	m.log.Info("tokenizer and chat template loaded", zap.String(telemetry.KeyModel, mod.Name),
		zap.String("template", mod.TemplateSource))
	return nil
}

// served returns the model, or the answer that requests get while there is none.
func (m *models) served() (*model.Model, error) {
	if mod := m.target.Load(); mod != nil {
		return mod, nil
	}
	return nil, reqerr.NoWorker(
		"no model is loaded: no target worker has joined, or its model file cannot be read here")
}

// await is served for requests: while no target has ever been ready, it waits for one as others wait for a slot.
func (m *models) await(ctx context.Context) (*model.Model, error) {
	if mod, err := m.served(); err == nil {
		return mod, nil
	}
	if err := m.cluster.Targets.Await(ctx, cluster.Demand{}); err != nil {
		return nil, cmp.Or(context.Cause(ctx), err)
	}
	select {
	case <-m.tried:
		return m.served()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (m *models) scorerTokenizer() *tokenizer.Tokenizer { return m.scorer.Load() }

// run follows the cluster until ctx is done.
func (m *models) run(ctx context.Context) error {
	var once sync.Once
	for {
		target, scorer, changed := m.cluster.Active()
		if target != nil {
			if key := cmp.Or(target.GetDigest(), target.GetPath()); key != m.targetDigest {
				// A configured file stays; the digest still goes into the fingerprint.
				err := m.load(cmp.Or(m.cfg.Model, target.GetPath()), target.GetDigest(), int(target.GetVocab()))
				if err == nil {
					m.targetDigest = key
				} else {
					// Better no answers than answers in the wrong vocabulary. Tried again when the workers change.
					m.target.Store(nil)
					m.targetDigest = ""
					m.log.Error("no requests are served: the model's tokenizer cannot be used; name a readable file with --model",
						zap.NamedError(telemetry.KeyErr, err))
				}
			}
			once.Do(func() { close(m.tried) })
		}
		if path := scorer.GetPath(); path != "" && path != m.scorerPath && m.cfg.PrefillDrafter == "" {
			m.scorerPath = path
			if tok, err := model.LoadTokenizer(path); err != nil {
				m.log.Error("the scorer's tokenizer cannot be read; name a readable file with --prefill-drafter",
					zap.NamedError(telemetry.KeyErr, err))
			} else {
				m.scorer.Store(tok)
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}
