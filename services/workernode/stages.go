package workernode

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/tandem-inference/tandem/services/device"
)

// autoSplit is the --target-layer-split that gives every device as many layers.
const autoSplit = "auto"

// mostStages bounds --target-devices.
const mostStages = 16

// CheckStages says what cannot work in --target-devices and --target-layer-split, whatever the model.
func CheckStages(devices []string, split string) error {
	var errs []error
	for _, d := range devices {
		if _, err := device.Parse(d); err != nil {
			errs = append(errs, fmt.Errorf("--target-devices: %w", err))
		}
	}
	if len(devices) > mostStages {
		errs = append(errs, fmt.Errorf("--target-devices: are at most %d, got %d", mostStages, len(devices)))
	}
	if split == "" || split == autoSplit {
		return errors.Join(errs...)
	}
	counts, err := parseSplit(split)
	switch {
	case err != nil:
		errs = append(errs, err)
	case len(devices) == 0:
		errs = append(errs, errors.New("--target-layer-split: is for --target-devices, which names none"))
	case len(counts) != len(devices):
		errs = append(errs, fmt.Errorf("--target-layer-split: has %d numbers, --target-devices %d", len(counts),
			len(devices)))
	}
	return errors.Join(errs...)
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

// SplitLayers returns how many of a model's layers each of n devices has.
func SplitLayers(split string, n, layers int) ([]int, error) {
	if n > layers {
		return nil, fmt.Errorf("--target-devices: are %d, the model has %d layers", n, layers)
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
		return nil, fmt.Errorf("--target-layer-split: %s are %d layers for %d devices, the model has %d for %d", split, sum,
			len(counts), layers, n)
	}
	return counts, nil
}
