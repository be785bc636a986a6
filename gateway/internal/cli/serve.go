package cli

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/services/config"
	"github.com/tandem-inference/tandem/services/device"
	"github.com/tandem-inference/tandem/services/procwatch"
	"github.com/tandem-inference/tandem/services/workernode"
)

// ServeCmd is tandem serve: gateway and workers of one machine, supervised.
type ServeCmd struct {
	config.Flags
	Target string `arg:"" optional:"" name:"target" type:"path" help:"Target model: a GGUF file, or the name of one that tandem pull has fetched, OWNER/NAME:FILE."`
	Demo   bool   `help:"Serve the demonstration models that ship with the project."`
	Auto   bool   `help:"Measure this host's devices, plan which runs what, as tandem plan does, print the plan and serve it. Flags that are given stay as they are. The figures are kept in --cache-dir."`
	WorkerFlags
	app.Config
	LogFlags

	examined bool             // by tandem doctor, which reports what Validate would refuse
	given    []string         // flags that the user gave
	unheeded []config.Warning // about variables
}

// WorkerFlags are settings of the workers that a command starts.
type WorkerFlags struct {
	Draft            string         `type:"path" placeholder:"PATH" help:"DFlash draft of the target, a GGUF file or a folder with config.json and model.safetensors; without it only lookup speculates."`
	Device           string         `default:"cpu" placeholder:"NAME" help:"Device of all engines: cpu, cuda:0, hip:0."`
	TargetDevice     string         `placeholder:"NAME" help:"Device of the target, if not --device."`
	TargetDevices    []string       `placeholder:"NAME,…" help:"Devices that share the layers of the target, in the order of the layers, such as cuda:0,hip:0 or cpu,cpu: each has an engine of its own. Default: one device has all."`
	TargetStages     []string       `placeholder:"ADDR,…" help:"Workers on other hosts that have the layers after those of --target-devices (without it: of one device), in the order of the layers: each runs worker-target --stage K/N."`
	TargetLayerSplit string         `default:"auto" placeholder:"N,…" help:"Layers of each of --target-devices and --target-stages, such as 40,24; auto = as many for each."`
	StageRowType     string         `enum:"f32,bf16" default:"f32" help:"Type of the rows that stages hand each other: f32, or bf16, which is half the bytes between hosts, and other texts."`
	StageTransport   string         `enum:"auto,grpc" default:"auto" help:"Way of hidden rows between stages: auto (memory that both see where they are on one host, else straight from stage to stage) or grpc, which takes no memory between workers."`
	DraftDevice      string         `placeholder:"NAME" help:"Device of the draft, if not --device."`
	PrefillDevice    string         `placeholder:"NAME" help:"Device of the scorer that compresses prompts, if not --device."`
	Threads          int            `default:"0" help:"CPU threads of the target's engine, 0 = one per core."`
	DraftThreads     int            `default:"0" help:"CPU threads of draft and scorer, 0 = as --threads: they work while the target waits."`
	MaxCtx           config.Context `default:"auto" placeholder:"TOKENS" help:"Longest context in tokens; auto = the model's, as far as memory allows."`
	Lanes            int            `default:"0" help:"Requests that the target decodes at a time, 0 = as many as memory allows, at most 32."`
	KVPositions      int            `name:"kv-positions" default:"0" help:"Positions of keys and values for all requests together, 0 = --lanes times --max-ctx, of automatic lanes at most 4 times, as far as memory allows."`
	MemoryCap        config.Size    `default:"0" placeholder:"SIZE" help:"Memory of the target's engine, for example 8GiB; 0 = no limit."`
	CacheTypeK       string         `name:"cache-type-k" default:"f16" enum:"${kv_choices}" help:"Type of the target's cached keys: ${kv_choices}; auto = the first of f16, q8_0, q5_1, q5_0, q4_1, q4_0, tq3_0 with which --max-ctx or --kv-positions fits, without these f16 or q8_0."`
	CacheTypeV       string         `name:"cache-type-v" default:"f16" enum:"${kv_choices}" help:"Type of the target's cached values: ${kv_choices}; auto as for --cache-type-k."`
	DraftCache       string         `name:"draft-cache-type" default:"f16" enum:"${kv_choices}" help:"Type of the draft's cached keys and values: ${kv_choices}; auto as for --cache-type-k."`
	DDTreeBudget     int            `name:"ddtree-budget" default:"0" help:"Nodes of draft trees when a request does not say, 0 = by the device: 15 where a layer of the target runs on an AMD card, else 22; automatic speculation finds its own."`
	Lookup           bool           `default:"true" negatable:"" help:"Let automatic speculation propose what followed the newest tokens where they stood in prompt or answer before; it needs no draft."`
	FAWindow         int            `name:"fa-window" default:"0" help:"Newest positions whose keys and values a token of the target reads in layers of full attention, at least 128; 0 = all. Long contexts decode faster and take less memory, but what lies further back is out of sight: answers change."`
	MaxTokenGapMS    int            `name:"max-token-gap-ms" default:"0" help:"Longest wait of a running stream between two tokens while prompts are read, in milliseconds; 0 = 4 times its own step, at least 50."`
	Chunk            int            `default:"0" help:"Most prompt tokens that one prefill step reads, rounded down to a multiple of 64 and at least 64; 0 = as many as the engine takes. It changes no output."`
	PrefixCacheRAMMB int            `name:"prefix-cache-ram-mb" default:"8192" help:"Memory in MB for states of prompts, so that a prompt which begins like an earlier one is not read again; 0 = none is kept."`
	PrefixCacheSlots int            `default:"256" help:"Most states of prompts that are kept, 0 = none."`
	KVCacheDir       string         `name:"kv-cache-dir" type:"path" placeholder:"DIR" help:"Folder that keeps states of prompts across restarts; default: they are kept in memory only."`
	KVCacheBudget    int            `name:"kv-cache-budget" default:"4096" help:"Most that --kv-cache-dir takes for this worker, in MB."`
	KVCacheInterval  int            `name:"kv-cache-interval" default:"10240" help:"Tokens of a long prompt between two states that are written while it is read, 0 = none."`
	KVCacheColdMax   int            `name:"kv-cache-cold-max" default:"10240" help:"Most tokens that a state adds to what earlier requests have read, if it is to be written at once; a longer one is written when it is first used again."`
	KVCacheMinTokens int            `name:"kv-cache-min-tokens" default:"512" help:"Tokens below which a state is not written, and which one on disk must have more than that in memory to be read."`
	PeerFetch        string         `default:"on" enum:"on,off" help:"Fetch states of prompts from the worker that holds them where that is faster than reading again, and send them to others: on, off."`
	LazyDraft        bool           `default:"false" help:"Load the draft when a request first wants one, not at the start."`
	ParkAfter        time.Duration  `default:"0s" placeholder:"DURATION" help:"Close engines that nobody has used for so long, and give their memory back; the next request opens them again. 0 = never."`
	PrefillSkipPark  bool           `default:"false" help:"Keep the scorer loaded whatever --park-after says."`
	HangTimeout      string         `default:"3s" placeholder:"DURATION" help:"How long a worker or engine process may show no sign of life before it is killed and replaced; off = never."`
	StoreFlags
	CacheDir string `type:"path" placeholder:"DIR" help:"Where workers keep tables and projections they received from peers, and digests of model files."`
	Engine   string `type:"path" placeholder:"PATH" help:"Engine program of all workers; default: tandem-engine beside the workers."`
	Programs string `type:"path" placeholder:"DIR" help:"Folder of the worker programs; default: beside this program."`
}

// Validate reports settings that cannot work, before anything is started.
func (c *ServeCmd) Validate() error {
	if c.examined {
		return nil
	}
	if err := c.StoreFlags.resolveAll(&c.Target, &c.Draft, &c.Model, &c.PrefillDrafter); err != nil {
		return err
	}
	if c.Target != "" && c.Model != "" && c.Target != c.Model {
		return errors.New("--model: the target is given twice, as an argument and by --model")
	}
	switch {
	case c.Demo && c.Target != "":
		return errors.New("--demo: serves its own models, leave the file name away")
	case c.Demo && c.Draft != "":
		return errors.New("--demo: serves its own models, leave --draft away")
	case !c.Demo && c.Target == "" && c.Model == "":
		return errors.New("a target model is needed: tandem serve MODEL.gguf, or tandem serve --demo")
	}
	problems := []error{c.WorkerFlags.validate(), c.Config.Validate()}
	if c.Auto && len(c.TargetStages) > 0 {
		problems = append(problems, errors.New("--auto: plans for this host alone, leave --target-stages out"))
	}
	// Beside the files that Config names, so that all missing ones are told at a time. A draft may be a folder.
	for _, f := range []struct{ flag, path string }{{"target", c.Target}, {"--draft", c.Draft}} {
		if f.path == "" {
			continue
		}
		if _, err := os.Stat(f.path); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", f.flag, err))
		}
	}
	return errors.Join(problems...)
}

func (w *WorkerFlags) validate() error {
	var problems []error
	for _, f := range []struct {
		flag  string
		value int
	}{{"threads", w.Threads}, {"draft-threads", w.DraftThreads}, {"lanes", w.Lanes},
		{"kv-positions", w.KVPositions},
		{"ddtree-budget", w.DDTreeBudget}, {"chunk", w.Chunk}, {"max-token-gap-ms", w.MaxTokenGapMS},
		{"prefix-cache-ram-mb", w.PrefixCacheRAMMB}, {"prefix-cache-slots", w.PrefixCacheSlots},
		{"kv-cache-interval", w.KVCacheInterval}, {"kv-cache-cold-max", w.KVCacheColdMax}} {
		if f.value < 0 {
			problems = append(problems, fmt.Errorf("--%s: %d is negative", f.flag, f.value))
		}
	}
	for _, f := range []struct {
		flag  string
		value int
	}{{"kv-cache-budget", w.KVCacheBudget}, {"kv-cache-min-tokens", w.KVCacheMinTokens}} {
		if f.value < 1 {
			problems = append(problems, fmt.Errorf("--%s: must be at least 1, got %d", f.flag, f.value))
		}
	}
	if w.KVCacheDir != "" && (w.PrefixCacheRAMMB == 0 || w.PrefixCacheSlots == 0) {
		problems = append(problems, errors.New("--kv-cache-dir: what is on disk goes through memory, "+
			"--prefix-cache-ram-mb and --prefix-cache-slots must not be 0"))
	}
	problems = append(problems, workernode.CheckParkAfter(w.ParkAfter), workernode.CheckWindow(w.FAWindow))
	if _, err := procwatch.ParseLimit(w.HangTimeout); err != nil {
		problems = append(problems, fmt.Errorf("--hang-timeout: %w", err))
	}
	for _, f := range []struct{ flag, value string }{
		{"device", w.Device}, {"target-device", w.TargetDevice}, {"draft-device", w.DraftDevice},
		{"prefill-device", w.PrefillDevice},
	} {
		if f.value == "" && f.flag != "device" {
			continue
		}
		if _, err := device.Parse(f.value); err != nil {
			problems = append(problems, fmt.Errorf("--%s: %w", f.flag, err))
		}
	}
	if len(w.TargetDevices) > 0 && w.TargetDevice != "" {
		problems = append(problems, errors.New("--target-device: --target-devices says where the target runs"))
	}
	problems = append(problems,
		workernode.CheckStages(w.TargetDevices, w.TargetStages, w.TargetLayerSplit, w.StageRowType))
	return errors.Join(problems...)
}

// devices are those that the engines of a worker program run on.
func (w *WorkerFlags) devices(program string) []string {
	if program == workerTarget && len(w.TargetDevices) > 0 {
		return w.TargetDevices
	}
	return []string{w.device(program)}
}

// device is where the engine of a worker program runs.
func (w *WorkerFlags) device(program string) string {
	own := map[string]string{workerTarget: w.TargetDevice, workerDraft: w.DraftDevice,
		workerPrefill: w.PrefillDevice}[program]
	if own != "" {
		return own
	}
	return w.Device
}

// Check returns warnings about settings that are legal and probably not what was meant.
func (c *ServeCmd) Check() []config.Warning { return append(c.Config.Check(), c.unheeded...) }

// Verify looks at the model files and programs for --verify-config.
func (c *ServeCmd) Verify() error {
	models, err := c.models()
	if err != nil {
		return err
	}
	return c.WorkerFlags.verify(models)
}

// models resolves the three files and checks that they belong together.
func (c *ServeCmd) models() (trio, error) {
	if c.Demo {
		return demoTrio()
	}
	t := trio{target: c.Target, draft: c.Draft, prefill: c.PrefillDrafter}
	if t.target == "" {
		t.target = c.Model
	}
	return t, t.check()
}

// Run serves until the process is told to stop; then running requests may finish, and no process stays behind.
func (c *ServeCmd) Run(e *env) error {
	logs := c.LogFlags.resolve(e.err)
	log, level, err := logs.logger(e.err)
	if err != nil {
		return err
	}
	for _, w := range c.unheeded {
		log.Warn(w.String())
	}
	models, err := c.models()
	if err != nil {
		return err
	}
	if c.Auto {
		if err := c.auto(e, &models, log); err != nil {
			return err
		}
	}
	started := time.Now()
	cluster, err := newCluster(clusterConfig{
		models: models, workers: c.WorkerFlags, gateway: c.Config, demo: c.Demo,
		logLevel: logs.LogLevel, logFormat: logs.LogFormat, log: log, level: &level, output: e.err,
	})
	if err != nil {
		return err
	}
	e.onHangup(func() { _ = cluster.gateway.Reload() }) // logs its errors
	onReady := func() {
		fmt.Fprint(e.out, banner(fmt.Sprintf("is ready after %.1f s", time.Since(started).Seconds()),
			cluster.endpoint().url(), cluster.gateway))
		fmt.Fprintf(e.out, "  Try   %s \"What is DFlash?\"\n", tryLine(cluster.endpoint().url()))
	}
	return cluster.run(e.ctx, onReady)
}

// tryLine is a command that asks a gateway: with this program's path as it was called, unless the shell finds it by its
// name, and with the address, unless tandem run finds that by itself.
func tryLine(url string) string {
	program := os.Args[0]
	if found, err := exec.LookPath("tandem"); err == nil {
		mine, err1 := os.Stat(program)
		theirs, err2 := os.Stat(found)
		if err1 == nil && err2 == nil && os.SameFile(mine, theirs) {
			program = "tandem"
		}
	}
	if url == defaultServer() {
		return program + " run"
	}
	return program + " run --server " + url
}

// waitServing returns when the gateway says it can serve.
func waitServing(ctx context.Context, at endpoint) error {
	return poll(ctx, at, func(ctx context.Context, client *http.Client, base string) error {
		_, err := health(ctx, client, base+"/health/ready")
		return err
	})
}

// waitAttached returns when the target of the gateway uses a draft, so that the first request is a fast one.
func waitAttached(ctx context.Context, at endpoint) error {
	return poll(ctx, at, func(ctx context.Context, client *http.Client, base string) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/cluster", nil)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return nil // /cluster wants a key: then we do not know, and nothing depends on it
		}
		var reply struct {
			Workers []struct{ Attached []string }
		}
		if err := json.NewDecoder(response.Body).Decode(&reply); err != nil {
			return err
		}
		for _, worker := range reply.Workers {
			if len(worker.Attached) > 0 {
				return nil
			}
		}
		return errors.New("no draft is attached to the target")
	})
}

// poll asks the gateway until ask returns nil or ctx ends.
func poll(ctx context.Context, at endpoint,
	ask func(ctx context.Context, client *http.Client, base string) error) error {
	client := at.client()
	defer client.CloseIdleConnections()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		attempt, cancel := context.WithTimeout(ctx, 2*time.Second)
		err := ask(attempt, client, at.url())
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the cluster is not ready: %w", err)
		case <-ticker.C:
		}
	}
}

// endpoint is where a gateway of this process can be asked.
type endpoint struct {
	addr net.Addr
	tls  bool
}

// client is an HTTP client of the endpoint, which may be a unix socket. It does not check the certificate: it is
// our own.
func (p endpoint) client() *http.Client {
	addr := p.addr
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	if addr.Network() == "unix" {
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", addr.String())
		}
	}
	return &http.Client{Transport: transport}
}

// url is the base URL that goes with client.
func (p endpoint) url() string {
	switch {
	case p.addr.Network() == "unix":
		return "http://localhost"
	case p.tls:
		return "https://" + p.addr.String()
	}
	return "http://" + p.addr.String()
}
