package cli

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/app"
	"go.uber.org/zap"
)

// programs makes a folder of programs that do nothing, so that a cluster can be prepared but not run.
func programs(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{workerTarget, workerDraft, workerPrefill} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func prepare(t *testing.T, models trio, workers WorkerFlags) *cluster {
	t.Helper()
	t.Setenv("TMPDIR", t.TempDir())
	t.Setenv("TANDEM_DRAFT", "leaks.gguf")
	t.Setenv("TANDEM_AMDSIM_PROCESSOR", "gfx1201")
	gateway := app.Defaults()
	gateway.Port, gateway.GRPCPort = 0, -1
	c, err := newCluster(clusterConfig{models: models, workers: workers, gateway: gateway, logLevel: "warn",
		logFormat: "json", log: zap.NewNop(), output: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestWorkerCommandLines(t *testing.T) {
	target, draft, prefill := filepath.Join(modelsDir, demoTarget), filepath.Join(modelsDir, demoDraft),
		filepath.Join(modelsDir, demoPrefill)
	workers := WorkerFlags{Programs: programs(t), Device: "cpu", HangTimeout: "3s", Threads: 3, MaxCtx: 4096, Lanes: 2,
		KVPositions: 6000, MemoryCap: 1 << 30, CacheTypeK: "f16", CacheTypeV: "f32", DraftCache: "q8_0", CacheDir: "/c"}
	c := prepare(t, trio{target, draft, prefill}, workers)
	specs, err := c.specs()
	if err != nil {
		t.Fatal(err)
	}
	wants := map[string][]string{
		workerTarget: {"--model " + target, "--threads 3", "--max-ctx 4096", "--lanes 2", "--kv-positions 6000",
			"--memory-cap 1GiB", "--cache-type-k f16", "--cache-type-v f32", "--cache-dir /c", "--no-lookup"},
		workerDraft: {"--model " + draft, "--tables " + target, "--threads 3", "--lanes 2", "--kv-positions 6000",
			"--cache-type-k q8_0", "--cache-type-v q8_0", "--cache-dir /c"},
		workerPrefill: {"--model " + prefill, "--threads 3", "--cache-dir /c"},
	}
	if len(specs) != len(wants) {
		t.Fatalf("%d workers", len(specs))
	}
	for _, spec := range specs {
		line := strings.Join(spec.Args, " ")
		for _, want := range append(wants[spec.Name], "--gateway unix://", "--listen unix://"+c.dir, "--parent-pid ",
			"--hang-timeout 3s", "--worker-id "+spec.Name, "--log-level warn") {
			if !strings.Contains(line, want) {
				t.Errorf("%s lacks %q: %s", spec.Name, want, line)
			}
		}
		ours := slices.DeleteFunc(slices.Clone(spec.Env), func(v string) bool { return !strings.HasPrefix(v, "TANDEM_") })
		if !slices.Equal(ours, []string{"TANDEM_AMDSIM_PROCESSOR=gfx1201"}) { // its engine's
			t.Errorf("%s inherits %q", spec.Name, ours)
		}
		if spec.Essential != (spec.Name == workerTarget) {
			t.Errorf("%s: essential = %v", spec.Name, spec.Essential)
		}
	}
}

// TestWorkersForOtherHosts: workers serve other hosts if these reach the registry: the target and the draft, and the
// scorer, too, where there are other gateways. They do it with certificates unless the user wants none.
func TestWorkersForOtherHosts(t *testing.T) {
	models := trio{filepath.Join(modelsDir, demoTarget), filepath.Join(modelsDir, demoDraft),
		filepath.Join(modelsDir, demoPrefill)}
	workers := WorkerFlags{Programs: programs(t), Device: "cpu", HangTimeout: "3s"}
	for name, c := range map[string]struct {
		listen, registry string
		plaintext        bool
		wants            []string // of target, draft, scorer
	}{
		"a socket":           {"127.0.0.1:8104", app.RegistryEmbedded, false, []string{"", "", ""}},
		"this host alone":    {"127.0.0.1:0", app.RegistryEmbedded, false, []string{"", "", ""}},
		"other hosts":        {"0.0.0.0:0", app.RegistryEmbedded, false, []string{"--certs", "--certs", ""}},
		"without encryption": {"0.0.0.0:0", app.RegistryEmbedded, true, []string{"--plaintext", "--plaintext", ""}},
		"other gateways": {"0.0.0.0:0", "etcd://127.0.0.1:1", false,
			[]string{"--certs", "--certs", "--certs"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("XDG_CONFIG_HOME", t.TempDir())
			t.Setenv("TMPDIR", t.TempDir())
			gateway := app.Defaults()
			gateway.Port, gateway.GRPCPort, gateway.RegistryListen, gateway.Plaintext = 0, -1, c.listen, c.plaintext
			cl, err := newCluster(clusterConfig{models: models, workers: workers, gateway: gateway, logLevel: "warn",
				logFormat: "json", log: zap.NewNop(), output: os.Stderr})
			if err != nil {
				t.Fatal(err)
			}
			cl.cfg.gateway.Registry = c.registry // no etcd is needed for a command line
			specs, err := cl.specs()
			if err != nil {
				t.Fatal(err)
			}
			for i, spec := range specs {
				at := slices.Index(spec.Args, "--remote-listen")
				if c.wants[i] == "" {
					if at >= 0 {
						t.Errorf("%s serves other hosts: %q", spec.Name, spec.Args)
					}
					continue
				}
				if at < 0 || !slices.Contains([]string{"0.0.0.0:0", "[::]:0"}, spec.Args[at+1]) ||
					!slices.Contains(spec.Args, c.wants[i]) || !slices.Contains(spec.Args, "unix://"+cl.socket(spec.Name)) {
					t.Errorf("%s: %q", spec.Name, spec.Args)
				}
			}
		})
	}
}

// TestVariablesOfWorkers: tandem serve says which variables its workers do not get. Those of its own flags, and those
// of clients, are no concern.
func TestVariablesOfWorkers(t *testing.T) {
	for name, value := range map[string]string{"TANDEM_METRICS_LISTEN": "127.0.0.1:9464", "TANDEM_LANES": "2",
		"TANDEM_ADMIN_LISTEN": "", "TANDEM_SERVER": "http://127.0.0.1:8000"} {
		t.Setenv(name, value)
	}
	_, _, errOut := tandem(t, "", "serve", "--demo", "--programs", programs(t), "--verify-config")
	if !strings.Contains(errOut, "--metrics-listen: is a flag of workers, and TANDEM_METRICS_LISTEN does not reach") ||
		strings.Count(errOut, "is a flag of workers") != 1 {
		t.Errorf("warnings: %s", errOut)
	}
	t.Setenv("TANDEM_METRICS_LISTEN", "")
	_, _, errOut = tandem(t, "", "serve", "--demo", "--programs", programs(t), "--verify-config")
	if strings.Contains(errOut, "is a flag of workers") {
		t.Errorf("warnings without a cause: %s", errOut)
	}
}

func TestDevicesOfWorkers(t *testing.T) {
	models := trio{filepath.Join(modelsDir, demoTarget), filepath.Join(modelsDir, demoDraft),
		filepath.Join(modelsDir, demoPrefill)}
	workers := WorkerFlags{Programs: programs(t), Device: "cpu", HangTimeout: "3s", TargetDevice: "cuda:1",
		DraftDevice: "hip:0", Lookup: true}
	t.Setenv("TMPDIR", t.TempDir())
	gateway := app.Defaults()
	gateway.Port, gateway.GRPCPort = 0, -1
	_, err := newCluster(clusterConfig{models: models, workers: workers, gateway: gateway, logLevel: "warn",
		logFormat: "json", log: zap.NewNop()})
	if err == nil || !strings.Contains(err.Error(), "worker-target: device cuda:1 needs libtandem_cuda.so") {
		t.Fatalf("without libraries: %v", err)
	}
	for _, name := range []string{"libtandem_cuda.so", "libtandem_hip.so"} {
		if err := os.WriteFile(filepath.Join(workers.Programs, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	specs, err := prepare(t, models, workers).specs()
	if err != nil {
		t.Fatal(err)
	}
	wants := map[string]string{workerTarget: "--device cuda:1", workerDraft: "--device hip:0",
		workerPrefill: "--device cpu"}
	for _, spec := range specs {
		if line := strings.Join(spec.Args, " "); !strings.Contains(line, wants[spec.Name]) {
			t.Errorf("%s lacks %q: %s", spec.Name, wants[spec.Name], line)
		}
		if slices.Contains(spec.Args, "--no-lookup") {
			t.Errorf("%s is told not to look up", spec.Name)
		}
	}

	workers = WorkerFlags{Device: "cuda:x", PrefillDevice: "npu:0:1"}
	err = workers.validate()
	for _, flag := range []string{"--device", "--prefill-device"} {
		if err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%s is not named in %v", flag, err)
		}
	}
}

func TestTargetAlone(t *testing.T) {
	c := prepare(t, trio{target: filepath.Join(modelsDir, demoTarget)},
		WorkerFlags{Programs: programs(t), Device: "cpu", HangTimeout: "3s"})
	if len(c.names) != 1 || c.names[0] != workerTarget {
		t.Errorf("workers %v", c.names)
	}
}

func TestMissingPrograms(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	gateway := app.Defaults()
	gateway.Port, gateway.GRPCPort = 0, -1
	_, err := newCluster(clusterConfig{
		models:  trio{target: filepath.Join(modelsDir, demoTarget)},
		workers: WorkerFlags{Programs: t.TempDir(), Device: "cpu", HangTimeout: "3s"}, gateway: gateway, log: zap.NewNop(),
	})
	if err == nil || !strings.Contains(err.Error(), "make build") {
		t.Errorf("newCluster = %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(os.TempDir(), "tandem-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}
