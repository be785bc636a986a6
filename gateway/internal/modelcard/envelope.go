package modelcard

import (
	"fmt"
	"slices"
)

// Overrides are values of flags; nil = not given.
type Overrides struct {
	MaxTokens   *int // --default-max-tokens
	ThinkMax    *int // --think-max-tokens
	ReplyBudget *int // --hard-limit-reply-budget, 0 turns forced closing off
	Tiers       [len(Efforts)]*int
}

// Envelope is what holds for a model: card, family, fallback and flags resolved.
type Envelope struct {
	// Source of what no flag gave: the card's path, "family:NAME" or "hard-fallback".
	Source string
	Card   *Card // nil = none
	// MaxTokens is the output limit of requests that give none (N of the length arithmetic starts from it).
	MaxTokens int
	// ReplyBudget is kept for the reply when reasoning runs long; 0 = reasoning is never closed by force.
	ReplyBudget int
	// ThinkMax is the largest reasoning budget; ThinkMaxGiven: a flag said so, and it binds the tiers' budget numbers too.
	ThinkMax      int
	ThinkMaxGiven bool
	// Tiers are reasoning budgets by effort, ascending.
	Tiers [len(Efforts)]int
}

type family struct{ maxTokens, reply int }

// families are the limits by architecture. TestFamiliesThatRun says which of them no engine runs yet.
var families = map[string]family{
	"qwen35": {32768, 4096}, "qwen35moe": {32768, 4096}, "qwen3": {32768, 4096}, "gemma4": {16384, 4096},
	"laguna": {32768, 4096},
}

var fallback = family{16000, 4096}

// Resolve combines flags, card (nil = none), the family of arch and the fallback. maxCtx is the context that workers
// offer, 0 = unknown. notes are changes of configured values, to be logged.
func Resolve(f *Found, arch string, o Overrides, maxCtx int) (e Envelope, notes []string) {
	base, ok := families[arch]
	e.Source = "family:" + arch
	if !ok {
		base, e.Source = fallback, "hard-fallback"
	}
	e.MaxTokens, e.ReplyBudget = base.maxTokens, base.reply
	complexMax := 0
	if f != nil {
		e.Card, e.Source = f.Card, f.Path
		e.MaxTokens = f.MaxTokens
		if f.HardLimitReplyBudget > 0 {
			e.ReplyBudget = f.HardLimitReplyBudget
		}
		complexMax = f.ComplexProblemMaxTokens
		e.Tiers = f.Tiers
	}
	if o.MaxTokens != nil {
		e.MaxTokens = *o.MaxTokens
	}
	if o.ReplyBudget != nil {
		e.ReplyBudget = *o.ReplyBudget
	}
	reply := e.ReplyBudget
	if reply > 0 && reply >= e.MaxTokens {
		reply = max(1, e.MaxTokens/4)
		notes = append(notes, fmt.Sprintf("the reply budget %d leaves no room for reasoning in %d tokens: lowered to %d",
			e.ReplyBudget, e.MaxTokens, reply))
		e.ReplyBudget = reply
	}
	e.ThinkMax = max(1, e.MaxTokens-reply)
	complexThink := e.ThinkMax
	if complexMax > 0 {
		complexThink = max(1, complexMax-reply)
	}
	if o.ThinkMax != nil {
		e.ThinkMax, e.ThinkMaxGiven = *o.ThinkMax, true
		if complexMax == 0 {
			complexThink = e.ThinkMax
		}
	}
	derived := [len(Efforts)]int{roundHalfUp(e.ThinkMax, 1, 8), roundHalfUp(e.ThinkMax, 1, 2), e.ThinkMax,
		(e.ThinkMax + complexThink) / 2, complexThink}
	for i, name := range Efforts {
		configured := e.Tiers[i] > 0
		if o.Tiers[i] != nil {
			e.Tiers[i], configured = *o.Tiers[i], true
		}
		if !configured {
			e.Tiers[i] = max(1, derived[i])
		}
		was := e.Tiers[i]
		if i > 0 {
			e.Tiers[i] = max(e.Tiers[i], e.Tiers[i-1])
		}
		if maxCtx > 0 {
			e.Tiers[i] = min(e.Tiers[i], max(1, maxCtx-reply))
		}
		if configured && e.Tiers[i] != was {
			notes = append(notes, fmt.Sprintf("the budget of effort %s is %d instead of %d", name, e.Tiers[i], was))
		}
	}
	return e, notes
}

// roundHalfUp is round(x·num/den), halves up.
func roundHalfUp(x, num, den int) int { return (2*x*num + den) / (2 * den) }

// Effort gives the tier's name of an effort as clients spell it: minimal is low, unknown names are high.
func Effort(name string) string {
	switch name {
	case "minimal":
		return "low"
	case "xhigh", "very_high":
		return "x-high"
	}
	if slices.Contains(Efforts[:], name) {
		return name
	}
	return "high"
}

// Tier is the reasoning budget of an effort.
func (e *Envelope) Tier(effort string) int { return e.Tiers[slices.Index(Efforts[:], Effort(effort))] }

// Settings are a request's settings of its reasoning. Zero or nil = nothing.
type Settings struct {
	Effort      string
	Budget      int // thinking.budget_tokens or thinking_budget
	ReplyBudget *int
}

// Budget bounds the reasoning of one request.
type Budget struct {
	// Think is the number of reasoning tokens, markers included, after which closing is forced (K).
	Think int
	// Reserve is the number of output tokens kept for the reply (R); 0 = closing is never forced.
	Reserve int
}

// DefaultMaxTokens is the output limit of a request without max_tokens (D): large enough for the budget of its effort
// and a reply after it.
func (e *Envelope) DefaultMaxTokens(thinking bool, w Settings) int {
	if !thinking {
		return e.MaxTokens
	}
	return max(e.MaxTokens, e.cap(w)+e.ReplyBudget)
}

// cap is the reasoning budget before the output limit is known.
func (e *Envelope) cap(w Settings) int {
	if w.Budget > 0 {
		limit := e.ThinkMax
		if !e.ThinkMaxGiven {
			limit = max(limit, e.Tiers[len(Efforts)-1])
		}
		return min(w.Budget, limit)
	}
	return e.Tier(w.Effort)
}

// Budget resolves a request's settings for an output limit of n tokens.
func (e *Envelope) Budget(n int, w Settings) Budget {
	r := e.ReplyBudget
	if w.ReplyBudget != nil {
		r = min(r, *w.ReplyBudget)
	}
	if r > 0 && n <= r+64 {
		r = n / 4 // small requests still get an answer
	}
	return Budget{Think: max(0, min(e.cap(w), n-r)), Reserve: r}
}
