package workernode

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/services/config"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"google.golang.org/grpc/codes"
)

// What the three roles of the engine say when they do not fit.
const (
	targetUnfit = "needs 82048421760 bytes (weights_bytes 21634816, kv_bytes 81920524288, state_bytes 6586368, " +
		"replay_bytes 11034624, " +
		"scratch_bytes 88641664) of a cap of 21474836480; max_context 2605760 would fit"
	draftUnfit = "needs 2097152 bytes (weights_bytes 1048576, kv_bytes 524288, scratch_bytes 524288) of a cap of 1048576; " +
		"no max_context would fit"
	poolUnfit = "needs 2097152 bytes (weights_bytes 1048576, kv_bytes 524288, scratch_bytes 524288) of a cap of 1572864; " +
		"kv_positions 4096 would fit"
	scorerUnfit = "scoring prompts of 9000 tokens needs 2097152 bytes (weights 1048576, K/V of one layer 3, scratch " +
		"524288), the cap is 1572864: at most 512 tokens fit"
)

func TestAdviceNamesFlagsAndSizes(t *testing.T) {
	for name, c := range map[string]struct {
		message   string
		cap       config.Size
		trained   int
		want, not []string
	}{
		"beyond what was trained": {targetUnfit, 20 << 30, 32768,
			[]string{"needs 76.4 GiB", "--memory-cap allows 20.0 GiB", "keys and values 76.3 GiB",
				"--max-ctx 2605760 fits, but the model was trained for 32768"}, []string{"_bytes", "82048421760"}},
		"within it": {targetUnfit, 0, 4000000, []string{"20.0 GiB are there", "--max-ctx 2605760 fits"},
			[]string{"trained", "--memory-cap"}},
		"nothing fits": {draftUnfit, 1 << 20, 0,
			[]string{"needs 2.0 MiB", "allows 1.0 MiB", "No context fits: --lanes 1", "--cache-type-k"}, []string{"--max-ctx"}},
		"pool":   {poolUnfit, 0, 2048, []string{"--kv-positions 4096 fits"}, []string{"--max-ctx"}},
		"scorer": {scorerUnfit, 1 << 20, 0, []string{"--max-ctx 512 fits"}, nil},
	} {
		f := Flags{MemoryCap: c.cap}
		err := f.advise(rpcerr.FromCode(codes.ResourceExhausted, c.message), c.trained)
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q lacks %q", name, err, want)
			}
		}
		for _, not := range c.not {
			if strings.Contains(err.Error(), not) {
				t.Errorf("%s: %q holds %q", name, err, not)
			}
		}
		if rpcerr.Code(err) != codes.ResourceExhausted {
			t.Errorf("%s: the code is lost", name)
		}
	}
	other := rpcerr.Internal("the card is gone")
	if f := (Flags{}); f.advise(other, 0) != error(other) {
		t.Error("another error was changed")
	}
}

func openUnfit(context.Context, engine.OpenOptions, engine.Progress) (engine.Target, error) {
	return nil, rpcerr.FromCode(codes.ResourceExhausted, targetUnfit)
}

// keeperCLI is a program whose engine does not fit.
type keeperCLI struct{ err error }

func (c *keeperCLI) Run() error { return c.err }

// TestWhatNoRestartCuresEndsWithUsage: supervisors start a program again unless it ends with that status.
func TestWhatNoRestartCuresEndsWithUsage(t *testing.T) {
	err := NewTargetKeeper(KeeperConfig[engine.Target]{Open: openUnfit, Flags: &Flags{}}).Run(t.Context())
	for want, err := range map[int]error{config.ExitUsage: err, config.ExitError: errors.New("something else")} {
		var out, errOut bytes.Buffer
		if code := Main(&keeperCLI{err}, "worker-test", "Test.", nil, &out, &errOut); code != want {
			t.Errorf("%v: status %d, want %d", err, code, want)
		}
		if strings.Count(errOut.String(), "\n") != 1 {
			t.Errorf("said more than once: %q", errOut.String())
		}
	}
}
