package workernode

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-inference/tandem/services/device"
)

// autoSplit is the --target-layer-split that gives every device as many layers.
const autoSplit = "auto"

// mostStages bounds the stages of a target.
const mostStages = 16

// CheckStages says what cannot work in --target-devices, --target-stages, --target-layer-split and --stage-row-type,
// whatever the model.
func CheckStages(devices, addresses []string, split, rowType string) error {
	var errs []error
	for _, d := range devices {
		if _, err := device.Parse(d); err != nil {
			errs = append(errs, fmt.Errorf("--target-devices: %w", err))
		}
	}
	for i, a := range addresses {
		if a == "" || slices.Contains(addresses[:i], a) {
			errs = append(errs, fmt.Errorf("--target-stages: wants an address for each stage, got %q", addresses))
			break
		}
	}
	n := len(devices) + len(addresses)
	if len(addresses) > 0 && len(devices) == 0 {
		n++ // --device
	}
	if n > mostStages {
		errs = append(errs, fmt.Errorf("--target-devices: are at most %d with --target-stages, got %d", mostStages, n))
	}
	if rowType == "bf16" && n == 0 {
		errs = append(errs, errors.New("--stage-row-type: is for --target-devices and --target-stages, which name none"))
	}
	if split == "" || split == autoSplit {
		return errors.Join(errs...)
	}
	counts, err := parseSplit(split)
	switch {
	case err != nil:
		errs = append(errs, err)
	case n == 0:
		errs = append(errs, errors.New("--target-layer-split: is for --target-devices and --target-stages, which name none"))
	case len(counts) != n:
		errs = append(errs, fmt.Errorf("--target-layer-split: has %d numbers, --target-devices and --target-stages are %d",
			len(counts), n))
	}
	return errors.Join(errs...)
}

// ParseStage reads --stage: the stage's place, from 1, and how many there are.
func ParseStage(text string) (stage, stages int, err error) {
	k, n, _ := strings.Cut(text, "/")
	stage, kerr := strconv.Atoi(k)
	stages, nerr := strconv.Atoi(n)
	if kerr != nil || nerr != nil || stage < 2 || stage > stages || stages > mostStages {
		return 0, 0, fmt.Errorf("--stage: wants K/N with K in 2..N and N at most %d, such as 2/3, got %q: the first stage is "+
			"the worker with --target-stages", mostStages, text)
	}
	return stage, stages, nil
}

func parseSplit(split string) ([]int, error) {
	var counts []int
	for _, word := range strings.Split(split, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(word))
		if err != nil || n < 1 {
			return nil, fmt.Errorf("--target-layer-split: wants layers per device such as 40,24, or auto, got %q", split)
		}
		counts = append(counts, n)
	}
	return counts, nil
}

// SplitLayers returns how many of a model's layers each of n stages has.
func SplitLayers(split string, n, layers int) ([]int, error) {
	if n > layers {
		return nil, fmt.Errorf("--target-devices: %d stages are too many, the model has %d layers", n, layers)
	}
	if split == "" || split == autoSplit {
		counts := make([]int, n)
		for i := range counts {
			counts[i] = layers*(i+1)/n - layers*i/n
		}
		return counts, nil
	}
	counts, err := parseSplit(split)
	if err != nil {
		return nil, err
	}
	sum := 0
	for _, c := range counts {
		sum += c
	}
	if len(counts) != n || sum != layers {
		return nil, fmt.Errorf("--target-layer-split: %s are %d layers of %d stages, the model has %d for %d", split, sum,
			len(counts), layers, n)
	}
	return counts, nil
}
