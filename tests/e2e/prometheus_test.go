package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/tests/cluster"
	"github.com/tandem-inference/tandem/tests/observability"
)

// TestPrometheus runs a real Prometheus with the configuration of deploy/observability beside a cluster at work: every
// expression of every board has data, every alert rule can be evaluated, what it looks at has data, and none fires
// that should not. PROMETHEUS names the program; make observability-test builds it.
func TestPrometheus(t *testing.T) {
	program := os.Getenv("PROMETHEUS")
	if program == "" {
		t.Skip("PROMETHEUS names no Prometheus: make observability-test")
	}
	cl, pages := measured(t, "--kv-cache-dir", t.TempDir())
	p := startPrometheus(t, program, prometheusConfig(t, pages))
	stop := busy(t, cl)
	defer stop()

	boards, err := observability.Boards(root(t))
	if err != nil {
		t.Fatal(err)
	}
	asked := 0
	for _, b := range boards {
		for _, panel := range b.Panels {
			for _, target := range panel.Targets {
				asked++
				p.expect(t, b.File+", "+panel.Title, strings.ReplaceAll(target.Expr, "$__rate_interval", "15s"))
			}
		}
	}
	inputs, err := observability.AlertInputs(root(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, in := range inputs {
		asked++
		p.expect(t, "rules.yaml, "+in.Place, in.Expr)
	}
	t.Logf("%d expressions", asked)
	p.checkRules(t)
}

// measured starts a cluster whose processes all serve metrics, and returns their addresses by job.
func measured(t *testing.T, args ...string) (*cluster.Cluster, map[string]string) {
	t.Helper()
	needPrograms(t)
	var log recorded
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cl, err := cluster.Start(ctx, cluster.Options{Log: &log, Programs: measuring(t),
		Env:  []string{"TANDEM_MODELS_DIR=" + filepath.Join(root(t), "models")},
		Args: append([]string{"--demo", "--log-level", "info", "--log-format", "json"}, args...)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl, metricPages(t, cl, &log)
}

// metricPages returns the addresses at which the processes of a cluster serve metrics, by Prometheus' job.
func metricPages(t *testing.T, cl *cluster.Cluster, log *recorded) map[string]string {
	t.Helper()
	pages := map[string]string{"tandem-gateway": strings.TrimPrefix(cl.HTTP, "http://")}
	for _, role := range []string{"target", "draft", "prefill"} {
		port := regexp.MustCompile(`"logger":"worker\.` + role + `[^\n]*"port opened"[^\n]*"address":"([^"]+)"`).
			FindStringSubmatch(log.String())
		if port == nil {
			t.Fatalf("no port of %s in\n%s", role, log.String())
		}
		pages["tandem-"+role] = port[1]
	}
	return pages
}

var intervals = regexp.MustCompile(`(?m)^(  (?:scrape|evaluation)_interval:) .*$`)

// prometheusConfig writes the configuration of the profile with the addresses of a cluster, and shorter intervals.
func prometheusConfig(t *testing.T, pages map[string]string) string {
	t.Helper()
	folder := filepath.Join(root(t), "deploy", "observability")
	text, err := os.ReadFile(filepath.Join(folder, "prometheus.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	config, found := string(text), map[string]bool{}
	config = intervals.ReplaceAllString(config, "$1 1s")
	config = strings.Replace(config, "[rules.yaml]", "["+filepath.Join(folder, "rules.yaml")+"]", 1)
	for _, job := range regexp.MustCompile(`(?m)^  - job_name: (\S+)$`).FindAllStringSubmatch(config, -1) {
		found[job[1]] = true
	}
	if len(found) != len(pages) {
		t.Fatalf("the configuration has the jobs %v, the cluster %v", found, pages)
	}
	head, _, _ := strings.Cut(config, "scrape_configs:\n")
	var b strings.Builder
	b.WriteString(head + "scrape_configs:\n")
	for job, address := range pages {
		if !found[job] {
			t.Fatalf("the configuration has the jobs %v, the cluster %v", found, pages)
		}
		fmt.Fprintf(&b, "  - job_name: %s\n    static_configs:\n      - targets: [%q]\n", job, address)
	}
	path := filepath.Join(t.TempDir(), "prometheus.yaml")
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// prometheus is a running server.
type prometheus struct{ base string }

// startPrometheus runs one until the test ends.
func startPrometheus(t *testing.T, program, config string) *prometheus {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, "--config.file="+config, "--storage.tsdb.path="+t.TempDir(),
		"--web.listen-address=127.0.0.1:0")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	errOut, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var log recorded
	opened, ended := make(chan string, 1), make(chan struct{})
	go func() {
		defer close(ended)
		lines := bufio.NewScanner(errOut)
		for lines.Scan() {
			_, _ = log.Write([]byte(lines.Text() + "\n"))
			if _, address, ok := strings.Cut(lines.Text(), `msg="Listening on" component=web address=`); ok {
				opened <- address
			}
		}
		_, _ = io.Copy(io.Discard, errOut) // a line that is too long
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-ended
		if t.Failed() {
			t.Logf("Prometheus:\n%s", log.String())
		}
	})
	select {
	case address := <-opened:
		base := "http://" + address
		eventually(t, "Prometheus is ready", func() bool {
			response, err := http.Get(base + "/-/ready")
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			return response.StatusCode == http.StatusOK
		})
		return &prometheus{base}
	case <-ended:
		t.Fatalf("Prometheus ended:\n%s", log.String())
	case <-time.After(patience):
		t.Fatalf("Prometheus opens no port:\n%s", log.String())
	}
	return nil
}

// busy sends requests one after the other until stop is called: plain, drafted and compressed ones, with states to
// restore.
func busy(t *testing.T, cl *cluster.Cluster) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wait sync.WaitGroup
	wait.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			mode := []string{"off", "chain", "tree", "auto"}[i%4]
			body := fmt.Sprintf(`{"messages":[{"role":"user","content":%q}],"pflash":{"mode":"always","keep_ratio":0.3},`+
				`"speculation":{"mode":%q},"max_tokens":40,"temperature":0,"stream":true}`, question, mode)
			_, traceparent := newTrace()
			if err := posted(ctx, cl.HTTP+"/v1/chat/completions", traceparent, fmt.Sprint("busy-", i), body,
				nil); err != nil && ctx.Err() == nil {
				t.Errorf("request %d: %v", i, err)
				return
			}
		}
	})
	return func() {
		cancel()
		wait.Wait()
	}
}

// answer is one of the API.
type answer struct {
	Status, Error string
	Data          struct {
		Result []struct {
			Value [2]any
		}
		Groups []struct {
			Rules []struct{ Name, Health, LastError, State string }
		}
	}
}

func (p *prometheus) ask(t *testing.T, path string) answer {
	t.Helper()
	response, err := http.Get(p.base + path)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var a answer
	if err := json.NewDecoder(response.Body).Decode(&a); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return a
}

// seldom are expressions without data as long as what they count has not happened; a processor runs no graphs.
var seldom = regexp.MustCompile(`tandem_retries_total|outcome="server_error"|tandem_engine_submissions_total`)

// expect waits until an expression has a number.
func (p *prometheus) expect(t *testing.T, place, expr string) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		a := p.ask(t, "/api/v1/query?query="+url.QueryEscape(expr))
		if a.Status != "success" {
			t.Errorf("%s: %s: %s", place, expr, a.Error)
			return
		}
		for _, r := range a.Data.Result {
			text, _ := r.Value[1].(string)
			if v, err := strconv.ParseFloat(text, 64); err == nil && !math.IsNaN(v) {
				return
			}
		}
		if seldom.MatchString(expr) {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("%s: no data for %s", place, expr)
			return
		}
		time.Sleep(100 * time.Millisecond) // poll: another process changes this
	}
}

// checkRules waits until all rules were evaluated.
func (p *prometheus) checkRules(t *testing.T) {
	t.Helper()
	rules := 0
	eventually(t, "all rules are evaluated", func() bool {
		rules = 0
		for _, g := range p.ask(t, "/api/v1/rules").Data.Groups {
			for _, r := range g.Rules {
				rules++
				if r.Health == "err" {
					t.Fatalf("%s: %s", r.Name, r.LastError)
				}
				if r.Health != "ok" {
					return false
				}
				if r.State == "firing" {
					t.Errorf("%s fires in a healthy cluster", r.Name)
				}
			}
		}
		return rules > 0
	})
	groups, err := observability.Rules(root(t))
	if err != nil {
		t.Fatal(err)
	}
	want := 0
	for _, g := range groups.Groups {
		want += len(g.Rules)
	}
	if rules != want {
		t.Errorf("Prometheus has %d rules, rules.yaml %d", rules, want)
	}
}
