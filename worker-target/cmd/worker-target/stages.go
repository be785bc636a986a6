package main

import (
	"fmt"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/staged"
	"github.com/tandem-inference/tandem/services/gguf"
	"github.com/tandem-inference/tandem/services/workernode"
	"go.uber.org/zap"
)

// StageFlags spread the layers of a target over several devices.
type StageFlags struct {
	TargetDevices    []string `help:"Devices that share the layers of the target, in the order of the layers, such as cuda:0,hip:0 or cpu,cpu: each has an engine of its own. Default: one device has all." placeholder:"NAME,…"`
	TargetLayerSplit string   `help:"Layers of each of --target-devices, such as 40,24; auto = as many for each." default:"auto" placeholder:"N,…"`
}

// open returns what opens the target: one engine, or one for each device.
func (s *StageFlags) open(f *workernode.Flags, file *gguf.File, log *zap.Logger) (engine.Open[engine.Target], error) {
	if len(s.TargetDevices) == 0 {
		host, err := f.Host(log)
		if err != nil {
			return nil, err
		}
		return host.OpenTarget, nil
	}
	model, err := file.Model()
	if err != nil {
		return nil, fmt.Errorf("--model: %w", err)
	}
	layers, err := workernode.SplitLayers(s.TargetLayerSplit, len(s.TargetDevices), model.Layers)
	if err != nil {
		return nil, err
	}
	var stages []staged.Stage
	for i, device := range s.TargetDevices {
		own := *f
		own.Device = device
		host, err := own.Host(log.With(zap.Int("stage", i+1)))
		if err != nil {
			return nil, fmt.Errorf("--target-devices: %w", err)
		}
		stages = append(stages, staged.Stage{Open: host.OpenTarget, Device: device, Layers: layers[i]})
	}
	return staged.Open(stages), nil
}
