package modelcopy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/gguf"
	"github.com/tandem-inference/tandem/services/gguf/gguftest"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/testwait"
	"github.com/tandem-inference/tandem/services/workernode"
)

const demoModel = "../../../models/tandem-tiny-target-q4_k_m.gguf"

const demoLayers = 8

// peer serves a model; fault may stand between it and its callers.
type peer struct {
	*Server
	tandemv1.ModelServiceServer

	fault func(n int64, m *tandemv1.FetchBlocksResponse) error // of the n-th message of blocks, from 1
	sent  atomic.Int64                                         // messages of blocks
	lists func(*tandemv1.ListBlocksResponse)
}

func (p *peer) GetModel(ctx context.Context, m *tandemv1.GetModelRequest) (*tandemv1.GetModelResponse, error) {
	return p.Server.GetModel(ctx, m)
}

type listStream struct {
	tandemv1.ModelService_ListBlocksServer
	p *peer
}

func (s listStream) Send(m *tandemv1.ListBlocksResponse) error {
	if s.p.lists != nil {
		s.p.lists(m)
	}
	return s.ModelService_ListBlocksServer.Send(m)
}

func (p *peer) ListBlocks(m *tandemv1.ListBlocksRequest, stream tandemv1.ModelService_ListBlocksServer) error {
	return p.Server.ListBlocks(m, listStream{stream, p})
}

type blockStream struct {
	tandemv1.ModelService_FetchBlocksServer
	p *peer
}

func (s blockStream) Send(m *tandemv1.FetchBlocksResponse) error {
	n := s.p.sent.Add(1)
	if s.p.fault != nil {
		if err := s.p.fault(n, m); err != nil {
			return err
		}
	}
	return s.ModelService_FetchBlocksServer.Send(m)
}

func (p *peer) FetchBlocks(m *tandemv1.FetchBlocksRequest, stream tandemv1.ModelService_FetchBlocksServer) error {
	return p.Server.FetchBlocks(m, blockStream{stream, p})
}

// network has peers by their addresses.
type network struct {
	t     *testing.T
	mu    sync.Mutex // guards peers
	peers map[string]*bufconn.Listener
}

func newNetwork(t *testing.T) *network { return &network{t: t, peers: map[string]*bufconn.Listener{}} }

// add starts a peer; stop ends it.
func (n *network) add(address string, p tandemv1.ModelServiceServer) (stop func()) {
	l := bufconn.Listen(1 << 20)
	g := grpc.NewServer(workernode.ServerOptions(zap.NewNop())...)
	tandemv1.RegisterModelServiceServer(g, p)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = g.Serve(l)
	}()
	n.mu.Lock()
	n.peers[address] = l
	n.mu.Unlock()
	stop = sync.OnceFunc(func() {
		g.Stop()
		<-ended
	})
	n.t.Cleanup(stop)
	return stop
}

func (n *network) dial(address string) (*grpc.ClientConn, error) {
	return workernode.Dial("passthrough:///"+address, grpc.WithContextDialer(
		func(ctx context.Context, _ string) (net.Conn, error) {
			n.mu.Lock()
			l := n.peers[address]
			n.mu.Unlock()
			if l == nil {
				return nil, errors.New("nobody is there")
			}
			return l.DialContext(ctx)
		}))
}

func open(t *testing.T) *gguf.File {
	t.Helper()
	if _, err := os.Stat(demoModel); err != nil {
		t.Skip("needs the demonstration models: ", err)
	}
	return gguftest.Open(t, demoModel)
}

// config asks for stage 2/2 from some addresses.
func (n *network) config(path string, addresses ...string) Config {
	return Config{Path: path, Stage: 2, Stages: 2, Split: "5,3", Dial: n.dial, Log: zap.NewNop(),
		Peers: func(context.Context) ([]string, error) { return addresses, nil }}
}

// checkStage compares a fetched file with the model's.
func checkStage(t *testing.T, f *gguf.File, path string, first, last int) {
	t.Helper()
	got := gguftest.Open(t, path)
	want := workernode.LayerTensors(f, first, last, demoLayers)
	if tensors := got.Tensors(); len(tensors) != len(want) || len(want) == len(f.Tensors()) {
		t.Errorf("%d tensors, want %d of %d", len(tensors), len(want), len(f.Tensors()))
	}
	a, err := workernode.LayersDigest(t.Context(), got, first, last, demoLayers)
	b, err2 := workernode.LayersDigest(t.Context(), f, first, last, demoLayers)
	if a != b || errors.Join(err, err2) != nil {
		t.Errorf("digest %s, want %s: %v, %v", a, b, err, err2)
	}
	if left, _ := filepath.Glob(path + ".part*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestStage: a worker gets the tensors of its stage from one that has all, from one that has no more than these, and
// from several.
func TestStage(t *testing.T) {
	f := open(t)
	n := newNetwork(t)
	n.add("a", NewServer(f))
	path := filepath.Join(t.TempDir(), "new folder", "m.gguf")
	if err := Fetch(t.Context(), n.config(path, "a")); err != nil {
		t.Fatal(err)
	}
	checkStage(t, f, path, 5, 8)

	stage := &peer{Server: NewServer(gguftest.Open(t, path))}
	n.add("stage", stage)
	second := filepath.Join(t.TempDir(), "m.gguf")
	if err := Fetch(t.Context(), n.config(second, "nobody", "stage", "a")); err != nil {
		t.Fatal(err)
	}
	if one, err := os.ReadFile(path); err != nil {
		t.Error(err)
	} else if other, err := os.ReadFile(second); err != nil || !bytes.Equal(one, other) {
		t.Errorf("a part of a part is another file: %v", err)
	}
	if err := Fetch(t.Context(), n.config(second)); err != nil {
		t.Errorf("a file that is there: %v", err)
	}

	middle := n.config(filepath.Join(t.TempDir(), "m.gguf"), "a")
	middle.Stages, middle.Split = 3, "auto"
	if err := Fetch(t.Context(), middle); err != nil {
		t.Fatal(err)
	}
	checkStage(t, f, middle.Path, 2, 5)

	other := n.config(filepath.Join(t.TempDir(), "m.gguf"), "stage")
	other.Split = "4,4"
	if err := Fetch(t.Context(), other); err == nil || !strings.Contains(err.Error(), "peer stage: ") ||
		!strings.Contains(err.Error(), "layer 4 is not in the file") {
		t.Errorf("layers that the peer lacks: %v", err)
	}
	other.Stage, other.Stages = 0, 0
	if err := Fetch(t.Context(), other); err == nil || !strings.Contains(err.Error(), "a part of the model only") {
		t.Errorf("the whole of a part: %v", err)
	}
}

// TestWholeModel: without a stage the file is the peer's, byte for byte.
func TestWholeModel(t *testing.T) {
	f := open(t)
	n := newNetwork(t)
	n.add("a", NewServer(f))
	cfg := n.config(filepath.Join(t.TempDir(), "m.gguf"), "a")
	cfg.Stage, cfg.Stages = 0, 0
	if err := Fetch(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(cfg.Path)
	want, err2 := os.ReadFile(demoModel)
	if !bytes.Equal(got, want) || errors.Join(err, err2) != nil {
		t.Errorf("%d bytes, want %d: %v, %v", len(got), len(want), err, err2)
	}
}

// TestFaults: a connection that is cut, wrong bytes and a peer that goes away cost blocks, never the file.
func TestFaults(t *testing.T) {
	f := open(t)
	for name, c := range map[string]struct {
		fault func(n int64, m *tandemv1.FetchBlocksResponse) error
		most  int64 // messages that the faulty peer sends
	}{
		"cut once": {func(n int64, _ *tandemv1.FetchBlocksResponse) error {
			if n == 6 {
				return rpcerr.Unavailable("cut")
			}
			return nil
		}, 30},
		"wrong bytes once": {func(n int64, m *tandemv1.FetchBlocksResponse) error {
			if n == 3 {
				m.Chunk[len(m.Chunk)/2] ^= 1
			}
			return nil
		}, 30},
		"another block once": {func(n int64, m *tandemv1.FetchBlocksResponse) error {
			if n == 2 {
				m.Block++
			}
			return nil
		}, 30},
		"too much once": {func(n int64, m *tandemv1.FetchBlocksResponse) error {
			if n == 4 {
				m.Chunk = append(m.Chunk, 1)
			}
			return nil
		}, 30},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t)
			p := &peer{Server: NewServer(f), fault: c.fault}
			n.add("a", p)
			path := filepath.Join(t.TempDir(), "m.gguf")
			if err := Fetch(t.Context(), n.config(path, "a")); err != nil {
				t.Fatal(err)
			}
			checkStage(t, f, path, 5, 8)
			if sent := p.sent.Load(); sent > c.most {
				t.Errorf("%d messages were sent", sent)
			}
		})
	}

	t.Run("wrong bytes always", func(t *testing.T) {
		n := newNetwork(t)
		n.add("bad", &peer{Server: NewServer(f), fault: func(_ int64, m *tandemv1.FetchBlocksResponse) error {
			m.Chunk[0] ^= 1
			return nil
		}})
		path := filepath.Join(t.TempDir(), "m.gguf")
		err := Fetch(t.Context(), n.config(path, "bad"))
		if err == nil || !strings.Contains(err.Error(), "peer bad: block ") {
			t.Errorf("a peer that sends wrong bytes alone: %v", err)
		}
		if _, err := os.Stat(path); err == nil {
			t.Error("there is a file of wrong bytes")
		}
		n.add("good", NewServer(f))
		if err := Fetch(t.Context(), n.config(path, "bad", "good")); err != nil {
			t.Fatal(err)
		}
		checkStage(t, f, path, 5, 8)
	})

	t.Run("other digests", func(t *testing.T) {
		n := newNetwork(t)
		n.add("good", NewServer(f))
		n.add("bad", &peer{Server: NewServer(f), lists: func(m *tandemv1.ListBlocksResponse) {
			if m.GetModelDigest() != "" {
				m.Message = &tandemv1.ListBlocksResponse_ModelDigest{ModelDigest: strings.Repeat("0", 64)}
			}
		}})
		path := filepath.Join(t.TempDir(), "m.gguf")
		if err := Fetch(t.Context(), n.config(path, "good", "bad")); err == nil ||
			!strings.Contains(err.Error(), "peers good and bad have different models") {
			t.Errorf("peers that differ: %v", err)
		}
		if err := Fetch(t.Context(), n.config(path, "bad")); err == nil ||
			!strings.Contains(err.Error(), "instead of 000000000000") {
			t.Errorf("a digest that is not that of the tensors: %v", err)
		}
		if _, err := os.Stat(path); err == nil {
			t.Error("the file stays though its digest is wrong")
		}
	})

	t.Run("gone", func(t *testing.T) {
		n := newNetwork(t)
		var stop atomic.Value
		gone := make(chan struct{})
		first := &peer{Server: NewServer(f), fault: func(n int64, _ *tandemv1.FetchBlocksResponse) error {
			if n == 6 {
				go func() {
					stop.Load().(func())()
					close(gone)
				}()
				return rpcerr.Unavailable("going")
			}
			return nil
		}}
		stop.Store(n.add("a", first))
		path := filepath.Join(t.TempDir(), "m.gguf")
		ended := make(chan error, 1)
		go func() { ended <- Fetch(t.Context(), n.config(path, "a")) }()
		testwait.For(t, gone, "the peer goes")
		back := &peer{Server: NewServer(f)}
		n.add("a", back)
		if err := testwait.For(t, ended, "the peer is back"); err != nil {
			t.Fatal(err)
		}
		checkStage(t, f, path, 5, 8)
	})
}

// TestResumed: what an earlier process wrote is kept, if it is right.
func TestResumed(t *testing.T) {
	f := open(t)
	n := newNetwork(t)
	all := &peer{Server: NewServer(f)}
	n.add("a", all)
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := Fetch(t.Context(), n.config(path, "a")); err != nil {
		t.Fatal(err)
	}
	total := all.sent.Load()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	data[1] ^= 1 // a block that a crash left half written
	if err := os.WriteFile(path+".part", data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Fetch(t.Context(), n.config(path, "a")); err != nil {
		t.Fatal(err)
	}
	checkStage(t, f, path, 5, 8)
	if again := all.sent.Load() - total; again == 0 || again > blockBytes>>20 {
		t.Errorf("%d messages for one block, all take %d", again, total)
	}
}

// TestChangedFile: a peer whose file was written to since it was opened sends nothing.
func TestChangedFile(t *testing.T) {
	data, err := os.ReadFile(demoModel)
	if err != nil {
		t.Skip("needs the demonstration models: ", err)
	}
	source := filepath.Join(t.TempDir(), "m.gguf")
	if err := os.WriteFile(source, data, 0o600); err != nil {
		t.Fatal(err)
	}
	f := gguftest.Open(t, source)
	change := func() {
		file, err := os.OpenFile(source, os.O_WRONLY, 0)
		if err == nil {
			_, err = file.WriteAt([]byte{1, 2, 3}, int64(len(data)-100))
			err = errors.Join(err, file.Close(), os.Chtimes(source, time.Now(), time.Now().Add(time.Second)))
		}
		if err != nil {
			t.Error(err)
		}
	}
	n := newNetwork(t)
	var once sync.Once
	n.add("a", &peer{Server: NewServer(f), fault: func(int64, *tandemv1.FetchBlocksResponse) error {
		once.Do(change)
		return nil
	}})
	path := filepath.Join(t.TempDir(), "m.gguf")
	for _, when := range []string{"while it sends", "before it sends"} {
		err := Fetch(t.Context(), n.config(path, "a"))
		if err == nil || !strings.Contains(err.Error(), "peer a: ") || !strings.Contains(err.Error(), "has changed") {
			t.Errorf("%s: %v", when, err)
		}
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("there is a file of a changed model")
	}
}

// full is a file on a disk that has room for so many bytes.
type full struct {
	file
	room *atomic.Int64
}

func (f full) WriteAt(b []byte, off int64) (int, error) {
	if f.room.Add(-int64(len(b))) < 0 {
		return 0, &os.PathError{Op: "write", Path: "m.gguf.part", Err: syscall.ENOSPC}
	}
	return f.file.WriteAt(b, off)
}

// TestFullDisk: a disk without room is found before anything is sent; one that fills up meanwhile ends the fetch, which
// goes on when there is room.
func TestFullDisk(t *testing.T) {
	f := open(t)
	n := newNetwork(t)
	p := &peer{Server: NewServer(f)}
	n.add("a", p)
	cfg := n.config(filepath.Join(t.TempDir(), "m.gguf"), "a")
	cfg.free = func(string) (int64, error) { return 1000, nil }
	if err := Fetch(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "has 1000 bytes free") {
		t.Errorf("no room: %v", err)
	}
	if p.sent.Load() > 0 {
		t.Error("blocks were sent for which there is no room")
	}
	cfg.free = nil
	var room atomic.Int64
	room.Store(blockBytes + blockBytes/2)
	cfg.open = func(path string) (file, error) {
		out, err := openFile(path)
		return full{out, &room}, err
	}
	if err := Fetch(t.Context(), cfg); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a disk that fills up: %v", err)
	}
	before := p.sent.Load()
	cfg.open = nil
	if err := Fetch(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	checkStage(t, f, cfg.Path, 5, 8)
	info, err := os.Stat(cfg.Path)
	if err != nil {
		t.Fatal(err)
	}
	if again, all := p.sent.Load()-before, (info.Size()+1<<20-1)>>20; again > all-blockBytes>>20 {
		t.Errorf("%d of %d messages came again", again, all)
	}
}

// TestCancelled: an end is noticed while nobody is there.
func TestCancelled(t *testing.T) {
	n := newNetwork(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("told to end")
	cfg := n.config(filepath.Join(t.TempDir(), "m.gguf"), "nobody")
	cfg.Peers = func(context.Context) ([]string, error) {
		cancel(cause)
		return []string{"nobody"}, nil
	}
	if err := Fetch(ctx, cfg); !errors.Is(err, cause) {
		t.Error(err)
	}
}

// TestShards: the names of a model's files.
func TestShards(t *testing.T) {
	got, err := shards("/m/x-00001-of-00003.gguf", 3)
	if want := "[/m/x-00001-of-00003.gguf /m/x-00002-of-00003.gguf /m/x-00003-of-00003.gguf]"; err != nil ||
		fmt.Sprint(got) != want {
		t.Errorf("%v, %v", got, err)
	}
	for _, path := range []string{"/m/x.gguf", "/m/x-00001-of-00002.gguf", "/m/x-00002-of-00003.gguf"} {
		if _, err := shards(path, 3); err == nil || !strings.Contains(err.Error(), "-00001-of-00003.gguf") {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestServerRefuses: whatever is asked for, the answer names the field.
func TestServerRefuses(t *testing.T) {
	n := newNetwork(t)
	n.add("a", NewServer(open(t)))
	conn, err := n.dial("a")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := tandemv1.NewModelServiceClient(conn)
	many := make([]int32, mostAsked+1)
	for want, m := range map[string]*tandemv1.FetchBlocksRequest{
		"layers 5 to 8":    {Part: &tandemv1.ModelPart{LayerFirst: 5, LayerLast: 9}},
		"layers -1 to 3":   {Part: &tandemv1.ModelPart{LayerFirst: -1, LayerLast: 4}},
		"layers 4 to 3":    {Part: &tandemv1.ModelPart{LayerFirst: 4, LayerLast: 4}},
		"part.shard":       {Part: &tandemv1.ModelPart{Shard: 1}},
		"layers have none": {Part: &tandemv1.ModelPart{LayerFirst: 1, LayerLast: 4, Shard: 1}},
		"-1 at 0":          {Blocks: []int32{-1}},
		"99999 at 1":       {Blocks: []int32{0, 99999}},
		"blocks: are 1025": {Blocks: many},
	} {
		stream, err := client.FetchBlocks(t.Context(), m)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", m, err, want)
		}
	}
}
