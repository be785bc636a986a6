package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/tandem-inference/tandem/services/config"
	"github.com/tandem-inference/tandem/services/gguf"
)

// InspectCmd is tandem inspect.
type InspectCmd struct {
	File           string         `arg:"" type:"path" help:"GGUF file, of a sharded model the first; or folder of a safetensors draft."`
	MaxCtx         config.Context `was:"context" default:"auto" placeholder:"TOKENS" help:"Context length in tokens for the account of memory; auto = the model's."`
	Lanes          int            `was:"sequences" default:"1" help:"Requests at a time for the account of memory."`
	KVPositions    int            `name:"kv-positions" default:"0" help:"Positions of keys and values for all requests together, 0 = --lanes times --max-ctx, of automatic lanes at most 4 times, as far as memory allows."`
	Draft          string         `type:"path" placeholder:"PATH" help:"Draft to account for beside the target."`
	PrefillDrafter string         `type:"existingfile" placeholder:"PATH" help:"Scorer to account for beside the target."`
	DraftCacheType string         `name:"draft-cache-type" default:"f16" help:"Type of the draft's cached keys and values: ${kv_types}."`
	Memory         config.Size    `default:"0" placeholder:"SIZE" env:"-" help:"Memory of the device, for example 24GiB: says what fits; the status is 1 when nothing does. Draft and scorer count, when given."`
	CacheType      string         `was:"kv-type" default:"f16" env:"-" help:"Type of cached keys and values: ${kv_types}."`
}

// workspace estimates what activations and the draft's share need besides weights and caches. The engine plans exactly
// when it opens a file; this is what a person with a calculator would set aside.
func workspace(weights int64) int64 { return 64<<20 + weights/32 }

// Validate checks that the models are there, and the numbers.
func (c *InspectCmd) Validate() error {
	for _, path := range []string{c.File, c.Draft} {
		if _, err := os.Stat(path); path != "" && err != nil {
			return err
		}
	}
	if c.Lanes < 1 {
		return fmt.Errorf("--lanes: must be at least 1, got %d", c.Lanes)
	}
	if c.KVPositions < 0 || c.KVPositions > 0 && c.KVPositions < int(c.MaxCtx) {
		return fmt.Errorf("--kv-positions: must be 0 or at least --max-ctx, %d, got %d", c.MaxCtx, c.KVPositions)
	}
	return nil
}

// Run prints the summary.
func (c *InspectCmd) Run(e *env) error {
	file, err := gguf.Open(c.File)
	if err != nil {
		return err
	}
	defer file.Close()
	model, err := file.Model()
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(e.out, 0, 0, 2, ' ', 0)
	c.describe(w, file, model)
	fits := c.memory(w, model)
	if err := w.Flush(); err != nil {
		return err
	}
	if fits != nil {
		return fits
	}
	if err := model.CheckComplete(); err != nil {
		fmt.Fprintf(e.out, "\nIncomplete: %v\n", err)
	}
	return nil
}

func (c *InspectCmd) describe(w io.Writer, file *gguf.File, m *gguf.Model) {
	row := func(key, format string, args ...any) { fmt.Fprintf(w, "%s\t%s\n", key, fmt.Sprintf(format, args...)) }
	row("name", "%s", orDash(m.Name))
	row("architecture", "%s%s", m.Arch, servedAs(m))
	row("parameters", "%s in %d tensors, %s", count(m.Parameters), m.Tensors, config.Size(file.Size()).Human())
	row("layers", "%d (%d attention, %d Gated DeltaNet)", m.Layers, m.AttentionLayers(), m.Layers-m.AttentionLayers())
	row("hidden size", "%d", m.Hidden)
	row("feed-forward", "%s", m.FeedForwardLabel())
	row("attention", "%d query heads, %d and %d values per key and value head", m.Heads, m.KeyDim, m.ValueDim)
	row("vocabulary", "%d%s", m.Vocab, tied(m))
	row("context", "%d tokens", m.Context)
	if d := m.Draft; d != nil {
		row("draft", "block of %d tokens, reads target layers %v", d.BlockSize, d.TargetLayers)
	}
	row("chat template", "%s", yesNo(m.HasTemplate))
	var types []string
	for _, t := range m.Types {
		types = append(types, fmt.Sprintf("%s %s", t.Type, config.Size(t.Bytes).Human()))
	}
	row("stored as", "%s", strings.Join(types, ", "))
	if len(m.Uncomputed) > 0 {
		var names []string
		for _, t := range m.Uncomputed {
			names = append(names, fmt.Sprintf("%s (type %d)", t, uint32(t)))
		}
		row("not computed", "no engine of this build computes %s", strings.Join(names, ", "))
	}
	for _, group := range gguf.Groups {
		if bytes := m.GroupBytes[group]; bytes > 0 {
			row("  "+string(group), "%s", config.Size(bytes).Human())
		}
	}
}

// memory adds up what a run needs, draft and scorer included, and says what fits. It is an error when nothing does.
func (c *InspectCmd) memory(w io.Writer, m *gguf.Model) error {
	perToken, err := m.KVBytesPerToken(c.CacheType, c.CacheType)
	if err != nil {
		return fmt.Errorf("--cache-type: %w", err)
	}
	context := int(c.MaxCtx)
	if context == 0 {
		context = m.Context
	}
	lanes := int64(c.Lanes)
	positions := int64(context) * lanes
	if c.KVPositions > 0 {
		positions = int64(c.KVPositions)
		context = min(context, c.KVPositions)
	}
	fixed, spare := m.TensorBytes+lanes*m.StateBytes(), workspace(m.TensorBytes)
	fmt.Fprintln(w)
	fmt.Fprintf(w, "weights\t%s\n", config.Size(m.TensorBytes).Human())
	fmt.Fprintf(w, "recurrent state\t%s for %d request(s) at a time\n", config.Size(lanes*m.StateBytes()).Human(), lanes)
	if c.Draft != "" {
		draft, err := readModel(c.Draft)
		if err != nil {
			return fmt.Errorf("--draft: %w", err)
		}
		if draft.Draft == nil || draft.Hidden != m.Hidden {
			return fmt.Errorf("--draft: %s is no draft of this target", c.Draft)
		}
		if err := draft.Draft.CheckRuns(); err != nil {
			return fmt.Errorf("--draft: %s %w", c.Draft, err)
		}
		more, err := draft.KVBytesPerToken(c.DraftCacheType, c.DraftCacheType)
		if err != nil {
			return fmt.Errorf("--draft-cache-type: %w", err)
		}
		// A draft has the target's embedding and head besides its own weights.
		tables := m.GroupBytes[gguf.GroupEmbedding] + m.GroupBytes[gguf.GroupHead]
		fmt.Fprintf(w, "draft\t%s, with embedding and head of the target %s\n", config.Size(draft.TensorBytes).Human(),
			config.Size(draft.TensorBytes+tables).Human())
		fixed, spare, perToken = fixed+draft.TensorBytes+tables, spare+workspace(draft.TensorBytes), perToken+more
	}
	if c.PrefillDrafter != "" {
		scorer, err := readModel(c.PrefillDrafter)
		if err != nil {
			return fmt.Errorf("--prefill-drafter: %w", err)
		}
		fmt.Fprintf(w, "scorer\t%s, besides what a long prompt takes\n", config.Size(scorer.TensorBytes).Human())
		fixed, spare = fixed+scorer.TensorBytes, spare+workspace(scorer.TensorBytes)
	}
	cache := positions * perToken
	fmt.Fprintf(w, "keys and values\t%s for %d tokens of %s (%d bytes a token)\n", config.Size(cache).Human(),
		positions, c.CacheType, perToken)
	fmt.Fprintf(w, "together\t%s\n", config.Size(fixed+cache).Human())
	if c.Memory == 0 {
		return nil
	}
	room := int64(c.Memory) - fixed - spare
	switch {
	case room < 0 || perToken > 0 && room < perToken:
		return fmt.Errorf("does not fit in %s: weights and state alone need %s, besides %s to work in", c.Memory,
			config.Size(fixed).Human(), config.Size(spare).Human())
	case cache <= room || perToken == 0:
		fmt.Fprintf(w, "in %s\tfits, %s stay free (%s of it to work in)\n", c.Memory,
			config.Size(int64(c.Memory)-fixed-cache).Human(), config.Size(spare).Human())
	case room/perToken >= int64(context):
		fmt.Fprintf(w, "in %s\tfits with %d tokens for all requests together: --kv-positions %[2]d\n", c.Memory, room/perToken)
	default:
		fmt.Fprintf(w, "in %s\tfits with a context of %d tokens: --max-ctx %[2]d\n", c.Memory, room/perToken)
	}
	return nil
}

// count writes a number of parameters in millions or billions.
func count(n int64) string {
	if n >= 1e9 {
		return fmt.Sprintf("%.2f B", float64(n)/1e9)
	}
	return fmt.Sprintf("%.1f M", float64(n)/1e6)
}

func servedAs(m *gguf.Model) string {
	switch {
	case len(m.Uncomputed) > 0:
		return " (no engine of this build runs this file, see its types)"
	case m.Draft != nil && m.Draft.CheckRuns() != nil:
		return fmt.Sprintf(" (a %s draft: no engine of this build runs it)", m.Draft.Kind)
	case m.Draft != nil:
		return " (a DFlash draft: --draft)"
	case gguf.RunsTarget(m.Arch) && gguf.RunsScorer(m.Arch):
		return " (a target, or a scorer: --prefill-drafter)"
	case gguf.RunsTarget(m.Arch):
		return " (a target)"
	}
	return " (no engine of this build runs it)"
}

func tied(m *gguf.Model) string {
	if m.TiedHead {
		return " (head tied to the embedding)"
	}
	return ""
}

func orDash(s string) string {
	if s == "" {
		return "–"
	}
	return s
}

func yesNo(b bool) string {
	if b {
		return "in the file"
	}
	return "none in the file"
}
