package probe

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tandem-inference/tandem/gateway/internal/placement"
	"github.com/tandem-inference/tandem/services/device"
	"github.com/tandem-inference/tandem/services/gguf"
)

func made(t *testing.T) *placement.Model {
	t.Helper()
	path := filepath.Join(t.TempDir(), "probe.gguf")
	if err := writeModel(path); err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	g, err := f.Model()
	if err != nil {
		t.Fatal(err)
	}
	if err := g.CheckComplete(); err != nil {
		t.Error(err)
	}
	if size := f.Size(); size < 90e6 || size > 200e6 {
		t.Errorf("the model has %d bytes: fewer fit caches, more take long to write", size)
	}
	m, err := placement.FromFile(f)
	if err != nil {
		t.Fatal(err)
	}
	m.Path = path
	return m
}

// TestCostIsFoundAgain makes the times that a known device would have.
func TestCostIsFoundAgain(t *testing.T) {
	m := made(t)
	const step, read, rate, attention = 40e-6, 60e9, 500e9, 100e9
	half, _ := m.StepBytes(0, 2)
	whole, weights := m.StepBytes(0, 4)
	headRead, headWeights := m.HeadBytes()
	times := Times{Model: m, Half: 2, Whole: 4, Context: 2048}
	for _, n := range rows {
		extra := float64(n-1) / rate
		w := RowTimes{n, step + float64(half)/read + float64(weights)/2*extra,
			step + float64(whole+headRead)/read + float64(weights+headWeights)*extra}
		if n > pending {
			w.Whole = step + float64(whole)/read + float64(weights)*extra
		}
		times.Rows = append(times.Rows, w)
		if n == pending {
			kv, macs := m.AttentionBytes(0, 4)
			times.Attended = w.Whole + 2048*(float64(kv)/read+pending*float64(macs)/attention)
		}
	}
	c := times.Cost()
	near := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got/want-1) > 0.01 {
			t.Errorf("%s is %v, want %v", what, got, want)
		}
	}
	near("step_us", c.StepUS, 40)
	near("read_gb_s", c.ReadGBs, 60)
	near("attention_gmac_s", c.AttentionGMACs, 100)
	for i, r := range c.Rows {
		near("rows", float64(r.Rows), float64(rows[i+1]))
		near("ms_per_gweight", r.MSPerGWeight, float64(r.Rows-1)*1e12/rate)
	}
}

// TestNoiseMakesNoNonsense: however times fall, the rig that holds the cost is valid.
func TestNoiseMakesNoNonsense(t *testing.T) {
	m := made(t)
	times := Times{Model: m, Half: 2, Whole: 4, Context: 100, Attended: 1e-6}
	for i, n := range rows {
		times.Rows = append(times.Rows, RowTimes{n, 5e-3, 5e-3 / float64(i+1)})
	}
	d := placement.Device{Name: "cpu", Card: "x", Free: 1 << 30, Cost: times.Cost()}
	r := placement.Rig{Hosts: []placement.Host{{Name: "h", Devices: []placement.Device{d}}}}
	if err := r.Complete(); err != nil {
		t.Error(err)
	}
}

func TestDevices(t *testing.T) {
	root := fstest.MapFS{"proc/driver/nvidia/gpus/0000:01:00.0/information": {},
		"proc/driver/nvidia/gpus/0000:02:00.0/information": {},
		"sys/class/kfd/kfd/topology/nodes/0/properties":    {Data: []byte("simd_count 0\n")},
		"sys/class/kfd/kfd/topology/nodes/1/properties":    {Data: []byte("simd_count 192\n")}}
	dir := t.TempDir()
	for _, name := range []string{"libtandem_cpu.so", "libtandem_cuda.so"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if d := cmp.Diff([]string{"cuda:0", "cuda:1", "cpu"}, Devices(root, dir)); d != "" {
		t.Error(d)
	}
	if err := os.WriteFile(filepath.Join(dir, "libtandem_hip.so"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"cuda:0", "cuda:1", "hip:0", "cpu"}, Devices(root, dir)); d != "" {
		t.Error(d)
	}
	if d := Devices(fstest.MapFS{}, t.TempDir()); d != nil {
		t.Errorf("devices without libraries: %v", d)
	}
}

// TestProbe measures this machine's processor with the demonstration target and with the model that is made.
func TestProbe(t *testing.T) {
	root := filepath.Join("..", "..", "..")
	program := filepath.Join(root, "bin", "tandem-engine")
	if _, err := device.FindLibrary(filepath.Dir(program), device.Name{Backend: "cpu"}); err != nil {
		t.Skip("needs the programs in bin/: make build")
	}
	if testing.Short() {
		t.Skip("starts processes")
	}
	for _, model := range []string{"", filepath.Join(root, "models", "tandem-tiny-target-q4_k_m.gguf")} {
		h, err := Host(context.Background(), Config{Program: program, Devices: []string{"cpu", "cpu"}, Model: model,
			Budget: 2 * time.Second, Name: "here"})
		if err != nil {
			t.Fatal(err)
		}
		r := placement.Rig{Hosts: []placement.Host{*h}}
		if err := r.Complete(); err != nil {
			t.Fatal(err)
		}
		if len(h.Devices) != 1 {
			t.Fatalf("devices %+v", h.Devices)
		}
		d := h.Devices[0]
		if d.Origin != placement.Measured || d.Free <= 0 || d.Memory < d.Free || d.Card == "" || h.Border == nil {
			t.Errorf("device %+v, border %+v", d, h.Border)
		}
		text, err := r.JSON()
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s", text)
	}
	_, err := Host(context.Background(), Config{Program: program, Devices: []string{"cuda:0"}})
	if err == nil || !strings.Contains(err.Error(), "libtandem_cuda.so") {
		t.Errorf("a device without a library: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Host(ctx, Config{Program: program, Devices: []string{"cpu"}}); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled probe: %v", err)
	}
}
