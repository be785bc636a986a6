package host_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/engine/enginetest"
	"github.com/tandem-inference/tandem/services/engine/host"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/testwait"
)

// fakeProgram makes this test binary serve a fake engine, as tandem-engine serves a library.
const fakeProgram = "TANDEM_TEST_ENGINE"

func TestMain(m *testing.M) {
	mode := os.Getenv(fakeProgram)
	if mode == "" {
		goleak.VerifyTestMain(m)
		return
	}
	fmt.Fprintln(os.Stderr, `{"@level":"info","@message":"fake engine starts","@timestamp":"2026-01-02T15:04:05.000000Z"}`)
	o := enginefake.Options{}
	switch mode {
	case "wide":
		o = wide
	case "middle":
		o = middle
	case "exit":
		os.Exit(7)
	case "slow":
		o.OpenDelay = time.Minute
	case "last-words":
		stderr := os.Stderr // as native code has it: go-plugin puts another file in its place
		o.Next = func([]int32) (int32, bool) {
			// In one piece that the pipe holds: most of it is unread when the process has ended.
			fmt.Fprint(stderr, strings.Repeat("frame\n", 10_000), "that was all\n")
			os.Exit(3)
			return 0, false
		}
	case "exit-in-open":
		o.CheckFile = func(string, string) error {
			os.Exit(9)
			return nil
		}
	}
	var opener engine.Opener = enginefake.New(o)
	if mode == "pinged" {
		opener = pinged{opener, os.Stderr}
	}
	server := host.NewServer(opener)
	goplugin.Serve(&goplugin.ServeConfig{
		HandshakeConfig: host.Handshake,
		Plugins:         host.PluginSet(server),
		Logger:          hclog.New(&hclog.LoggerOptions{Output: os.Stderr, JSONFormat: true}),
		GRPCServer: func(o []grpc.ServerOption) *grpc.Server {
			return grpc.NewServer(append(o, host.ServerOptions(nil)...)...)
		},
	})
	_ = server.Shutdown()
}

// pinged opens targets that write a line when their handles are listed, as a host does to see whether a process
// answers.
type pinged struct {
	engine.Opener
	to io.Writer
}

func (p pinged) OpenTarget(ctx context.Context, o engine.OpenOptions, progress engine.Progress) (engine.Target, error) {
	e, err := p.Opener.OpenTarget(ctx, o, progress)
	if err != nil {
		return nil, err
	}
	return &pingedEngine{e, p.to}, nil
}

type pingedEngine struct {
	engine.Target
	to io.Writer
}

func (e *pingedEngine) Handles(ctx context.Context) (engine.Handles, error) {
	fmt.Fprintln(e.to, "pinged")
	return e.Target.Handles(ctx)
}

func newHost(t testing.TB, mode string) *host.Host {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	h, err := host.NewHost(host.HostConfig{Program: self, Env: []string{fakeProgram + "=" + mode}, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestFakeProcess(t *testing.T) {
	if testing.Short() {
		t.Skip("dozens of processes take minutes under the race detector")
	}
	enginetest.Run(t, func(t *testing.T) (engine.Opener, enginetest.Models) {
		return newHost(t, "fake"), enginetest.FakeModels
	})
}

func TestHostSocketIsPrivate(t *testing.T) {
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	h, err := host.NewHost(host.HostConfig{Program: self, Env: []string{fakeProgram + "=fake"}, Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	e, err := h.OpenTarget(t.Context(), enginetest.TargetOptions(), nil)
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Fatal(entries, err)
	}
	info, err := os.Stat(filepath.Join(dir, entries[0].Name()))
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if lines := e.(*host.TargetProcess).Stderr(); len(lines) == 0 || !strings.Contains(lines[0], "fake engine starts") {
		t.Errorf("stderr: %q", lines)
	}
	if entries, _ = os.ReadDir(dir); len(entries) != 0 {
		t.Errorf("left behind: %v", entries)
	}
}

func TestHostErrors(t *testing.T) {
	var c host.HostConfig
	c.Program = filepath.Join(t.TempDir(), "nothing")
	if _, err := host.NewHost(c); err == nil {
		t.Error("a program that does not exist is accepted")
	}
	_, err := newHost(t, "exit").OpenTarget(t.Context(), enginetest.TargetOptions(), nil)
	if !errors.Is(err, rpcerr.EngineLost) {
		t.Errorf("a program that exits: %v", err)
	}
	_, err = newHost(t, "exit-in-open").OpenTarget(t.Context(), enginetest.TargetOptions(), nil)
	if !errors.Is(err, rpcerr.EngineLost) || !strings.Contains(err.Error(), "exit status 9") {
		t.Errorf("a program that exits while it loads: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = newHost(t, "slow").OpenTarget(ctx, enginetest.TargetOptions(), nil)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a slow program: %v", err)
	}
	o := enginetest.TargetOptions()
	o.ModelPath = "missing"
	if _, err = newHost(t, "fake").OpenTarget(t.Context(), o, nil); rpcerr.Code(err) != codes.NotFound {
		t.Errorf("a missing model: %v", err)
	}
}

func TestProcessDeath(t *testing.T) {
	e, err := newHost(t, "fake").OpenTarget(t.Context(), enginetest.TargetOptions(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	q, err := e.NewSequence(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p := e.(*host.TargetProcess)
	if err := syscall.Kill(p.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testwait.For(t, p.Done(), "the engine's end is seen")
	step := enginetest.OneRow(q)
	for what, err := range map[string]error{
		"err": p.Err(), "step": e.Step(t.Context(), step, &engine.StepResult{}), "free": e.FreeSequence(t.Context(), q),
	} {
		if !errors.Is(err, rpcerr.EngineLost) || rpcerr.Code(err) != codes.Unavailable {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := p.Err(); !strings.Contains(err.Error(), "killed") {
		t.Errorf("how it ended is not told: %v", err)
	}
}

// events records what a supervisor tells.
type events struct {
	mu   sync.Mutex
	list []string
}

func (e *events) add(v host.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, fmt.Sprint(map[host.EventKind]string{
		host.EngineUp: "up", host.EngineDown: "down", host.EngineFailed: "failed"}[v.Kind], v.Generation))
}

func (e *events) String() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return strings.Join(e.list, " ")
}

func TestSupervisorRestarts(t *testing.T) {
	var seen events
	s := host.NewSupervisor(newHost(t, "fake").OpenTarget, enginetest.TargetOptions(),
		host.RestartConfig{Budget: 2, Backoff: time.Millisecond, OnEvent: seen.add})
	result := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { result <- s.Run(ctx) }()
	for want := uint64(1); want <= 3; want++ {
		var e engine.Target
		var err error
		for g := uint64(0); g != want; {
			if e, g, err = s.Engine(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := e.NewSequence(t.Context()); err != nil {
			t.Fatalf("generation %d: %v", want, err)
		}
		p := e.(*host.TargetProcess)
		if err := syscall.Kill(p.PID(), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		testwait.For(t, p.Done(), "the engine's end is seen")
	}
	if err := testwait.For(t, result, "the supervisor gives up"); !errors.Is(err, rpcerr.EngineLost) {
		t.Errorf("budget spent: %v", err)
	}
	if _, _, err := s.Engine(t.Context()); rpcerr.Code(err) != codes.Unavailable {
		t.Errorf("engine of an ended supervisor: %v", err)
	}
	if got := seen.String(); got != "up1 down1 up2 down2 up3 failed3" {
		t.Error(got)
	}
}

// TestLastWords: what a process wrote before it ended is told whole, though the loss shows sooner by its broken stream.
func TestLastWords(t *testing.T) {
	down := make(chan host.Event, 1)
	s := host.NewSupervisor(newHost(t, "last-words").OpenTarget, enginetest.TargetOptions(),
		host.RestartConfig{Backoff: time.Hour, MaxBackoff: time.Hour, OnEvent: func(e host.Event) {
			if e.Kind == host.EngineDown {
				down <- e
			}
		}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.Run(ctx)
	}()
	defer func() {
		cancel()
		<-ended
	}()
	e, _, err := s.Engine(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	q, err := e.NewSequence(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Step(t.Context(), enginetest.OneRow(q), &engine.StepResult{}); !errors.Is(err, rpcerr.EngineLost) {
		t.Errorf("step: %v", err)
	}
	if lines := testwait.For(t, down, "an event of the engine's end").Stderr; len(lines) == 0 ||
		lines[len(lines)-1] != "that was all" {
		t.Errorf("stderr: %q", lines)
	}
}

func TestSupervisorStops(t *testing.T) {
	f := enginefake.New(enginefake.Options{FailAfterSteps: 2})
	var seen events
	s := host.NewSupervisor(f.OpenTarget, enginetest.TargetOptions(),
		host.RestartConfig{Backoff: time.Millisecond, OnEvent: seen.add})
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- s.Run(ctx) }()
	e, _, err := s.Engine(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	q, err := e.NewSequence(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// A poisoned engine is replaced like a lost one.
	for range 3 {
		err = e.Step(t.Context(), noRows(q), &engine.StepResult{})
	}
	if rpcerr.Code(err) != codes.Internal {
		t.Errorf("poisoned: %v", err)
	}
	for s.Generation() < 2 {
		if _, _, err := s.Engine(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	if err := testwait.For(t, result, "the supervisor ends"); err != nil {
		t.Error(err)
	}
	for _, e := range f.Opened() {
		if e.Err() == nil {
			t.Error("an engine is left open")
		}
	}
	// A model that is not there is not tried again.
	o := enginetest.TargetOptions()
	o.ModelPath = "missing"
	err = host.NewSupervisor(f.OpenTarget, o, host.RestartConfig{}).Run(t.Context())
	if rpcerr.Code(err) != codes.NotFound {
		t.Error(err)
	}
}

func TestHostLogs(t *testing.T) {
	var mu sync.Mutex
	var out bytes.Buffer
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	h, err := host.NewHost(host.HostConfig{
		Program: self, Env: []string{fakeProgram + "=fake"}, Dir: t.TempDir(),
		Logger: hclog.New(&hclog.LoggerOptions{Output: &out, Mutex: &mu, JSONFormat: true, Level: hclog.Info}),
	})
	if err != nil {
		t.Fatal(err)
	}
	e, err := h.OpenTarget(t.Context(), enginetest.TargetOptions(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if !strings.Contains(out.String(), "fake engine starts") {
		t.Errorf("the engine's line is missing: %s", out.String())
	}
}
