package modelcopy

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/gguf"
	"github.com/tandem-inference/tandem/services/pause"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/telemetry"
	"github.com/tandem-inference/tandem/services/transfer"
	"github.com/tandem-inference/tandem/services/workernode"
)

const (
	// again is the pause before peers that could not be reached are asked again.
	again = 2 * time.Second
	// stall ends a call that brings nothing for so long.
	stall = 20 * time.Second
	// batch is how many blocks are asked for at a time: what a peer that slows down keeps from others.
	batch = 8
	// strikes is how many wrong blocks, or calls that end without one, a peer has in a row before it is left alone.
	strikes = 3
	// spare bytes of the disk stay free.
	spare = 64 << 20
	// mostLayers, mostShards and mostBytes bound what peers say of a model.
	mostLayers, mostShards, mostBytes = 4096, 1000, 1 << 44
)

// Config says what is fetched.
type Config struct {
	// Path is where the model is to be: its first file where it has several.
	Path string
	// Stage K of Stages, and how layers are divided, as --stage and --target-layer-split say. Stages 0 = the whole model.
	Stage, Stages int
	Split         string
	// Peers are the addresses of workers that may have it; they are asked again and again until one answers.
	Peers func(ctx context.Context) ([]string, error)
	Dial  func(address string) (*grpc.ClientConn, error)
	Log   *zap.Logger

	free func(dir string) (int64, error) // nil = of the disk
	open func(path string) (file, error) // nil = of the system
}

// file is what a part is written to.
type file interface {
	ReadAt(b []byte, off int64) (int, error)
	WriteAt(b []byte, off int64) (int, error)
	Truncate(size int64) error
	Sync() error
	Close() error
}

// Fetch makes the file at a path, unless it is there, from what peers send. It waits for peers that cannot be reached
// until ctx ends. Other errors say what no waiting mends: no room, or peers of which each was refused.
func Fetch(ctx context.Context, cfg Config) error {
	if _, err := os.Stat(cfg.Path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if cfg.free == nil {
		cfg.free = transfer.FreeBytes
	}
	if cfg.open == nil {
		cfg.open = openFile
	}
	for {
		err := fetch(ctx, &cfg)
		var wait *waiting
		if err == nil || !errors.As(err, &wait) {
			return err
		}
		cfg.Log.Warn("waiting for a worker that has the model", zap.NamedError(telemetry.KeyErr, err))
		if !pause.For(ctx, again) {
			return fmt.Errorf("fetch the model: %w", context.Cause(ctx))
		}
	}
}

// waiting is an error that time may mend.
type waiting struct{ error }

func (w *waiting) Unwrap() error { return w.error }

// Later marks an error of Config.Peers that time may mend.
func Later(err error) error { return &waiting{err} }

// sorted says whether time may mend an error of a call.
func sorted(err error) error {
	switch rpcerr.Code(rpcerr.FromRPC(err)) {
	case codes.Unavailable, codes.ResourceExhausted, codes.DeadlineExceeded, codes.Canceled:
		return &waiting{err}
	}
	return err
}

// source is a peer that has the model.
type source struct {
	address string
	conn    *grpc.ClientConn
	client  tandemv1.ModelServiceClient
	model   *tandemv1.GetModelResponse
}

func (s *source) fail(err error) error { return fmt.Errorf("peer %s: %w", s.address, err) }

// fetch tries once.
func fetch(ctx context.Context, cfg *Config) error {
	addresses, err := cfg.Peers(ctx)
	if err != nil {
		return err
	}
	sources, errs := reach(ctx, cfg, addresses)
	defer func() {
		for _, s := range sources {
			_ = s.conn.Close()
		}
	}()
	if len(sources) == 0 {
		return joined(errs, "nobody has the model")
	}
	for _, err := range errs {
		cfg.Log.Warn("a peer does not help", zap.NamedError(telemetry.KeyErr, err))
	}
	first := sources[0]
	layers := int(first.model.GetNLayers())
	if cfg.Stages > 0 {
		split, err := workernode.SplitLayers(cfg.Split, cfg.Stages, layers)
		if err != nil {
			return err
		}
		id := partID{}
		for _, n := range split[:cfg.Stage] {
			id.first, id.last = id.last, id.last+n
		}
		want, err := get(ctx, cfg, sources, id, cfg.Path)
		if err != nil {
			return err
		}
		return verify([]string{cfg.Path}, want.model, func(f *gguf.File) (string, error) {
			return workernode.LayersDigest(ctx, f, id.first, id.last, layers)
		})
	}
	paths, err := shards(cfg.Path, int(first.model.GetShards()))
	if err != nil {
		return err
	}
	var want *list
	for i := len(paths) - 1; i >= 0; i-- { // the first one comes last: with it the model is there
		if want, err = get(ctx, cfg, sources, partID{shard: i}, paths[i]); err != nil {
			return err
		}
	}
	return verify(paths, want.model, func(f *gguf.File) (string, error) { return f.Digest(ctx) })
}

// reach asks peers which model they have.
func reach(ctx context.Context, cfg *Config, addresses []string) (sources []*source, errs []error) {
	for _, address := range addresses {
		s := &source{address: address}
		var err error
		if s.conn, err = cfg.Dial(address); err == nil {
			s.client = tandemv1.NewModelServiceClient(s.conn)
			if s.model, err = s.client.GetModel(ctx, &tandemv1.GetModelRequest{}); err == nil {
				err = s.check()
			}
			if err == nil && len(sources) > 0 && (s.model.GetNLayers() != sources[0].model.GetNLayers() ||
				s.model.GetShards() != sources[0].model.GetShards() && cfg.Stages == 0) {
				err = fmt.Errorf("has another model than %s: %d layers in %d files", sources[0].address, s.model.GetNLayers(),
					s.model.GetShards())
			}
		}
		if err != nil {
			if s.conn != nil {
				_ = s.conn.Close()
			}
			errs = append(errs, s.fail(sorted(err)))
			continue
		}
		sources = append(sources, s)
	}
	return sources, errs
}

func (s *source) check() error {
	if n := s.model.GetNLayers(); n < 1 || n > mostLayers {
		return fmt.Errorf("n_layers is %d, must be in 1..%d", n, mostLayers)
	}
	if n := s.model.GetShards(); n < 1 || n > mostShards {
		return fmt.Errorf("shards is %d, must be in 1..%d", n, mostShards)
	}
	return nil
}

// joined makes one error of those of all peers: time mends it if it mends one of them.
func joined(errs []error, nobody string) error {
	err := errors.Join(errs...)
	if err == nil {
		return &waiting{errors.New(nobody)}
	}
	return err
}

// shards are the paths of a model's files.
func shards(path string, n int) ([]string, error) {
	if n == 1 {
		return []string{path}, nil
	}
	paths, ok := gguf.ShardPaths(path, n)
	if !ok {
		return nil, fmt.Errorf("--model: the model has %d files there, so that the first must be called …-00001-of-%05d.gguf: %s",
			n, n, path)
	}
	return paths, nil
}

// verify compares what the files hold as a whole; files that hold something else are removed.
func verify(paths []string, want string, digest func(*gguf.File) (string, error)) error {
	remove := func(why error) error {
		errs := []error{why}
		for _, path := range paths {
			errs = append(errs, os.Remove(path))
		}
		return errors.Join(errs...)
	}
	f, err := gguf.Open(paths[0])
	if err != nil {
		return remove(fmt.Errorf("what peers sent is no model: %w", err))
	}
	defer f.Close()
	got, err := digest(f)
	if err != nil {
		return err
	}
	if got != want {
		return remove(fmt.Errorf("what peers sent has digest %.12s instead of %.12s", got, want))
	}
	return nil
}

func openFile(path string) (file, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	// Another process would write the same file. The lock ends with the descriptor.
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("another process fetches %s: %w", path, err), f.Close())
	}
	return f, nil
}

// list are the digests of a part's blocks.
type list struct {
	bytes  int64
	block  int
	blocks [][sha256.Size]byte
	model  string
}

// same says whether two peers have the same part.
func (l *list) same(o *list) bool {
	return l.bytes == o.bytes && l.block == o.block && l.model == o.model && slices.Equal(l.blocks, o.blocks)
}

// span is where a block lies.
func (l *list) span(i int) (at int64, n int) {
	at = int64(i) * int64(l.block)
	return at, int(min(int64(l.block), l.bytes-at))
}

// get makes the file of a part.
func get(ctx context.Context, cfg *Config, sources []*source, id partID, path string) (*list, error) {
	var want *list
	var good []*source
	var errs []error
	for _, s := range sources {
		l, err := s.list(ctx, id)
		switch {
		case err != nil:
			err = s.fail(sorted(err))
		case want != nil && !want.same(l):
			// Nothing says which of them is the wanted one.
			return nil, fmt.Errorf("peers %s and %s have different models: digests %.12s and %.12s", good[0].address,
				s.address, want.model, l.model)
		default:
			want, good = l, append(good, s)
		}
		if err != nil {
			cfg.Log.Warn("a peer does not help", zap.NamedError(telemetry.KeyErr, err))
			errs = append(errs, err)
		}
	}
	if want == nil {
		return nil, joined(errs, "nobody has the model")
	}
	if _, err := os.Stat(path); err == nil {
		return want, nil // of several files, one that an earlier attempt finished; verify looks at all
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	part := path + ".part"
	out, err := cfg.open(part)
	if err != nil {
		return nil, err
	}
	c := &copying{cfg: cfg, id: id, list: want, out: out, path: part}
	err = c.run(ctx, good)
	if err == nil {
		err = out.Sync()
	}
	if cerr := out.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return nil, err
	}
	return want, os.Rename(part, path)
}

// list asks a peer for the digests of a part.
func (s *source) list(ctx context.Context, id partID) (*list, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := s.client.ListBlocks(ctx, &tandemv1.ListBlocksRequest{Part: id.proto()})
	if err != nil {
		return nil, err
	}
	m, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	h := m.GetHeader()
	l := &list{bytes: h.GetTotalBytes(), block: int(h.GetBlockBytes())}
	if l.bytes < 1 || l.bytes > mostBytes || l.block < 1<<16 || l.block > 64<<20 {
		return nil, fmt.Errorf("total_bytes is %d and block_bytes %d, must be 1..%d and 65536..67108864", l.bytes, l.block,
			int64(mostBytes))
	}
	count := int((l.bytes + int64(l.block) - 1) / int64(l.block))
	for len(l.blocks) < count {
		if m, err = stream.Recv(); err != nil {
			return nil, err
		}
		d := m.GetDigests()
		if len(d) == 0 || len(d)%sha256.Size != 0 || len(l.blocks)+len(d)/sha256.Size > count {
			return nil, fmt.Errorf("digests: %d bytes after those of %d of %d blocks", len(d), len(l.blocks), count)
		}
		for ; len(d) > 0; d = d[sha256.Size:] {
			l.blocks = append(l.blocks, [sha256.Size]byte(d))
		}
	}
	if m, err = stream.Recv(); err != nil {
		return nil, err
	}
	if l.model = m.GetModelDigest(); len(l.model) != 2*sha256.Size {
		return nil, fmt.Errorf("model_digest has %d characters", len(l.model))
	}
	return l, nil
}

func (id partID) proto() *tandemv1.ModelPart {
	return &tandemv1.ModelPart{LayerFirst: int32(id.first), LayerLast: int32(id.last), Shard: int32(id.shard)}
}

// copying is a part that is being fetched.
type copying struct {
	cfg  *Config
	id   partID
	list *list
	out  file
	path string

	mu      sync.Mutex    // guards the fields below
	missing []int         // blocks that nobody fetches now
	left    int           // blocks that are not written
	changed chan struct{} // closed and replaced when missing or left changes
	errs    []error
}

// run fetches what the file lacks.
func (c *copying) run(ctx context.Context, sources []*source) error {
	if err := c.compare(ctx); err != nil {
		return err
	}
	need := int64(0)
	for _, i := range c.missing {
		_, n := c.list.span(i)
		need += int64(n)
	}
	if room, err := c.cfg.free(filepath.Dir(c.path)); err == nil && need > 0 && room < need+spare {
		return fmt.Errorf("--model: %s has %d bytes free, the model needs %d more", filepath.Dir(c.path), room, need)
	}
	if err := c.out.Truncate(c.list.bytes); err != nil {
		return err
	}
	c.cfg.Log.Info("fetching the model", zap.Int64("bytes", need), zap.Int64("total_bytes", c.list.bytes),
		zap.Int("peers", len(sources)))
	c.changed = make(chan struct{})
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var peers sync.WaitGroup
	for _, s := range sources {
		peers.Go(func() {
			if err := c.from(ctx, s); err != nil {
				var local *localError
				if errors.As(err, &local) {
					cancel(err) // no peer mends it
					return
				}
				err = s.fail(err)
				c.cfg.Log.Warn("a peer does not help any more", zap.NamedError(telemetry.KeyErr, err))
				c.mu.Lock()
				defer c.mu.Unlock()
				c.errs = append(c.errs, err)
			}
		})
	}
	peers.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if c.left > 0 {
		return joined(c.errs, "all peers left")
	}
	return nil
}

// compare finds the blocks that the file lacks.
func (c *copying) compare(ctx context.Context) error {
	buffer := make([]byte, c.list.block)
	for i, want := range c.list.blocks {
		if err := ctx.Err(); err != nil {
			return err
		}
		at, n := c.list.span(i)
		// What cannot be read is not there.
		if got, _ := c.out.ReadAt(buffer[:n], at); got != n || sha256.Sum256(buffer[:n]) != want {
			c.missing = append(c.missing, i)
		}
	}
	c.left = len(c.missing)
	return nil
}

// take returns blocks that nobody fetches. It waits while others fetch the last ones, since those may fail; nil = all
// blocks are written.
func (c *copying) take(ctx context.Context) []int {
	for {
		c.mu.Lock()
		n := min(batch, len(c.missing))
		blocks := c.missing[:n:n]
		c.missing = c.missing[n:]
		left, changed := c.left, c.changed
		c.mu.Unlock()
		if n > 0 || left == 0 {
			return blocks
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// give takes back blocks that were not written and counts those that were.
func (c *copying) give(back []int, written int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.missing = append(c.missing, back...)
	c.left -= written
	close(c.changed)
	c.changed = make(chan struct{})
}

// localError is one of this host.
type localError struct{ error }

func (l *localError) Unwrap() error { return l.error }

// from fetches blocks of a peer until all are there or the peer is of no use.
func (c *copying) from(ctx context.Context, s *source) error {
	failed := 0
	for {
		blocks := c.take(ctx)
		if len(blocks) == 0 {
			return nil
		}
		written, err := c.blocks(ctx, s, blocks)
		c.give(blocks[written:], written)
		var local *localError
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.As(err, &local):
			return err
		case written > 0:
			failed = 0
		}
		if err == nil {
			continue
		}
		if failed++; failed >= strikes {
			return sorted(err)
		}
		c.cfg.Log.Warn("blocks are fetched again", zap.NamedError(telemetry.KeyErr, s.fail(err)))
		if !pause.For(ctx, again/8) {
			return nil
		}
	}
}

// blocks fetches blocks in order and returns how many were written.
func (c *copying) blocks(ctx context.Context, s *source, blocks []int) (written int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	late := time.AfterFunc(stall, cancel)
	defer late.Stop()
	m := &tandemv1.FetchBlocksRequest{Part: c.id.proto()}
	for _, b := range blocks {
		m.Blocks = append(m.Blocks, int32(b))
	}
	stream, err := s.client.FetchBlocks(ctx, m)
	if err != nil {
		return 0, err
	}
	buffer := make([]byte, 0, c.list.block)
	for _, b := range blocks {
		at, n := c.list.span(b)
		for buffer = buffer[:0]; len(buffer) < n; {
			m, err := stream.Recv()
			if err != nil {
				return written, err
			}
			if int(m.GetBlock()) != b || len(m.GetChunk()) == 0 || len(buffer)+len(m.GetChunk()) > n {
				return written, fmt.Errorf("%d bytes of block %d came after %d of %d of block %d", len(m.GetChunk()),
					m.GetBlock(), len(buffer), n, b)
			}
			buffer = append(buffer, m.GetChunk()...)
			late.Reset(stall)
		}
		if got := sha256.Sum256(buffer); got != c.list.blocks[b] {
			return written, fmt.Errorf("block %d has digest %.6x instead of %.6x", b, got, c.list.blocks[b])
		}
		if _, err := c.out.WriteAt(buffer, at); err != nil {
			return written, &localError{fmt.Errorf("%s: %w", c.path, err)}
		}
		written++
	}
	return written, nil
}
