package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/tandem-inference/tandem/native/plugin/internal/native"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginetest"
	"github.com/tandem-inference/tandem/services/engine/host"
	"github.com/tandem-inference/tandem/services/engine/staged"
	"github.com/tandem-inference/tandem/services/engine/stagenet"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/tensorwire"
)

// kind is a kind of device, whose engines are opened in this process or in one of their own.
type kind struct {
	inside, process engine.Opener
}

// mixed opens targets whose layers are spread over kinds of devices.
type mixed struct {
	engine.Opener // for all but targets
	t             *testing.T
	kinds         []kind
	layers        []int
	way           string // inside this process, "processes" of one worker, or "hosts": all but the first elsewhere
}

func (m *mixed) OpenTarget(ctx context.Context, o engine.OpenOptions, p engine.Progress) (engine.Target, error) {
	o.Threads = 1 // the emulated card has threads of its own
	var stages []staged.Stage
	for i, k := range m.kinds {
		s := staged.Stage{Open: k.process.OpenTarget, Layers: m.layers[i]}
		switch {
		case m.way == "inside":
			s.Open = k.inside.OpenTarget
		case m.way == "hosts" && i > 0:
			s.Open = m.elsewhere(i, k)
		}
		stages = append(stages, s)
	}
	return staged.Open(stages, engine.HiddenF32)(ctx, o, p)
}

// elsewhere serves stage i behind TCP, with memory that nobody else sees.
func (m *mixed) elsewhere(i int, k kind) engine.Open[engine.Target] {
	return func(ctx context.Context, o engine.OpenOptions, p engine.Progress) (engine.Target, error) {
		layers := 0
		for _, n := range m.layers {
			layers += n
		}
		d := stagenet.Description{Version: "test", Stage: i + 1, Stages: len(m.kinds), Layers: layers, First: o.LayerFirst,
			Last: o.LayerLast, Digest: "same"}
		dial := func(address string) (*grpc.ClientConn, error) {
			return grpc.NewClient(address, append(append(tensorwire.DialOptions(), rpcerr.DialOptions()...),
				grpc.WithTransportCredentials(insecure.NewCredentials()))...)
		}
		s := stagenet.NewServer(stagenet.ServerConfig{Description: d, Open: k.process.OpenTarget, Options: o,
			Dir: m.t.TempDir(), HangLimit: -1, Dial: dial, Log: zap.NewNop()})
		options := append(append(tensorwire.ServerOptions(), rpcerr.ServerOptions(nil)...), grpc.WaitForHandlers(true))
		g := grpc.NewServer(append(options, stagenet.Options(tensorwire.MaxMessageBytes)...)...)
		s.Register(g)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		done := make(chan struct{})
		go func() { defer close(done); _ = g.Serve(l) }()
		m.t.Cleanup(func() { s.Drain(); g.Stop(); <-done })
		return stagenet.Open(stagenet.OpenConfig{Address: l.Addr().String(), Dial: dial, Want: d, HeadID: "test",
			HangLimit: -1, NoMemory: true, Log: zap.NewNop()})(ctx, o, p)
	}
}

// TestProcessorAndCardOnALibrary: a target on a processor and on the card whose library TANDEM_ENGINE_LIB names, such
// as the emulated one, has arithmetic of its own. It keeps the promises of an engine, and has the same bits wherever
// its stages run: in one process, in processes of one worker, or on other hosts.
func TestProcessorAndCardOnALibrary(t *testing.T) {
	if os.Getenv("TANDEM_ENGINE_LIB") == "" {
		t.Skip("needs TANDEM_ENGINE_LIB")
	}
	library, _ := files(t)
	bin := build(t)
	open := func(lib string) kind {
		inside, err := native.Load(lib, func(int, string) {})
		if err != nil {
			t.Fatal(err)
		}
		process, err := host.NewHost(host.HostConfig{Program: bin, Library: lib, Dir: t.TempDir(), HangLimit: -1})
		if err != nil {
			t.Fatal(err)
		}
		return kind{inside, process}
	}
	processor, err := filepath.Abs("../../bin/libtandem_cpu.so")
	if err != nil {
		t.Fatal(err)
	}
	cpu, card := open(processor), open(library)
	models := enginetest.Models{Target: randomModel(t, "ratio3")}
	for name, c := range map[string]struct {
		kinds  []kind
		layers []int
	}{
		"processor, card":            {[]kind{cpu, card}, []int{3, 1}},
		"card, processor":            {[]kind{card, cpu}, []int{1, 3}},
		"processor, card, processor": {[]kind{cpu, card, cpu}, []int{1, 1, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			var openers []engine.Opener
			for _, way := range []string{"inside", "processes", "hosts"} {
				m := &mixed{cpu.inside, t, c.kinds, c.layers, way}
				openers = append(openers, m)
				m.states(models.Target)
			}
			enginetest.Same(t, models, openers...)
		})
	}
	t.Run("promises", func(t *testing.T) {
		enginetest.Run(t, func(t *testing.T) (engine.Opener, enginetest.Models) {
			return &mixed{cpu.inside, t, []kind{cpu, card, cpu}, []int{1, 1, 2}, "inside"}, models
		}, "KindIsStated", "TreeCommitEqualsPlainDecode")
	})
}

// states checks what a target says of itself: its arithmetic by layers, the card's contract of prompts, and the ways of
// its rows.
func (m *mixed) states(model string) {
	m.t.Helper()
	o := enginetest.TargetOptions()
	o.ModelPath = model
	e, err := m.OpenTarget(m.t.Context(), o, nil)
	if err != nil {
		m.t.Fatal(err)
	}
	defer e.Close()
	i := e.Info()
	if i.PromptRows == 0 || strings.Count(i.Numerics, " + ") != len(m.kinds)-1 || len(i.Stages) != len(m.kinds) {
		m.t.Errorf("%s: %d rows, numerics %q, stages %+v", m.way, i.PromptRows, i.Numerics, i.Stages)
	}
	want := map[string]engine.RowsWay{"inside": engine.RowsByHead, "processes": engine.RowsInMemory,
		"hosts": engine.RowsDirect}[m.way]
	for _, s := range i.Stages[1:] {
		if s.Rows != want {
			m.t.Errorf("%s: rows go %q, want %q", m.way, s.Rows, want)
		}
	}
}
