package app

import (
	"os"
	"sync"

	"github.com/tandem-inference/tandem/gateway/internal/emit"
	"github.com/tandem-inference/tandem/gateway/internal/model"
	"github.com/tandem-inference/tandem/gateway/internal/modelcard"
	"github.com/tandem-inference/tandem/gateway/internal/turn"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/telemetry"
	"github.com/tandem-inference/tandem/services/tokenizer"
	"go.uber.org/zap"
)

// budgets finds the card of the served model and resolves what holds for it. It implements turn.Budgets.
type budgets struct {
	cfg     Config
	context func() int // of the workers, 0 = none has joined
	log     *zap.Logger

	mu       sync.Mutex // guards the rest
	model    *model.Model
	found    *modelcard.Found
	maxCtx   int
	envelope modelcard.Envelope
}

func newBudgets(cfg Config, context func() int, log *zap.Logger) *budgets {
	return &budgets{cfg: cfg, context: context, log: log}
}

// Envelope returns what holds for a model in the context that workers offer now.
func (b *budgets) Envelope(m *model.Model) modelcard.Envelope {
	ctx := m.Limit(b.context())
	b.mu.Lock()
	defer b.mu.Unlock()
	if m != b.model {
		b.found = b.card(m)
	}
	if m != b.model || ctx != b.maxCtx {
		var notes []string
		b.envelope, notes = modelcard.Resolve(b.found, m.Arch, b.overrides(), ctx)
		for _, note := range notes {
			b.log.Info(note, zap.String("source", b.envelope.Source), zap.Int("max_ctx", ctx))
		}
	}
	b.model, b.maxCtx = m, ctx
	return b.envelope
}

// card finds the card of a model; one that cannot be used is a warning.
func (b *budgets) card(m *model.Model) *modelcard.Found {
	var found *modelcard.Found
	var err error
	if b.cfg.ModelCard != "" {
		found, err = modelcard.Read(b.cfg.ModelCard)
	} else {
		exe, _ := os.Executable()
		found, err = modelcard.Lookup(m.GeneralName,
			modelcard.Dirs(b.cfg.ModelCardDir, os.Getenv("TANDEM_MODEL_CARDS_DIR"), exe))
	}
	if err != nil {
		b.log.Warn("the model card is not used", zap.NamedError(telemetry.KeyErr, err))
		return nil
	}
	if found != nil {
		for _, w := range found.Warnings {
			b.log.Warn("a part of the model card is not used", zap.NamedError(telemetry.KeyErr, w))
		}
		b.log.Info("model card found", zap.String(telemetry.KeyModel, m.Name), zap.String("card", found.Path))
	}
	return found
}

func (b *budgets) overrides() modelcard.Overrides {
	c := b.cfg
	return modelcard.Overrides{
		MaxTokens: c.DefaultMaxTokens, ThinkMax: c.ThinkMaxTokens, ReplyBudget: c.HardLimitReplyBudget,
		Tiers: [len(modelcard.Efforts)]*int{c.ReasoningEffortLow, c.ReasoningEffortMedium, c.ReasoningEffortHigh,
			c.ReasoningEffortXHigh, c.ReasoningEffortMax},
	}
}

// DefaultMaxTokens implements turn.Budgets.
func (b *budgets) DefaultMaxTokens(m *model.Model) int {
	e := b.Envelope(m)
	return e.MaxTokens
}

// Sampling implements turn.Budgets.
func (b *budgets) Sampling(m *model.Model) *tandemv1.Sampling {
	if e := b.Envelope(m); e.Card != nil {
		return e.Card.Sampling
	}
	return nil
}

// Budget implements turn.Budgets.
func (b *budgets) Budget(m *model.Model, t turn.Thinking) (turn.Budget, error) {
	e := b.Envelope(m)
	settings := modelcard.Settings{Effort: t.Effort, Budget: t.BudgetTokens, ReplyBudget: t.ReplyBudget}
	closing := []int32{m.ThinkClose}
	sequence := closing
	if e.Card != nil && e.Card.ThinkingTerminatorHint != "" {
		sequence = m.Tokenizer.Encode(e.Card.ThinkingTerminatorHint, tokenizer.Options{ParseSpecial: true})
	}
	var opening []int32
	if m.ThinkOpen != emit.None {
		opening = []int32{m.ThinkOpen}
	}
	return turn.Budget{
		DefaultMaxTokens: e.DefaultMaxTokens(true, settings),
		Reasoning: func(maxTokens int, inside bool) *tandemv1.Reasoning {
			limit := e.Budget(maxTokens, settings)
			return &tandemv1.Reasoning{
				Open: opening, Close: closing, Inside: inside, Budget: int32(limit.Think), Reserve: int32(limit.Reserve),
				CloseSequence: sequence,
			}
		},
	}, nil
}
