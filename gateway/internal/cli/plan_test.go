package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"

	"github.com/tandem-inference/tandem/gateway/internal/placement"
	"github.com/tandem-inference/tandem/services/device"
)

const placementData = "../placement/testdata"

// described are paths of the 27B and its draft.
func described() (target, draft string) {
	return filepath.Join(placementData, "qwen-27b-q4_k_m.json"), filepath.Join(placementData, "dflash-27b-q8_0.json")
}

func TestPlan(t *testing.T) {
	target, draft := described()
	rig := filepath.Join(placementData, "rigs", "3090-and-cpu.json")
	code, out, errOut := tandem(t, "", "plan", target, "--draft", draft, "--rig", rig)
	if code != 0 {
		t.Fatal(errOut)
	}
	for _, want := range []string{"DEVICE", "RTX 3090", "PREDICTED", "plain, tokens/s", "INSTEAD", "Note: figures of",
		"  tandem serve ", "--draft-device cuda:0", "--max-ctx 32768"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
	code, out, errOut = tandem(t, "", "plan", target, "--rig", rig, "--json", "--on", "cpu,cuda:0",
		"--split", "10,54", "--kv-format", "q8_0", "--max-ctx", "8192", "--concurrent", "2")
	if code != 0 {
		t.Fatal(errOut)
	}
	var plan struct {
		Best struct {
			Stages []struct {
				Device string
				First  int `json:"first_layer"`
				Last   int `json:"last_layer"`
			}
			Cache     string `json:"cache_type"`
			Measured  bool
			Predicted map[string]float64
		}
		Commands []placement.Command
	}
	if err := json.Unmarshal([]byte(out), &plan); err != nil {
		t.Fatal(err)
	}
	if s := plan.Best.Stages; len(s) != 2 || s[0].Device != "cpu" || s[0].Last != 10 || s[1].Last != 64 ||
		plan.Best.Cache != "q8_0" || plan.Best.Measured || plan.Best.Predicted["plain_1k_tokens_s"] <= 0 {
		t.Errorf("plan %+v", plan.Best)
	}
	want := []string{"tandem", "serve", target, "--target-devices", "cpu,cuda:0", "--target-layer-split", "10,54",
		"--max-ctx", "8192", "--lanes", "2", "--cache-type-k", "q8_0", "--cache-type-v", "q8_0"}
	got := plan.Commands[0].Args
	got[2] = target // it is an absolute path
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// TestPlannedCommandsParse: what a plan says to run is a command line that tandem serve takes.
func TestPlannedCommandsParse(t *testing.T) {
	target, draft := filepath.Join(modelsDir, demoTarget), filepath.Join(modelsDir, demoDraft)
	scorer := filepath.Join(modelsDir, demoPrefill)
	for _, rig := range []string{"3090-and-cpu", "two-3090"} {
		code, out, errOut := tandem(t, "", "plan", target, "--draft", draft, "--scorer", scorer, "--rig",
			filepath.Join(placementData, "rigs", rig+".json"), "--json")
		if code != 0 {
			t.Fatal(errOut)
		}
		var plan struct{ Commands []placement.Command }
		if err := json.Unmarshal([]byte(out), &plan); err != nil {
			t.Fatal(err)
		}
		args := append(plan.Commands[0].Args[1:], "--dump-config")
		if code, _, errOut := tandem(t, "", args...); code != 0 {
			t.Errorf("%v: %s", args, errOut)
		}
	}
}

func TestPlanRefuses(t *testing.T) {
	target, draft := described()
	rig := filepath.Join(placementData, "rigs", "3090-and-cpu.json")
	bad := filepath.Join(t.TempDir(), "bad.json")
	if err := os.WriteFile(bad, []byte(`{"hosts":[]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	on := func(args ...string) []string { return append([]string{target, "--rig", rig}, args...) }
	for want, args := range map[string][]string{
		"--rig: " + bad + ": rig: hosts: there are none":       {target, "--rig", bad},
		"--on: host box has no device hip:0":                   on("--on", "hip:0"),
		`--on: the rig has no host "shed"`:                     on("--on", "shed/cpu"),
		"--split: needs the devices":                           on("--split", "3,61"),
		"--split: 3,60 are 63 layers of 2 stages":              on("--on", "cpu,cuda:0", "--split", "3,60"),
		"--split: wants layers for each device":                on("--on", "cpu,cuda:0", "--split", "3,many"),
		"--draft-on: needs --draft":                            on("--draft-on", "cpu"),
		"--scorer-on: needs --scorer":                          on("--scorer-on", "cpu"),
		"accepted: is 0, must be 1..16":                        on("--accepted", "0"),
		"concurrent: is 0, must be 1..16777216":                on("--concurrent", "0"),
		"is no draft of":                                       on("--draft", target),
		"no layout fits: Qwen3.6-27B Q4_K_M takes 15.9 GiB of": on("--on", "cuda:0", "--concurrent", "64"),
		"another type of cached keys and values would fit": on("--draft", draft, "--on", "cuda:0", "--draft-on", "cuda:0",
			"--kv-format", "f16"),
		"tree rows: are 100, must be at most 64": on("--tree-rows", "100"),
		"--draft: stat ":                         on("--draft", filepath.Join(t.TempDir(), "nowhere")),
	} {
		if code, _, errOut := tandem(t, "", append([]string{"plan"}, args...)...); code == 0 ||
			!strings.Contains(errOut, want) {
			t.Errorf("%v: status %d, %s\nwant %q", args, code, errOut, want)
		}
	}
}

// TestApplyKeepsFlags: what the user gave stays, the rest comes from the plan.
func TestApplyKeepsFlags(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(placementData, "rigs", "two-3090.json"))
	if err != nil {
		t.Fatal(err)
	}
	rig, err := placement.ParseRig(data)
	if err != nil {
		t.Fatal(err)
	}
	task := placement.Task{Lanes: 1, Prompt: 4096, Answer: 512, Accepted: 4}
	target, draft := described()
	if err := readModels(&task, trio{target: target, draft: draft}); err != nil {
		t.Fatal(err)
	}
	plan, err := placement.Search(rig, &task)
	if err != nil {
		t.Fatal(err)
	}
	w := WorkerFlags{Device: "cpu", TargetLayerSplit: "auto", CacheTypeK: "q8_0", CacheTypeV: "f16", Lanes: 3}
	w.apply(plan, func(flag string) bool { return flag == "cache-type-k" || flag == "lanes" })
	if d := cmp.Diff([]string{"cuda:0", "cuda:1"}, w.TargetDevices); d != "" || w.TargetLayerSplit != "32,32" ||
		w.DraftDevice != "cuda:0" || w.MaxCtx != usualContext || w.CacheTypeK != "q8_0" || w.CacheTypeV != "f16" ||
		w.DraftCache != "f16" || w.Lanes != 3 || w.DDTreeBudget == 0 {
		t.Errorf("flags %+v", w)
	}
	if err := w.validate(); err == nil || strings.Contains(err.Error(), "--target") {
		t.Errorf("the flags of a plan: %v", err)
	}
	w.apply(plan, func(string) bool { return false })
	if w.Lanes != int(plan.Most) || plan.Most < 2 {
		t.Errorf("%d lanes, the plan has room for %d", w.Lanes, plan.Most)
	}
}

func TestAutoRefusesOtherHosts(t *testing.T) {
	code, _, errOut := tandem(t, "", "serve", "--demo", "--auto", "--target-stages", "box:1")
	if code != 2 || !strings.Contains(errOut, "--auto: plans for this host alone") {
		t.Errorf("status %d: %s", code, errOut)
	}
}

// TestAuto plans the demonstration models on this machine's processor twice: the second time it measures nothing.
func TestAuto(t *testing.T) {
	bin, err := filepath.Abs("../../../bin")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := device.FindLibrary(bin, device.Name{Backend: "cpu"}); err != nil {
		t.Skip("needs the programs in bin/: make build")
	}
	if testing.Short() {
		t.Skip("starts processes")
	}
	models := trio{target: filepath.Join(modelsDir, demoTarget), draft: filepath.Join(modelsDir, demoDraft),
		prefill: filepath.Join(modelsDir, demoPrefill)}
	c := ServeCmd{given: []string{"device", "threads", "lanes", "draft"}}
	c.Device, c.Threads, c.Lanes, c.Programs, c.CacheDir, c.TargetLayerSplit = "cpu", 1, 3, bin, t.TempDir(), "auto"
	for run, measures := range []bool{true, false} {
		var out, progress bytes.Buffer
		again, planned := c, models
		if err := again.auto(&env{ctx: t.Context(), out: &out, err: &progress}, &planned, zap.NewNop()); err != nil {
			t.Fatal(err)
		}
		if again.TargetDevice != "cpu" || again.DraftDevice != "cpu" || again.PrefillDevice != "cpu" || again.Lanes != 3 ||
			again.MaxCtx == 0 || again.DDTreeBudget == 0 || planned != models {
			t.Errorf("flags %+v, models %v", again.WorkerFlags, planned)
		}
		if !strings.Contains(out.String(), "PREDICTED") || strings.Contains(progress.String(), "measuring cpu") != measures {
			t.Errorf("run %d: plan %s, progress %s", run, &out, &progress)
		}
	}
}
