package container

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/tests/cluster"
)

// TestGPUImages builds the images for cards, one generation each, on stand-ins for the vendors' images: what the
// Dockerfiles do is what is tested, and that a worker without a card says so.
func TestGPUImages(t *testing.T) {
	if os.Getenv("TANDEM_TEST_GPU_IMAGES") == "" {
		t.Skip("compiles all kernels in containers, 15 minutes: set TANDEM_TEST_GPU_IMAGES=1")
	}
	needTime(t, 35*time.Minute)
	if out, err := exec.Command("docker", "info").CombinedOutput(); err != nil {
		t.Skipf("no container engine is running: %s", lastLine(out))
	}
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	images := baseImages(t, root, "cuda", "rocm")
	for _, c := range []struct {
		vendor, device string
		args           []string
	}{
		{"cuda", "cuda:0", []string{"CUDA_BUILD=" + images["cuda"], "CUDA_BASE=" + images["base"], "CUDA_ARCHS=86"}},
		{"rocm", "hip:0", []string{"ROCM_BUILD=" + images["rocm"], "ROCM_BASE=" + images["rocm"], "HIP_ARCHS=gfx1100"}},
	} {
		t.Run(c.vendor, func(t *testing.T) {
			image := "tandem-test-worker-" + c.vendor
			args := []string{"build", "-t", image, "-f", filepath.Join("deploy", "Dockerfile.worker-"+c.vendor)}
			for _, arg := range append(c.args, "GO_IMAGE="+images["go"], "VERSION=test") {
				args = append(args, "--build-arg", arg)
			}
			build := exec.CommandContext(t.Context(), "docker", append(args, ".")...)
			build.Dir, build.Env = root, append(os.Environ(), "DOCKER_BUILDKIT=0")
			if out, err := build.CombinedOutput(); err != nil {
				t.Fatalf("build: %v\n%s", err, last(string(out), 4000))
			}
			t.Cleanup(func() { _ = exec.Command("docker", "rmi", image).Run() })

			run := exec.CommandContext(t.Context(), "docker", "run", "--rm", "-v",
				filepath.Join(root, "models")+":/models:ro", image,
				"worker-target", "serve", "--device", c.device, "--model", "/models/tandem-tiny-target-q4_k_m.gguf")
			out, err := run.CombinedOutput()
			if want := `device "` + c.device + `": there is no`; err == nil || !strings.Contains(string(out), want) {
				t.Errorf("a worker without a card: %v, want %q:\n%s", err, want, last(string(out), 2000))
			}
		})
	}
}
