package container

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/tests/cluster"
)

// service is what a test looks at in the output of docker compose config.
type service struct {
	Command []string
	Build   struct {
		Dockerfile string
		Args       map[string]string
	}
	Image       string
	Devices     []struct{ Source string }
	Volumes     []volume
	GroupAdd    []string `json:"group_add"`
	Environment map[string]*string
	HealthCheck struct {
		StartPeriod string `json:"start_period"`
	}
	Logging struct {
		Options map[string]string
	}
	PIDs  int `json:"pids_limit"`
	Ports []struct {
		HostIP string `json:"host_ip"`
	}
	Secrets []struct{ Source string }
	Deploy  struct {
		Resources struct {
			Reservations struct {
				Devices []struct {
					Driver       string
					IDs          []string `json:"device_ids"`
					Capabilities []string
				}
			}
		}
	}
}

type volume struct {
	Type, Source, Target string
	ReadOnly             bool `json:"read_only"`
}

// TestComposeProfiles resolves compose.yaml for every profile: which workers there are, on which devices, with which
// access. No container engine is needed.
func TestComposeProfiles(t *testing.T) {
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	compose := findCompose(t, root)
	for _, c := range []struct {
		profile string
		devices map[string]string // of workers
		builds  []string          // Dockerfiles
	}{
		{"", map[string]string{"worker-target": "cpu", "worker-draft": "cpu", "worker-prefill": "cpu"}, []string{"worker"}},
		{"cuda", map[string]string{"worker-target-cuda": "cuda:0", "worker-draft-cuda": "cuda:0",
			"worker-prefill-cuda": "cuda:0"}, []string{"worker-cuda"}},
		{"rocm", map[string]string{"worker-target-rocm": "hip:0", "worker-draft-rocm": "hip:0",
			"worker-prefill-rocm": "hip:0"}, []string{"worker-rocm"}},
		{"split", map[string]string{"worker-target-split": "cpu", "worker-target-stage": "cpu", "worker-draft": "cpu",
			"worker-prefill": "cpu"}, []string{"worker"}},
		{"rig", map[string]string{"worker-target-cuda": "cuda:0", "worker-draft-rocm": "hip:0",
			"worker-prefill-rocm": "hip:0"}, []string{"worker-cuda", "worker-rocm"}},
	} {
		t.Run("profile "+c.profile, func(t *testing.T) {
			services := config(t, root, compose, c.profile)
			if len(services) != len(c.devices)+1 {
				t.Errorf("%d services, want the gateway and %d workers", len(services), len(c.devices))
			}
			var builds []string
			for name, s := range services {
				if s.Build.Dockerfile != "" {
					builds = append(builds, strings.TrimPrefix(s.Build.Dockerfile, "deploy/Dockerfile."))
					if _, err := os.Stat(filepath.Join(root, s.Build.Dockerfile)); err != nil {
						t.Error(err)
					}
				}
				if d, err := time.ParseDuration(s.HealthCheck.StartPeriod); err != nil || d < 10*time.Minute {
					t.Errorf("%s has %q to load a model", name, s.HealthCheck.StartPeriod)
				}
				if s.Logging.Options["max-size"] == "" || s.Logging.Options["max-file"] == "" || s.PIDs == 0 {
					t.Errorf("%s: logs %v and %d processes are not bounded", name, s.Logging.Options, s.PIDs)
				}
				if name == "gateway" {
					checkGateway(t, s)
					continue
				}
				want, ok := c.devices[name]
				if !ok {
					t.Errorf("%s is not part of it", name)
					continue
				}
				checkWorker(t, name, s, want)
			}
			slices.Sort(builds)
			if want := append([]string{"gateway"}, c.builds...); !slices.Equal(builds, want) {
				t.Errorf("builds %v, want %v", builds, want)
			}
		})
	}
}

// TestObservabilityProfile: what looks at the cluster has pinned images, files that exist, bounded logs, and ports on
// this machine only.
func TestObservabilityProfile(t *testing.T) {
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	services := config(t, root, findCompose(t, root), "observability")
	for _, name := range []string{"prometheus", "collector", "tempo", "grafana"} {
		s, ok := services[name]
		if !ok {
			t.Errorf("there is no %s", name)
			continue
		}
		_, tag, _ := strings.Cut(s.Image, ":")
		if tag == "" || tag == "latest" || s.Logging.Options["max-size"] == "" || s.PIDs == 0 {
			t.Errorf("%s: image %s, logs %v, %d processes", name, s.Image, s.Logging.Options, s.PIDs)
		}
		for _, port := range s.Ports {
			if port.HostIP != "127.0.0.1" {
				t.Errorf("%s is open at %s", name, port.HostIP)
			}
		}
		for _, v := range s.Volumes {
			if v.Type != "bind" {
				continue
			}
			if _, err := os.Stat(v.Source); err != nil || !v.ReadOnly {
				t.Errorf("%s mounts %s, read-only %v: %v", name, v.Source, v.ReadOnly, err)
			}
		}
	}
	if len(services) != 5 {
		t.Errorf("%d services, want the gateway and four that look at it", len(services))
	}
}

func config(t *testing.T, root string, compose []string, profile string) map[string]service {
	t.Helper()
	args := slices.Clone(compose[1:])
	if profile != "" {
		args = append(args, "--profile", profile)
	}
	cmd := exec.Command(compose[0], append(args, "config", "--format", "json")...)
	cmd.Dir = root
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "COMPOSE_") || strings.HasPrefix(v, "TANDEM_")
	})
	cmd.Env = append(cmd.Env, "TANDEM_CUDA_DEVICE=2", "TANDEM_HIP_DEVICE=1", "TANDEM_MAX_CTX=4096",
		"TANDEM_MEMORY_CAP=7GiB", "TANDEM_API_KEY=secret",
		"TANDEM_API_KEY_FILE=/etc/keys", "TANDEM_TLS_CERT=/etc/cert", "TANDEM_QUEUE_TIMEOUT_S=7", "TANDEM_LOG_LEVEL=debug",
		"TANDEM_DRAFT_CACHE_TYPE=q8_0", "TANDEM_STAGE=2/3", "TANDEM_TARGET_STAGES=elsewhere:8105",
		"TANDEM_TARGET_DEVICES=cpu,cpu", "TANDEM_TARGET_LAYER_SPLIT=5,3")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v", cmd.Args, err)
	}
	var all struct{ Services map[string]service }
	if err := json.Unmarshal(out, &all); err != nil {
		t.Fatal(err)
	}
	return all.Services
}

// has reports whether a service gets a variable with a value.
func (s service) has(name, value string) bool {
	v := s.Environment[name]
	return v != nil && *v == value
}

func checkGateway(t *testing.T, s service) {
	t.Helper()
	for name, value := range map[string]string{
		"TANDEM_API_KEY": "secret", "TANDEM_API_KEY_FILE": "/run/secrets/api_keys",
		"TANDEM_TLS_CERT": "/run/secrets/tls_cert", "TANDEM_TLS_KEY": "",
		"TANDEM_QUEUE_TIMEOUT_S": "7", "TANDEM_LOG_LEVEL": "debug", "TANDEM_SERVER": "https://127.0.0.1:8000",
		"TANDEM_INSECURE": "true",
	} {
		if !s.has(name, value) {
			t.Errorf("gateway: %s is %v, want %q", name, s.Environment[name], value)
		}
	}
	if len(s.Secrets) != 3 || !slices.ContainsFunc(s.Volumes,
		func(v volume) bool { return v.Target == "/state" && !v.ReadOnly }) {
		t.Errorf("gateway: secrets %v, mounts %v", s.Secrets, s.Volumes)
	}
}

func checkWorker(t *testing.T, name string, s service, device string) {
	t.Helper()
	line := strings.Join(s.Command, " ")
	role, _, _ := strings.Cut(strings.TrimPrefix(name, "worker-"), "-")
	for variable, value := range map[string]map[string]string{
		"target": {"TANDEM_MAX_CTX": "4096", "TANDEM_MEMORY_CAP": "7GiB", "TANDEM_LOG_LEVEL": "debug"},
		"draft":  {"TANDEM_MAX_CTX": "4096", "TANDEM_DRAFT_CACHE_TYPE": "q8_0"}, "prefill": {"TANDEM_LOG_LEVEL": "debug"},
	}[role] {
		if !s.has(variable, value) {
			t.Errorf("%s: %s is %v, want %q", name, variable, s.Environment[variable], value)
		}
	}
	if role != "target" && s.has("TANDEM_MEMORY_CAP", "7GiB") || s.has("TANDEM_API_KEY", "secret") {
		t.Errorf("%s gets what is not for it", name)
	}
	asks := []string{"--worker-id=" + name, "--gateway=gateway:8104", "--advertise=" + name + ":8105", "--model=/models/",
		"--supervise"}
	switch name {
	case "worker-target-stage": // its head finds it, not the gateway
		asks = []string{"--stage=2/2", "--listen=0.0.0.0:8105", "--model=/models/", "--supervise"}
	case "worker-target-split":
		asks = append(asks, "--target-stages=worker-target-stage:8105")
	}
	for _, want := range asks {
		if !strings.Contains(line, want) {
			t.Errorf("%s lacks %s: %s", name, want, line)
		}
	}
	if role == "target" {
		devices := "cpu,cpu"
		if name == "worker-target-split" || name == "worker-target-stage" {
			devices = "" // a stage refuses them, and its head would have more stages than the stage knows
		}
		if s.Environment["TANDEM_STAGE"] != nil || s.Environment["TANDEM_TARGET_STAGES"] != nil ||
			!s.has("TANDEM_TARGET_DEVICES", devices) || !s.has("TANDEM_TARGET_LAYER_SPLIT", "5,3") {
			t.Errorf("%s gets another layout of stages than the profile's: %v", name, s.Environment)
		}
	}
	if s.Command[0] != "worker-"+role {
		t.Errorf("%s runs %s", name, s.Command[0])
	}
	// Code that the driver compiles outlives a restart: it lies in the volume.
	if v := s.Environment["CUDA_CACHE_PATH"]; strings.HasPrefix(device, "cuda") &&
		(v == nil || !strings.HasPrefix(*v, "/cache/")) {
		t.Errorf("%s: CUDA_CACHE_PATH is %v, not in /cache", name, v)
	}
	mounts := slices.Clone(s.Volumes)
	if len(mounts) > 0 {
		mounts[0].Source = "" // where the models lie on this host
	}
	// The join token comes from the gateway's container.
	if !slices.Equal(mounts, []volume{{Type: "bind", Target: "/models", ReadOnly: true},
		{Type: "volume", Source: "cache-" + role, Target: "/cache"},
		{Type: "volume", Source: "join", Target: "/join", ReadOnly: true}}) || !strings.Contains(line, "--cache-dir=/cache") {
		t.Errorf("%s mounts %+v: %s", name, s.Volumes, line)
	}
	nvidia, amd := s.Deploy.Resources.Reservations.Devices, s.Devices
	switch {
	case device == "cpu":
		if len(nvidia)+len(amd) > 0 || s.Image != "tandem-worker:local" {
			t.Errorf("%s reserves a card, or has image %s", name, s.Image)
		}
		return
	case strings.HasPrefix(device, "cuda"):
		if len(nvidia) != 1 || nvidia[0].Driver != "nvidia" || !slices.Equal(nvidia[0].IDs, []string{"2"}) || len(amd) > 0 ||
			s.Image != "tandem-worker-cuda:local" {
			t.Errorf("%s: image %s, reservations %+v, devices %+v", name, s.Image, nvidia, amd)
		}
	default:
		var sources []string
		for _, d := range amd {
			sources = append(sources, d.Source)
		}
		if !slices.Equal(sources, []string{"/dev/kfd", "/dev/dri"}) || len(s.GroupAdd) != 2 || len(nvidia) > 0 ||
			s.Image != "tandem-worker-rocm:local" {
			t.Errorf("%s: image %s, devices %v, groups %v", name, s.Image, sources, s.GroupAdd)
		}
	}
	if !strings.Contains(line, "--device="+device) {
		t.Errorf("%s is not on %s: %s", name, device, line)
	}
}
