// Package container tests the images and compose.yaml with a real container engine.
package container

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/tests/client"
	"github.com/tandem-inference/tandem/tests/cluster"
)

// TestDockerCompose builds the images, starts the cluster, asks, kills the draft, asks again and takes all down; then
// the same with the target's layers in two containers, of which one is killed. It needs a running engine, Compose v2
// and some minutes; base images are made from files of this machine when they cannot be had.
func TestDockerCompose(t *testing.T) {
	if testing.Short() {
		t.Skip("builds images: minutes")
	}
	if out, err := exec.Command("docker", "info").CombinedOutput(); err != nil {
		t.Skipf("no container engine is running: %s", lastLine(out))
	}
	needTime(t, 15*time.Minute+afterBuild)
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	compose := findCompose(t, root)
	images := baseImages(t, root)

	port, rpcPort := freePort(t), freePort(t)
	keys := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(keys, []byte("test: "+composeKey+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(keys), 0o755); err != nil {
		t.Fatal(err)
	}
	env := append(os.Environ(), "DOCKER_BUILDKIT=0", "TANDEM_GO_IMAGE="+images["go"], "TANDEM_BASE_IMAGE="+images["base"],
		"TANDEM_PORT="+strconv.Itoa(port), "TANDEM_GRPC_PORT="+strconv.Itoa(rpcPort), "TANDEM_VERSION=test",
		// Settings of the gateway and of the target that no line of compose.yaml holds by name.
		"TANDEM_API_KEY_FILE="+keys, "TANDEM_MAX_CTX=4096", "TANDEM_MODEL_NAME=passed-on", "TANDEM_LOG_LEVEL=warn")
	project := fmt.Sprintf("tandem-test-%d", os.Getpid())
	do := func(limit time.Duration, args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		cmd := exec.CommandContext(ctx, compose[0],
			append(append([]string{}, compose[1:]...), append([]string{"-p", project}, args...)...)...)
		cmd.Dir, cmd.Env = root, env
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	must := func(limit time.Duration, args ...string) string {
		t.Helper()
		out, err := do(limit, args...)
		if err != nil {
			t.Fatalf("compose %s: %v\n%s", strings.Join(args, " "), err, last(out, 4000))
		}
		return out
	}
	must(buildTime(t), "build")
	t.Cleanup(func() {
		if t.Failed() {
			logs, _ := do(time.Minute, "logs", "--tail", "40")
			t.Log(logs)
		}
		if out, err := do(2*time.Minute, "down", "--volumes", "--timeout", "20"); err != nil {
			t.Errorf("down: %v\n%s", err, out)
		}
		left, _ := exec.Command("docker", "ps", "-aq", "--filter", "label=com.docker.compose.project="+project).Output()
		if len(bytes.TrimSpace(left)) > 0 {
			t.Errorf("containers left: %s", left)
		}
	})
	must(3*time.Minute, "up", "--detach", "--wait", "--wait-timeout", "120")

	c := client.New(fmt.Sprintf("http://127.0.0.1:%d", port))
	c.Key = composeKey
	// A tree is asked for: whether the automatic choice drafts depends on how busy the machine is.
	ask := func() client.Reply {
		t.Helper()
		reply, err := c.Do(t.Context(), client.Request{
			Messages: []client.Message{{Role: "user", Content: "What is DDTree?"}}, MaxTokens: 80,
			Speculation: &client.Speculation{Mode: "tree", Budget: 16},
		})
		if err != nil {
			t.Fatal(err)
		}
		return reply
	}
	before := ask()
	if !strings.Contains(before.Text, "tree") || before.Usage.AcceptRate == nil {
		t.Errorf("answer %q, %+v", before.Text, before.Usage)
	}
	for service, ports := range map[string][]string{"gateway": {"8000", "8103"}, "worker-target": nil, "worker-draft": nil,
		"worker-prefill": nil} {
		for _, inside := range []string{"8000", "8103", "8104", "8105"} {
			out, err := do(time.Minute, "port", service, inside)
			open := err == nil && strings.HasPrefix(strings.TrimSpace(out), "127.0.0.1:") &&
				!strings.HasSuffix(strings.TrimSpace(out), ":0")
			if open != slices.Contains(ports, inside) {
				t.Errorf("port %s of %s is open: %v, %s", inside, service, open, out)
			}
		}
	}
	checkPassedOn(t, port)

	must(time.Minute, "kill", "worker-draft")
	if during := ask(); during.Text != before.Text {
		t.Errorf("without the draft: %q, with it: %q", during.Text, before.Text)
	}
	must(time.Minute, "start", "worker-draft")
	deadline := time.Now().Add(30 * time.Second)
	for {
		reply := ask()
		if reply.Text != before.Text {
			t.Fatalf("with the draft back: %q", reply.Text)
		}
		if reply.Usage.AcceptRate != nil && *reply.Usage.AcceptRate > 0.3 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("drafts are not accepted again 30 s after the draft's restart")
		}
		time.Sleep(100 * time.Millisecond) // poll: the draft joins by itself
	}
	checkKill(t, c, func() {
		must(time.Minute, "kill", "worker-target")
		must(time.Minute, "start", "worker-target")
	})

	// What must survive the containers lies in volumes: the key that seals reasoning, and digests of models.
	kept := func(service, path string) string {
		t.Helper()
		file := filepath.Join(t.TempDir(), "kept")
		must(time.Minute, "cp", service+":"+path, file)
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	key := kept("gateway", "/state/gateway.key")
	must(time.Minute, "down", "--timeout", "20")
	must(3*time.Minute, "up", "--detach", "--wait", "--wait-timeout", "120")
	if kept("gateway", "/state/gateway.key") != key {
		t.Error("the key that seals reasoning is another after down and up")
	}
	checkPassedOn(t, port)
	if after := ask(); after.Text != before.Text {
		t.Errorf("after down and up: %q", after.Text)
	}

	must(time.Minute, "down", "--timeout", "20")
	split := func(args ...string) []string { return append([]string{"--profile", "split"}, args...) }
	t.Cleanup(func() {
		if out, err := do(2*time.Minute, split("down", "--volumes", "--timeout", "20")...); err != nil {
			t.Errorf("down: %v\n%s", err, out)
		}
	})
	must(3*time.Minute, split("up", "--detach", "--wait", "--wait-timeout", "120")...)
	if after := ask(); after.Text != before.Text || after.Usage.AcceptRate == nil {
		t.Errorf("of a target in two containers: %q, %+v", after.Text, after.Usage)
	}
	checkKill(t, c, func() {
		must(time.Minute, split("kill", "worker-target-stage")...)
		must(time.Minute, split("start", "worker-target-stage")...)
	})
}

// checkKill kills the target's container in the midst of a long answer and starts it again: the answer must go on, with
// the text that it has without.
func checkKill(t *testing.T, c *client.Client, restart func()) {
	t.Helper()
	request := client.Request{Messages: []client.Message{{Role: "user", Content: "Tell me all about Go."}},
		// Neither end of turn nor end of text, so that the answer is long enough.
		MaxTokens: 600, LogitBias: map[string]int{"8160": -100, "8162": -100}}
	want, err := c.Do(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	if want.Usage.CompletionTokens != request.MaxTokens {
		t.Fatalf("the answer has %d tokens, want %d", want.Usage.CompletionTokens, request.MaxTokens)
	}
	var once sync.Once
	done := make(chan struct{})
	got, err := c.Stream(t.Context(), request, func(string) {
		once.Do(func() {
			go func() {
				defer close(done)
				restart()
			}()
		})
	})
	<-done
	if err != nil || got.Text != want.Text {
		t.Errorf("with the target killed and started again: %v, %q, want %q", err, got.Text, want.Text)
	}
}

// composeKey is the gateway's key in the test.
const composeKey = "key-of-the-test"

// checkPassedOn looks at what the gateway says of itself: the key is asked for, the target's context and the model's
// name are those of the environment, workers have the same names at every start.
func checkPassedOn(t *testing.T, port int) {
	t.Helper()
	get := func(path, key string) (int, string) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
			fmt.Sprintf("http://127.0.0.1:%d%s", port, path), nil)
		if err != nil {
			t.Fatal(err)
		}
		if key != "" {
			request.Header.Set("Authorization", "Bearer "+key)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(body)
	}
	if status, body := get("/v1/models", ""); status != http.StatusUnauthorized {
		t.Errorf("without the key: %d %s", status, body)
	}
	if status, body := get("/v1/models", composeKey); status != http.StatusOK || !strings.Contains(body, `"passed-on"`) ||
		!strings.Contains(body, `"context_length":4096`) {
		t.Errorf("models: %d %s", status, body)
	}
	for _, id := range []string{"worker-target", "worker-draft", "worker-prefill"} {
		if _, body := get("/cluster", composeKey); !strings.Contains(body, `"id":"`+id+`"`) {
			t.Errorf("/cluster has no %s: %s", id, body)
		}
	}
}

// needTime fails at once when the test's deadline is nearer than limit: a panic of go test in the midst of a build
// cleans up nothing.
func needTime(t *testing.T, limit time.Duration) {
	t.Helper()
	if deadline, ok := t.Deadline(); ok && time.Until(deadline) < limit {
		t.Fatalf("the test may take %v, but go test ends it in %v: give -timeout 40m", limit,
			time.Until(deadline).Round(time.Second))
	}
}

// afterBuild is how long the rest of TestDockerCompose takes at most, its cleanup included.
const afterBuild = 13 * time.Minute

// buildTime is how long building images may take: what go test leaves beside the rest. On a busy machine of two cores
// the engine alone took a quarter of an hour.
func buildTime(t *testing.T) time.Duration {
	deadline, ok := t.Deadline()
	if !ok {
		return time.Hour
	}
	return time.Until(deadline) - afterBuild
}

// findCompose returns the command of Compose v2: the plug-in of the client, or the program that make compose builds.
func findCompose(t *testing.T, root string) []string {
	t.Helper()
	if exec.Command("docker", "compose", "version").Run() == nil {
		return []string{"docker", "compose"}
	}
	if path := filepath.Join(root, "bin", "docker-compose"); exec.Command(path, "version").Run() == nil {
		return []string{path}
	}
	t.Skip("no Compose v2: run make compose")
	return nil
}

// baseImages makes the images that the Dockerfiles start from, "go" and "base" and those named besides ("cuda" and
// "rocm" or none), tagged by the modules and tools that they hold.
func baseImages(t *testing.T, root string, more ...string) map[string]string {
	t.Helper()
	hash := sha256.New()
	for _, path := range []string{"go.sum", "tools/base-images.sh"} {
		data, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		hash.Write(data)
	}
	tag := hex.EncodeToString(hash.Sum(nil))[:12]
	images := map[string]string{}
	var names []string
	for _, kind := range append([]string{"go", "base"}, more...) {
		images[kind] = "tandem-test-" + kind + ":" + tag
		names = append(names, images[kind])
	}
	cmd := exec.Command(filepath.Join(root, "tools", "base-images.sh"), names...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("base images: %v\n%s", err, last(string(out), 2000))
	}
	return images
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func lastLine(text []byte) string {
	text = bytes.TrimSpace(text)
	return string(text[bytes.LastIndexByte(text, '\n')+1:])
}

func last(text string, n int) string { return text[max(0, len(text)-n):] }
