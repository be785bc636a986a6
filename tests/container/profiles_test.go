package container

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/tests/cluster"
)

// service is what a test looks at in the output of docker compose config.
type service struct {
	Command []string
	Build   struct {
		Dockerfile string
		Args       map[string]string
	}
	Image   string
	Devices []struct{ Source string }
	Volumes []struct {
		Target   string
		ReadOnly bool `json:"read_only"`
	}
	GroupAdd []string `json:"group_add"`
	Deploy   struct {
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
		{"cuda", map[string]string{"worker-target-cuda": "cuda:0", "worker-draft-cuda": "cuda:0", "worker-prefill-cuda": "cuda:0"}, []string{"worker-cuda"}},
		{"rocm", map[string]string{"worker-target-rocm": "hip:0", "worker-draft-rocm": "hip:0", "worker-prefill-rocm": "hip:0"}, []string{"worker-rocm"}},
		{"rig", map[string]string{"worker-target-cuda": "cuda:0", "worker-draft-rocm": "hip:0", "worker-prefill-rocm": "hip:0"}, []string{"worker-cuda", "worker-rocm"}},
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
				if name == "gateway" {
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
	cmd.Env = append(cmd.Env, "TANDEM_CUDA_DEVICE=2", "TANDEM_HIP_DEVICE=1")
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

func checkWorker(t *testing.T, name string, s service, device string) {
	t.Helper()
	line := strings.Join(s.Command, " ")
	for _, want := range []string{"--gateway=gateway:8104", "--advertise=" + name + ":8105", "--model=/models/"} {
		if !strings.Contains(line, want) {
			t.Errorf("%s lacks %s: %s", name, want, line)
		}
	}
	if role, _, _ := strings.Cut(strings.TrimPrefix(name, "worker-"), "-"); s.Command[0] != "worker-"+role {
		t.Errorf("%s runs %s", name, s.Command[0])
	}
	if len(s.Volumes) != 1 || s.Volumes[0].Target != "/models" || !s.Volumes[0].ReadOnly {
		t.Errorf("%s mounts %+v", name, s.Volumes)
	}
	nvidia, amd := s.Deploy.Resources.Reservations.Devices, s.Devices
	switch {
	case device == "cpu":
		if len(nvidia)+len(amd) > 0 || s.Image != "tandem-worker:local" {
			t.Errorf("%s reserves a card, or has image %s", name, s.Image)
		}
		return
	case strings.HasPrefix(device, "cuda"):
		if len(nvidia) != 1 || nvidia[0].Driver != "nvidia" || !slices.Equal(nvidia[0].IDs, []string{"2"}) || len(amd) > 0 || s.Image != "tandem-worker-cuda:local" {
			t.Errorf("%s: image %s, reservations %+v, devices %+v", name, s.Image, nvidia, amd)
		}
	default:
		var sources []string
		for _, d := range amd {
			sources = append(sources, d.Source)
		}
		if !slices.Equal(sources, []string{"/dev/kfd", "/dev/dri"}) || len(s.GroupAdd) != 2 || len(nvidia) > 0 || s.Image != "tandem-worker-rocm:local" {
			t.Errorf("%s: image %s, devices %v, groups %v", name, s.Image, sources, s.GroupAdd)
		}
	}
	if !strings.Contains(line, "--device="+device) {
		t.Errorf("%s is not on %s: %s", name, device, line)
	}
}
