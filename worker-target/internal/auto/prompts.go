package auto

import "time"

// promptCosts are the times of prompt rows. A step of both kinds of rows takes the time of its rounds plus the time
// that the prompt rows add; both are learnt from every step. Guarded by Model.mu.
type promptCosts struct {
	alone      times // of steps of prompt rows only
	withRounds times // what they add to a step of rounds
}

// promptTime is the expected time of prompt rows, 0 when no step was ever seen. Rows that were not measured with
// rounds are assumed to add their time alone; rows that were never measured, the time of as many rows of rounds, which
// is too long on GPUs and corrected by the first pieces.
func (m *Model) promptTime(rows, length int, withRounds bool) float64 {
	switch p := &m.prompts; {
	case withRounds && p.withRounds.table(length) != nil:
		return p.withRounds.step(rows, length)
	case p.alone.table(length) != nil:
		return p.alone.step(rows, length)
	}
	return m.costs.step(rows, length)
}

// Prompt is the expected time of rows of prompts: of a step of their own, or what they add to one of rounds.
func (m *Model) Prompt(rows, length int, withRounds bool) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Duration(m.promptTime(rows, length, withRounds) * float64(time.Second))
}

// SetPrompt stores a calibrated time of a step of rows rows of a prompt on a short context.
func (m *Model) SetPrompt(rows int, d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.prompts.alone.set(rows, d.Seconds())
}

// ObservePrompt learns from a step that had rows of prompts: it took so long, or so much longer than its rounds alone
// are expected to.
func (m *Model) ObservePrompt(rows, length int, withRounds bool, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := &m.prompts.alone
	if withRounds {
		t = &m.prompts.withRounds
	}
	if t.table(length) == nil {
		own := &t.verify[bucket(length)]
		for i, r := range rowBins {
			if own[i] = m.promptTime(r, length, false); own[i] == 0 {
				own[i] = took.Seconds() * max(1, float64(r)/float64(rows))
			}
		}
	}
	// Where the rounds took the whole time, the prompt rows were nearly free.
	t.observeStep(rows, length, max(took.Seconds(), leastPromptShare*m.promptTime(rows, length, false)))
}

// leastPromptShare of their time alone is the least that rows of prompts are taken to add.
const leastPromptShare = 0.1
