package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/gguf"
	"github.com/tandem-inference/tandem/services/identity"
	"github.com/tandem-inference/tandem/services/registry"
	"github.com/tandem-inference/tandem/services/telemetry"
	"github.com/tandem-inference/tandem/services/tokenizer"
	"github.com/tandem-inference/tandem/services/workernode"
	"github.com/tandem-inference/tandem/worker-target/internal/auto"
	"github.com/tandem-inference/tandem/worker-target/internal/constraint"
	"github.com/tandem-inference/tandem/worker-target/internal/decode"
	"github.com/tandem-inference/tandem/worker-target/internal/disk"
	"github.com/tandem-inference/tandem/worker-target/internal/drafts"
	"github.com/tandem-inference/tandem/worker-target/internal/modelcopy"
	"github.com/tandem-inference/tandem/worker-target/internal/peers"
	"github.com/tandem-inference/tandem/worker-target/internal/piece"
	"github.com/tandem-inference/tandem/worker-target/internal/prefix"
	"github.com/tandem-inference/tandem/worker-target/internal/server"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// grace of requests in progress after SIGTERM.
const grace = 30 * time.Second

type serveCmd struct {
	workernode.Flags
	workernode.CacheFlags
	StageFlags

	DraftAddress []string `was:"draft" help:"Draft worker to use besides those that the gateway names; may be repeated." placeholder:"ADDR"`
	CacheDir     string   `help:"Folder for files of drafts and digests of model files; default: tandem in the user's cache." placeholder:"DIR"`

	Chunk         int           `was:"prefill-chunk" help:"Most prompt tokens that one prefill step reads, rounded down to a multiple of 64 and at least 64; 0 = as many as the engine takes. It changes no output." default:"0"`
	DDTreeBudget  int           `name:"ddtree-budget" was:"tree-budget" help:"Nodes of draft trees when a request does not say, 0 = by the device: 15 where a layer runs on an AMD card, else 22; automatic speculation finds its own." default:"0"`
	FeatureRows   int           `help:"Positions of features kept per request for a draft that comes back." default:"4096"`
	FAWindow      int           `name:"fa-window" help:"Newest positions whose keys and values a token of the target reads in layers of full attention, at least 128; 0 = all. Long contexts decode faster and take less memory, but what lies further back is out of sight: answers change." default:"0"`
	MaxTokenGapMS int           `name:"max-token-gap-ms" help:"Longest wait of a running stream between two tokens while prompts are read, in milliseconds; 0 = 4 times its own step, at least 50." default:"0"`
	DraftDeadline time.Duration `help:"Longest wait for a proposal." default:"400ms"`
	Lookup        bool          `help:"Let automatic speculation propose what followed the newest tokens where they stood in prompt or answer before; it needs no draft." default:"true" negatable:""`

	PrefixCacheRAMMB int `name:"prefix-cache-ram-mb" help:"Memory in MB for states of prompts, so that a prompt which begins like an earlier one is not read again; 0 = none is kept." default:"8192"`
	PrefixCacheSlots int `help:"Most states of prompts that are kept, 0 = none." default:"256"`

	KVCacheDir       string `name:"kv-cache-dir" help:"Folder that keeps states of prompts across restarts; default: they are kept in memory only." placeholder:"DIR"`
	KVCacheBudget    int    `name:"kv-cache-budget" help:"Most that --kv-cache-dir takes for this worker, in MB." default:"4096"`
	KVCacheInterval  int    `name:"kv-cache-interval" help:"Tokens of a long prompt between two states that are written while it is read, 0 = none." default:"10240"`
	KVCacheColdMax   int    `name:"kv-cache-cold-max" help:"Most tokens that a state adds to what earlier requests have read, if it is to be written at once; a longer one is written when it is first used again." default:"10240"`
	KVCacheMinTokens int    `name:"kv-cache-min-tokens" help:"Tokens below which a state is not written, and which one on disk must have more than that in memory to be read." default:"512"`

	PeerFetch string `help:"Fetch states of prompts from the worker that holds them where that is faster than reading again, and send them to others: on, off." default:"on" enum:"on,off"`

	DraftTransport string `help:"Way of features and proposals: auto (shared memory where the draft is on this host, else gRPC) or grpc." default:"auto" enum:"auto,grpc"`
}

// mostPrefixes bounds --prefix-cache-slots: the value of all entries is compared at every eviction.
const mostPrefixes = 1024

// Validate reports every setting that cannot work.
func (c *serveCmd) Validate() error {
	if err := errors.Join(c.Flags.Validate(), c.Pool(int(c.MaxCtx)), workernode.CheckWindow(c.FAWindow),
		c.StageFlags.validate(&c.Flags)); err != nil {
		return err
	}
	switch {
	case c.Chunk < 0:
		return fmt.Errorf("--chunk: must be >= 0, got %d", c.Chunk)
	case c.PrefixCacheRAMMB < 0:
		return fmt.Errorf("--prefix-cache-ram-mb: must be >= 0, got %d", c.PrefixCacheRAMMB)
	case c.PrefixCacheSlots < 0 || c.PrefixCacheSlots > mostPrefixes:
		return fmt.Errorf("--prefix-cache-slots: must be in 0..%d, got %d", mostPrefixes, c.PrefixCacheSlots)
	case c.KVCacheDir != "" && (c.PrefixCacheRAMMB == 0 || c.PrefixCacheSlots == 0):
		return errors.New("--kv-cache-dir: what is on disk goes through memory, --prefix-cache-ram-mb and --prefix-cache-slots must not be 0")
	case c.KVCacheBudget < 1:
		return fmt.Errorf("--kv-cache-budget: must be >= 1, got %d", c.KVCacheBudget)
	case c.KVCacheInterval < 0:
		return fmt.Errorf("--kv-cache-interval: must be >= 0, got %d", c.KVCacheInterval)
	case c.KVCacheColdMax < 0:
		return fmt.Errorf("--kv-cache-cold-max: must be >= 0, got %d", c.KVCacheColdMax)
	case c.KVCacheMinTokens < 1:
		return fmt.Errorf("--kv-cache-min-tokens: must be >= 1, got %d", c.KVCacheMinTokens)
	case c.DDTreeBudget < 0:
		return fmt.Errorf("--ddtree-budget: must be >= 0, got %d", c.DDTreeBudget)
	case c.FeatureRows < 64:
		return fmt.Errorf("--feature-rows: must be >= 64, got %d", c.FeatureRows)
	case c.MaxTokenGapMS < 0 || c.MaxTokenGapMS > 60_000:
		return fmt.Errorf("--max-token-gap-ms: must be in 0..60000, got %d", c.MaxTokenGapMS)
	case c.DraftDeadline < time.Millisecond || c.DraftDeadline > time.Second:
		return fmt.Errorf("--draft-deadline: must be in 1ms..1s, got %v", c.DraftDeadline)
	}
	return nil
}

// settings are those that the gateway reports in /props, by flag.
func (c *serveCmd) settings() map[string]string {
	return map[string]string{
		"lookup": strconv.FormatBool(c.Lookup), "chunk": strconv.Itoa(c.Chunk), "ddtree-budget": strconv.Itoa(c.DDTreeBudget),
		"max-token-gap-ms": strconv.Itoa(c.MaxTokenGapMS), "fa-window": strconv.Itoa(c.FAWindow),
		"park-after":   c.ParkAfter.String(),
		"cache-type-k": c.CacheTypeK, "cache-type-v": c.CacheTypeV,
		"prefix-cache-ram-mb": strconv.Itoa(c.PrefixCacheRAMMB), "prefix-cache-slots": strconv.Itoa(c.PrefixCacheSlots),
		"kv-cache-budget": strconv.Itoa(c.diskMB()), "peer-fetch": c.PeerFetch,
	}
}

// chosen puts into settings what an engine opened with where the flags leave it to the engine.
func (c *serveCmd) chosen(settings map[string]string, info engine.Info) {
	workernode.Chosen(settings, info)
	settings["ddtree-budget"] = strconv.Itoa(decode.TreeBudget(c.DDTreeBudget, &info))
}

// diskMB is the room of states on disk, 0 = they are kept in memory only.
func (c *serveCmd) diskMB() int {
	if c.KVCacheDir == "" {
		return 0
	}
	return c.KVCacheBudget
}

// disk opens the folder of states; nil when there is none.
func (c *serveCmd) disk(model string, log *zap.Logger) (*prefix.Disk, error) {
	if c.KVCacheDir == "" {
		return nil, nil
	}
	store, err := disk.Open(disk.Config{
		Dir: c.KVCacheDir, Budget: uint64(c.KVCacheBudget) << 20, Owner: model, Log: log.Named("disk"),
	})
	if err != nil {
		return nil, fmt.Errorf("--kv-cache-dir: %w", err)
	}
	return &prefix.Disk{
		Store: store, MinTokens: c.KVCacheMinTokens, Interval: c.KVCacheInterval, ColdMax: c.KVCacheColdMax,
	}, nil
}

// peers returns the client for states that other workers hold; nil when none is fetched or sent.
func (c *serveCmd) peers(model *auto.Model, dial []grpc.DialOption, log *zap.Logger) *peers.Client {
	if c.PeerFetch != "on" || c.PrefixCacheRAMMB == 0 || c.PrefixCacheSlots == 0 {
		return nil
	}
	return peers.NewClient(peers.Config{
		Dial: func(address string) (*grpc.ClientConn, error) { return workernode.Dial(address, dial...) },
		Read: func(info engine.Info, from, to int) time.Duration {
			return decode.PromptTime(model, info, c.Chunk, from, to)
		},
		Window: c.FAWindow, MaxRowBytes: uint64(c.PrefixCacheRAMMB) << 20, Log: log.Named("peers"),
	})
}

// Run serves until the process is told to end.
func (c *serveCmd) Run(streams workernode.Streams) error {
	ctx := context.Background()
	opened, err := c.OpenAfter(streams, tandemv1.Role_ROLE_TARGET, c.CacheDir, c.fetcher(&c.Flags))
	if err != nil {
		return err
	}
	log, file := opened.Log, opened.File
	defer file.Close()
	if c.Stage != "" {
		return c.serveStage(ctx, opened)
	}
	registration, err := opened.Registration(ctx)
	if err != nil {
		return err
	}
	registration.Settings = c.settings()
	cache, err := workernode.CacheDir(c.CacheDir)
	if err != nil {
		return err
	}
	open, err := c.StageFlags.open(ctx, &c.Flags, opened)
	if err != nil {
		return err
	}
	options := c.OpenOptions()
	options.AttentionWindow = c.FAWindow
	c.CacheFlags.Apply(&options)
	digest := sync.OnceValues(func() (string, error) { return workernode.TablesDigest(ctx, file) })
	w := &worker{model: auto.New(), copies: modelcopy.NewServer(file), log: log}
	files, err := c.disk(registration.Model.Digest, log)
	if err != nil {
		return err
	}
	w.prefixes = prefix.New(prefix.Config{
		Bytes: uint64(c.PrefixCacheRAMMB) << 20, Slots: c.PrefixCacheSlots, Disk: files,
	})
	defer w.prefixes.Close()
	var markers piece.Markers
	markers, w.constraints = vocabulary(file, log)
	link, err := drafts.NewLinkMeasure(opened.Meter())
	if err != nil {
		return err
	}
	w.manager = drafts.NewManager(drafts.Config{
		LinkMeasure: link,
		Engine: func() (drafts.Engine, error) {
			e, err := w.keeper.Engine()
			return e, err
		},
		TablesDigest:    func(context.Context) (string, error) { return digest() },
		TablesFile:      (&tables{file: file, dir: cache}).path,
		TokenizerDigest: registration.Model.TokenizerDigest, CacheDir: cache,
		Dial: workernode.Dialer(c.DraftTransport, opened.To(identity.Draft)...),
		Log:  log.Named("drafts"),
	}, c.DraftAddress)
	w.keeper = workernode.NewTargetKeeper(workernode.KeeperConfig[engine.Target]{
		Open: open, Options: options, Log: log.Named("engine"),
		Guard: engine.GuardConfig{HangLimit: c.HangLimit()},
		Flags: &c.Flags, Trained: workernode.Trained(file), ParkAfter: c.ParkAfter,
		OnOpen: func(ctx context.Context, e engine.Target) error { return w.manager.Restore(ctx, e) },
	})
	contract := func(info engine.Info) string {
		return workernode.Contract(registration.Model.Digest, info, piece.Rule)
	}
	w.peers = c.peers(w.model, opened.To(identity.Target), log)
	defer w.peers.Close()
	measures, err := decode.NewMeasures(opened.Meter())
	if err != nil {
		return err
	}
	w.Server = server.New(registration.WorkerId, decode.Config{
		PrefillChunk: c.Chunk, Markers: markers, TreeBudget: c.DDTreeBudget, RingRows: c.FeatureRows,
		MaxDeadline: c.DraftDeadline, NoLookup: !c.Lookup, Tracer: opened.Tracer(),
		Measures: measures,
	}, server.Deps{
		Engines: w.keeper, Drafts: w.manager, Constraints: w.constraints, Model: w.model, Prefixes: w.prefixes,
		Contract: contract, Peers: w.peers,
		MaxTokenGap: time.Duration(c.MaxTokenGapMS) * time.Millisecond, Log: log,
	})

	node := workernode.Config{Flags: &c.Flags, Log: log, Registration: registration, Grace: grace}
	return workernode.RunWithEngine(ctx, node, w, w.keeper, func(r *tandemv1.Registration, info engine.Info) {
		workernode.Describe(r, info)
		c.chosen(r.Settings, info)
		r.Contract = contract(info)
	})
}

// vocabulary gives what is made of the file's tokenizer: where prompts may be cut, and constraints over its tokens.
// When it cannot be read, prompts are cut anywhere, and requests with a constraint fail with the reason.
func vocabulary(file *gguf.File, log *zap.Logger) (piece.Markers, *constraint.Factory) {
	words, unread := tokenizer.FromGGUF(file)
	var markers piece.Markers
	if unread != nil {
		log.Warn("the tokenizer cannot be read: prompts are cut without regard to messages",
			zap.NamedError(telemetry.KeyErr, unread))
	} else {
		markers = piece.MarkersOf(words)
	}
	return markers, constraint.NewFactory(func(vocab int) (*constraint.Text, error) {
		if unread != nil {
			return nil, unread
		}
		return constraint.FromTokenizer(words, vocab), nil
	})
}

// worker is the target's part of a node.
type worker struct {
	*server.Server
	keeper      *workernode.Keeper[engine.Target]
	manager     *drafts.Manager
	constraints *constraint.Factory
	model       *auto.Model
	prefixes    *prefix.Cache
	peers       *peers.Client // nil = no states are fetched or sent
	copies      *modelcopy.Server
	log         *zap.Logger
	ready       atomic.Bool
}

func (w *worker) Register(s *grpc.Server) {
	w.Server.Register(s)
	tandemv1.RegisterModelServiceServer(s, w.copies)
}

// Run calibrates the engine, then keeps drafts attached. The engine is there until it returns.
func (w *worker) Run(ctx context.Context) error {
	defer w.prefixes.Close()
	defer w.Server.Close()
	engine, err := w.keeper.Wait(ctx)
	if err != nil {
		return err
	}
	start := time.Now()
	if err := decode.Calibrate(ctx, engine, w.model); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		w.log.Warn("steps could not be timed, costs are learnt while serving", zap.NamedError(telemetry.KeyErr, err))
	}
	w.log.Info("steps timed", zap.Int64(telemetry.KeyDurationMS, time.Since(start).Milliseconds()),
		w.price(1), w.price(8), w.price(16), w.price(24), w.price(32))
	if err := w.constraints.Load(engine.Info().Vocab); err != nil {
		w.log.Warn("grammars cannot be followed", zap.NamedError(telemetry.KeyErr, err))
	}
	w.ready.Store(true)
	_ = w.manager.Run(ctx) // ends with ctx only
	return nil
}

// price is a log field with the expected time of a step.
func (w *worker) price(rows int) zap.Field {
	return zap.Float64(fmt.Sprintf("rows_%d_ms", rows), float64(w.model.Verify(rows, 0).Microseconds())/1000)
}

// Ready reports whether requests are taken.
func (w *worker) Ready() bool {
	return w.keeper.Ready() && w.ready.Load()
}

// Lease takes over the drafts of the lease.
func (w *worker) Lease(l *tandemv1.Lease) {
	var addresses []string
	for _, p := range l.GetPeers() {
		if p.GetRole() == tandemv1.Role_ROLE_DRAFT {
			addresses = append(addresses, registry.Reach(p))
		}
	}
	w.manager.SetPeers(addresses)
}

// tables cuts embedding and head out of the model, once, for drafts that lack them.
type tables struct {
	file *gguf.File
	dir  string
	mu   sync.Mutex
}

func (t *tables) path(ctx context.Context) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	digest, err := t.file.Digest(ctx)
	if err != nil {
		return "", err
	}
	path := filepath.Join(t.dir, "own-tables-"+digest+".gguf")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(t.dir, 0o700); err != nil {
		return "", err
	}
	names, err := gguf.TableTensors(t.file)
	if err != nil {
		return "", err
	}
	defer t.file.Release()
	return path, gguf.ExtractTensors(t.file, path, names)
}
