package decode

import (
	"context"
	"time"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/worker-target/internal/auto"
)

const (
	// calibrateContext is the length of the sequence on which steps are timed.
	calibrateContext = 64
	// calibrateTime ends the calibration of a slow machine early; what is missing is extrapolated and then learnt.
	calibrateTime = 1500 * time.Millisecond
	repeats       = 3
)

// calibrated are the timed row counts, calibratedPrompts those of prompts.
var (
	calibrated        = [...]int{1, 2, 4, 8, 16, 24, 32}
	calibratedPrompts = [...]int{64, 256}
)

// Calibrate times verify steps of several widths and steps of prompts on an idle engine, so that the first request
// already chooses well.
func Calibrate(ctx context.Context, e engine.Target, model *auto.Model) error {
	info := e.Info()
	seq, err := e.NewSequence(ctx)
	if err != nil {
		return err
	}
	defer e.FreeSequence(context.WithoutCancel(ctx), seq)
	step := engine.Step{Groups: make([]engine.Group, 1)}
	var result engine.StepResult
	fill := func(n, position int, want uint32, kind engine.GroupKind, commit bool) {
		step.Groups[0] = engine.Group{Sequence: seq, Rows: n, Kind: kind, Commit: commit}
		step.Rows = step.Rows[:0]
		for i := range n {
			step.Rows = append(step.Rows, engine.Row{
				Token: int32((position + i*37) % info.Vocab), Position: int32(position + i), Parent: int32(i - 1), Want: want,
				Mask: -1,
			})
		}
	}
	length := min(calibrateContext, info.MaxBatchRows, info.MaxContext/2)
	fill(length, 0, 0, engine.KindDecode, true)
	if err := e.Step(ctx, &step, &result); err != nil {
		return err
	}
	begin := time.Now()
	for _, rows := range calibrated {
		if rows > min(info.MaxTreeRows, info.MaxBatchRows, info.MaxContext-length) ||
			rows > 8 && time.Since(begin) > calibrateTime {
			break
		}
		// The shortest of a few: other programs only ever add time.
		best := time.Duration(0)
		for range repeats {
			fill(rows, length, engine.WantToken, engine.KindDecode, false)
			d, err := timed(ctx, e, &step, &result)
			if err != nil {
				return err
			}
			if best == 0 || d < best {
				best = d
			}
		}
		model.SetVerify(rows, best)
	}
	for _, rows := range calibratedPrompts {
		if rows > min(info.MaxBatchRows, info.MaxContext-length) || time.Since(begin) > calibrateTime {
			break
		}
		fill(rows, length, 0, engine.KindPrompt, true)
		d, err := timed(ctx, e, &step, &result)
		if err != nil {
			return err
		}
		length += rows
		model.SetPrompt(rows, d)
	}
	return nil
}

// timed runs a step and returns the engine's time for it.
func timed(ctx context.Context, e engine.Target, step *engine.Step, result *engine.StepResult) (time.Duration, error) {
	start := time.Now()
	err := e.Step(ctx, step, result)
	if d := time.Duration(result.EngineNanos); d > 0 {
		return d, err
	}
	return time.Since(start), err
}
