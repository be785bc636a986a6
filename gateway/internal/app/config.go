package app

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/compress"
	"github.com/tandem-inference/tandem/gateway/internal/httpapi"
	"github.com/tandem-inference/tandem/gateway/internal/watchdog"
	"github.com/tandem-inference/tandem/services/config"
	"github.com/tandem-inference/tandem/services/identity"
	"github.com/tandem-inference/tandem/services/telemetry"
)

// Config holds every setting of the gateway. The tags make it a group of kong flags; names, defaults and meaning
// are public.
type Config struct {
	Host           string `default:"127.0.0.1" help:"Address of the HTTP and gRPC ports."`
	Port           int    `default:"8000" help:"HTTP port; 0 picks a free one."`
	GRPCPort       int    `name:"grpc-port" default:"8103" help:"Port of the public gRPC API; 0 picks a free one, -1 turns it off."`
	RegistryListen string `default:"127.0.0.1:8104" placeholder:"ADDR" help:"Where workers join: host:port or unix:///path. From other hosts they need a certificate, which a join token of tandem certs token gets. At an address that other hosts reach, target and draft of tandem serve serve these, too."`

	Registry             string `default:"embedded" placeholder:"STORE" help:"Where the gateways of one cluster keep what they share: embedded (this gateway is the only one), etcd://HOST:PORT[,HOST:PORT][/PREFIX], or kubernetes://NAMESPACE from within a pod (Secrets and Leases; without NAMESPACE the pod's own). Whoever reads the store reads prompts."`
	RegistryCA           string `name:"registry-ca" type:"path" placeholder:"PATH" help:"Certificate of the authority of --registry's server; with it, or with --registry-cert, the connection has TLS."`
	RegistryCert         string `type:"path" placeholder:"PATH" help:"Certificate with which the gateway shows who it is to --registry's server."`
	RegistryKey          string `type:"path" placeholder:"PATH" help:"Key of --registry-cert."`
	RegistryUser         string `placeholder:"NAME" help:"User at --registry's server."`
	RegistryPasswordFile string `type:"path" placeholder:"PATH" help:"File that holds the password of that user."`
	RegistryAdvertise    string `placeholder:"ADDR" help:"Where workers reach --registry-listen, as other gateways tell them; default: that address, with this host's name in place of a wildcard."`

	Authority       string        `type:"path" placeholder:"DIR" help:"Folder of the cluster's authority, which gives workers their certificates; made when missing. Default where other hosts reach --registry-listen: tandem/cluster in the user's configuration."`
	CertLifetime    time.Duration `default:"24h" placeholder:"DURATION" help:"Life of a worker's certificate; it is renewed after two thirds of that."`
	JoinTokenOutput string        `type:"path" placeholder:"PATH" help:"Write a join token to this file that works any number of times until the gateway starts again, for workers that are started together with it; whoever reads the file can join."`
	Plaintext       bool          `help:"Talk to other hosts without certificates: whoever is on the way, or reaches a port, can join, read and change everything."`

	Model            string `name:"model" type:"path" placeholder:"PATH" help:"Target's model file: tandem serve runs it, like one that is given as an argument; tandem gateway reads tokenizer and chat template from it, by default from the path that the target worker reports."`
	PrefillDrafter   string `type:"path" placeholder:"PATH" help:"Scorer's model file: tandem serve runs it; tandem gateway reads its tokenizer from it, by default from the path that the scorer reports."`
	ModelName        string `placeholder:"NAME" help:"Name under which the model is served; default: base name of the model file."`
	ChatTemplateFile string `type:"path" placeholder:"PATH" help:"Jinja chat template instead of the model file's own; an empty file selects the built-in one."`
	StrictModel      bool   `help:"Refuse requests that name another model."`
	StrictContext    bool   `help:"Refuse requests whose max_tokens does not fit into the context instead of lowering it."`

	ModelCard        string `type:"path" placeholder:"PATH" help:"Model card of the served model; default: looked up by the model's own name."`
	ModelCardDir     string `type:"path" placeholder:"DIR" help:"Where model cards are looked up first."`
	DefaultMaxTokens *int   `aliases:"max-tokens" placeholder:"N" help:"Output limit of requests that give none; default: the model card's, else that of the model's family."`
	MaxTokensCeiling int    `default:"0" help:"Upper limit of output tokens, also of requests that give no max_tokens; 0 = none."`
	MaxN             int    `default:"8" help:"Most choices per request."`
	DefaultThinking  bool   `help:"Thinking is on for requests that do not say."`

	ThinkMaxTokens        *int   `placeholder:"N" help:"Most tokens of reasoning; default: the card's output limit less the reply budget."`
	HardLimitReplyBudget  *int   `placeholder:"N" help:"Output tokens kept for the reply: reasoning that goes on for too long is closed; 0 never closes it. Default: the card's, else 4096."`
	ReasoningEffortLow    *int   `placeholder:"N" help:"Reasoning tokens of effort low; default: the card's."`
	ReasoningEffortMedium *int   `placeholder:"N" help:"Reasoning tokens of effort medium; default: the card's."`
	ReasoningEffortHigh   *int   `placeholder:"N" help:"Reasoning tokens of effort high; default: the card's."`
	ReasoningEffortXHigh  *int   `name:"reasoning-effort-x-high" placeholder:"N" help:"Reasoning tokens of effort x-high; default: the card's."`
	ReasoningEffortMax    *int   `placeholder:"N" help:"Reasoning tokens of effort max; default: the card's."`
	DegenerateWatchdog    string `default:"after-close" enum:"always,after-close,off" help:"End answers that repeat themselves: always, after-close (of reasoning that was closed by force), off."`

	MaxQueue         int     `default:"256" help:"Requests that may wait for a worker; more get 429."`
	QueueTimeoutS    float64 `name:"queue-timeout-s" default:"600" help:"Longest wait in the queue, seconds."`
	NoWorkerTimeoutS float64 `name:"no-worker-timeout-s" default:"30" help:"Longest wait in the queue while no target worker is there, not even one that starts, seconds; then 503 with Retry-After."`
	RequestTimeoutS  float64 `name:"request-timeout-s" default:"0" help:"Longest life of a request, seconds; 0 = no limit."`
	FailoverTimeoutS float64 `name:"failover-timeout-s" default:"60" help:"How long a request waits for a worker to take over, seconds."`
	FailoverAny      bool    `name:"failover-any" help:"Let a request that lost its worker go on at one with other arithmetic (another contract id) when no equal one is free; its text may then differ."`
	ShutdownDelayS   float64 `name:"shutdown-delay-s" default:"0" help:"How long new requests are still served after SIGTERM, seconds: /health/ready says 503 at once and every answer ends its connection, so that load balancers look elsewhere before anything is refused."`
	ShutdownGraceS   float64 `name:"shutdown-grace-s" default:"30" help:"How long running requests may go on after SIGTERM, seconds."`

	SSEKeepaliveS      float64 `name:"sse-keepalive-s" default:"15" help:"Silence after which a stream gets a keep-alive event, seconds."`
	StreamUsageDefault bool    `default:"true" negatable:"" help:"Send usage at the end of chat streams that do not ask for or against it."`

	CacheIsolation string `default:"shared" enum:"shared,key" help:"Who shares the states that prompts leave in the prefix cache: shared (all) or key (each API key has its own)."`

	UI string `name:"ui" default:"on" enum:"on,off" help:"Serve the live page at /ui: chat, every round's tree, workers and requests as they are now: on, off."`

	ReadAhead string `default:"on" enum:"on,off" help:"Read the next prompt of a conversation, as far as it is known, while its client is busy and the worker has nothing else to do: on, off."`

	Route string `default:"prefix" enum:"prefix,load" help:"How a request finds its target worker: prefix (where the least is left to read of its prompt and to wait for, then where its session was) or load (where the smallest share of slots is busy)."`

	BodyMemoryMB        int    `name:"body-memory-mb" default:"512" help:"Memory for the bodies of all requests at work and what is read from them, MB; a request that finds no room gets 429, one that needs more 413."`
	ResponseStoreMB     int    `name:"response-store-mb" default:"64" help:"Memory for kept responses of the Responses API, MB; 0 keeps none."`
	AnthropicInputTotal bool   `help:"Report the whole prompt as input_tokens of the Messages API, cached tokens included."`
	ImagePolicy         string `default:"placeholder" enum:"reject,placeholder" help:"Images, audio and files in requests: placeholder (a short text in their place and a warning), reject."`
	SealKeyFile         string `type:"path" placeholder:"PATH" help:"Key that seals reasoning which clients carry, made when missing; default: gateway.key in the user's cache folder."`

	NoCORS                bool            `name:"no-cors" help:"Send no CORS headers."`
	CORSOrigin            []string        `name:"cors-origin" default:"local" placeholder:"ORIGIN" help:"Origins of web pages that may use the API: local (pages and apps of this machine), * (all), or https://HOST; repeatable."`
	AllowedHost           []string        `placeholder:"NAME" help:"Further host names under which clients may call a gateway that listens on loopback and asks for no key; repeatable."`
	APIKey                []config.Secret `name:"api-key" placeholder:"KEY" help:"Key that clients must present; repeatable."`
	APIKeyFile            string          `name:"api-key-file" type:"path" placeholder:"PATH" help:"File of keys, one a line, optional \"name:\" in front, or \"name,trusted:\" for keys that may set X-Priority."`
	ProtectIntrospection  bool            `help:"Ask for a key on /props, /metrics, /cluster and /trace too."`
	TLSCert               string          `name:"tls-cert" type:"path" placeholder:"PATH" help:"Certificate of the HTTP and gRPC ports; read again when the file changes and on SIGHUP, like the files of its key and of API keys."`
	TLSKey                string          `name:"tls-key" type:"path" placeholder:"PATH" help:"Key of that certificate."`
	PrefillCompression    string          `default:"off" enum:"off,auto,always" help:"Prompt compression: off, auto, always."`
	PrefillThreshold      int             `default:"32000" help:"Prompt tokens from which auto compresses."`
	PrefillKeepRatio      float64         `default:"0.05" help:"Fraction of compressible tokens that compression keeps."`
	PrefillKeepCurve      string          `placeholder:"CURVE" help:"Keep ratio by prompt length, for example 32k:0.10,64k:0.05,128k:0.02; instead of --prefill-keep-ratio."`
	PrefillMinChunks      int             `default:"0" help:"Chunks of 32 tokens that compression keeps of a segment at least."`
	PflashTimeoutS        float64         `name:"pflash-timeout-s" default:"60" help:"Longest wait for the scorer, seconds."`
	PflashRequestOverride bool            `default:"true" negatable:"" help:"Let requests choose compression for themselves."`

	telemetry.TraceFlags
	AdminListen string `placeholder:"ADDR" help:"Where profiles (/debug/pprof/) and the level of logs (/log/level) are served, without a key: host:port, or :port for this machine only; default: nowhere."`

	LeaseTTLS      float64 `name:"lease-ttl-s" default:"6" hidden:"" help:"Silence after which a worker counts as lost, seconds."`
	FilePollS      float64 `name:"file-poll-s" default:"2" hidden:"" help:"How often files of keys and certificates are looked at, seconds."`
	StallTimeoutS  float64 `name:"stall-timeout-s" default:"30" hidden:"" help:"Longest pause of a client while it sends a request or reads an answer, seconds."`
	QueuedHeadersS float64 `name:"queued-headers-s" default:"10" hidden:"" help:"Wait in the queue after which a stream gets its headers and keep-alives, seconds."`
}

// leastCertLifetime leaves a worker time to renew a certificate while its gateway is away.
const leastCertLifetime = 10 * time.Minute

// imagesReplaced is the ImagePolicy that puts a text in the place of content that the model cannot read.
const imagesReplaced = "placeholder"

// cacheByKey is the CacheIsolation that keeps the states of prompts apart by API key.
const cacheByKey = "key"

// Defaults returns the configuration that the flags' defaults describe, for callers without a command line.
func Defaults() Config {
	return Config{
		Host: "127.0.0.1", Port: 8000, GRPCPort: 8103, RegistryListen: "127.0.0.1:8104", Registry: RegistryEmbedded,
		CertLifetime:       identity.DefaultLifetime,
		DegenerateWatchdog: watchdog.AfterClose, MaxN: 8, MaxQueue: 256, QueueTimeoutS: 600, NoWorkerTimeoutS: 30,
		FailoverTimeoutS: 60, ShutdownGraceS: 30, SSEKeepaliveS: 15, StreamUsageDefault: true,
		CORSOrigin: []string{httpapi.OriginLocal}, ResponseStoreMB: 64, BodyMemoryMB: 512,
		ImagePolicy: imagesReplaced, CacheIsolation: "shared", UI: "on", ReadAhead: "on", Route: "prefix",
		PrefillCompression: "off", PrefillThreshold: 32000,
		PrefillKeepRatio: 0.05, PflashTimeoutS: 60, PflashRequestOverride: true, LeaseTTLS: 6, FilePollS: 2,
		StallTimeoutS: 30, QueuedHeadersS: 10,
	}
}

// Validate reports every problem of the configuration; each message names its flag.
func (c *Config) Validate() error {
	var errs []error
	bad := func(flag, format string, args ...any) {
		errs = append(errs, fmt.Errorf("--%s: %s", flag, fmt.Sprintf(format, args...)))
	}
	c.validateListeners(bad)
	c.validateNumbers(bad)
	c.validateChoices(bad)
	c.validateFiles(bad)
	if _, err := compress.ParseCurve(c.PrefillKeepCurve); err != nil {
		bad("prefill-keep-curve", "%v", err)
	}
	if err := c.TraceFlags.Validate(); err != nil {
		errs = append(errs, err)
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}

// report notes a problem of a flag.
type report func(flag, format string, args ...any)

func (c *Config) validateListeners(bad report) {
	if c.Port < 0 || c.Port > 65535 {
		bad("port", "%d is not in 0…65535", c.Port)
	}
	if c.GRPCPort < -1 || c.GRPCPort > 65535 {
		bad("grpc-port", "%d is not in -1…65535", c.GRPCPort)
	}
	if _, _, err := splitListen(c.RegistryListen); err != nil {
		bad("registry-listen", "%v", err)
	}
	if _, err := parseRegistry(c.Registry); err != nil {
		bad("registry", "%v", err)
	}
	if (c.RegistryCert == "") != (c.RegistryKey == "") {
		bad("registry-cert", "needs --registry-key and the other way round")
	}
	if c.Plaintext && (c.Authority != "" || c.JoinTokenOutput != "") {
		bad("plaintext", "is for gateways without --authority and --join-token-output")
	}
	if c.CertLifetime < leastCertLifetime {
		bad("cert-lifetime", "%v is below %v", c.CertLifetime, leastCertLifetime)
	}
	for _, origin := range c.CORSOrigin {
		if err := httpapi.CheckOrigin(origin); err != nil {
			bad("cors-origin", "%v", err)
		}
	}
	if (c.TLSCert == "") != (c.TLSKey == "") {
		bad("tls-cert", "needs --tls-key and the other way round")
	}
}

func (c *Config) validateNumbers(bad report) {
	for flag, v := range map[string]int{"max-n": c.MaxN, "prefill-threshold": c.PrefillThreshold} {
		if v < 1 {
			bad(flag, "%d is below 1", v)
		}
	}
	for flag, v := range map[string]*int{"default-max-tokens": c.DefaultMaxTokens, "think-max-tokens": c.ThinkMaxTokens,
		"reasoning-effort-low": c.ReasoningEffortLow, "reasoning-effort-medium": c.ReasoningEffortMedium,
		"reasoning-effort-high": c.ReasoningEffortHigh, "reasoning-effort-x-high": c.ReasoningEffortXHigh,
		"reasoning-effort-max": c.ReasoningEffortMax} {
		if v != nil && *v < 1 {
			bad(flag, "%d is below 1", *v)
		}
	}
	if v := c.HardLimitReplyBudget; v != nil && *v < 0 {
		bad("hard-limit-reply-budget", "%d is negative", *v)
	}
	if c.BodyMemoryMB < maxRequestBytes>>20 {
		bad("body-memory-mb", "%d is below %d, the size of the largest body", c.BodyMemoryMB, maxRequestBytes>>20)
	}
	for flag, v := range map[string]int{"max-tokens-ceiling": c.MaxTokensCeiling, "max-queue": c.MaxQueue,
		"prefill-min-chunks": c.PrefillMinChunks,
		"response-store-mb":  c.ResponseStoreMB} {
		if v < 0 {
			bad(flag, "%d is negative", v)
		}
	}
	for flag, v := range map[string]float64{"queue-timeout-s": c.QueueTimeoutS, "request-timeout-s": c.RequestTimeoutS,
		"failover-timeout-s": c.FailoverTimeoutS, "shutdown-delay-s": c.ShutdownDelayS,
		"shutdown-grace-s": c.ShutdownGraceS} {
		if !(v >= 0 && v <= 1e9) {
			bad(flag, "%g is not in 0…1e9", v)
		}
	}
	for flag, v := range map[string]float64{"sse-keepalive-s": c.SSEKeepaliveS, "pflash-timeout-s": c.PflashTimeoutS,
		"lease-ttl-s": c.LeaseTTLS,
		"file-poll-s": c.FilePollS, "no-worker-timeout-s": c.NoWorkerTimeoutS, "stall-timeout-s": c.StallTimeoutS,
		"queued-headers-s": c.QueuedHeadersS} {
		if !(v > 0 && v <= 1e9) {
			bad(flag, "%g is not above 0", v)
		}
	}
	if !(c.PrefillKeepRatio > 0 && c.PrefillKeepRatio <= 1) {
		bad("prefill-keep-ratio", "%g is not in (0, 1]", c.PrefillKeepRatio)
	}
}

func (c *Config) validateChoices(bad report) {
	if !slices.Contains(watchdog.Modes(), c.DegenerateWatchdog) {
		bad("degenerate-watchdog", "%q is not always, after-close or off", c.DegenerateWatchdog)
	}
	if !slices.Contains([]string{"off", "auto", "always"}, c.PrefillCompression) {
		bad("prefill-compression", "%q is not off, auto or always", c.PrefillCompression)
	}
	if !slices.Contains([]string{"reject", imagesReplaced}, c.ImagePolicy) {
		bad("image-policy", "%q is not reject or placeholder", c.ImagePolicy)
	}
	if !slices.Contains([]string{"on", "off"}, c.UI) {
		bad("ui", "%q is not on or off", c.UI)
	}
	if !slices.Contains([]string{"on", "off"}, c.ReadAhead) {
		bad("read-ahead", "%q is not on or off", c.ReadAhead)
	}
	if !slices.Contains([]string{"prefix", "load"}, c.Route) {
		bad("route", "%q is not prefix or load", c.Route)
	}
}

func (c *Config) validateFiles(bad report) {
	if c.ModelCardDir != "" {
		if st, err := os.Stat(c.ModelCardDir); err != nil {
			bad("model-card-dir", "%v", err)
		} else if !st.IsDir() {
			bad("model-card-dir", "%s is no directory", c.ModelCardDir)
		}
	}
	for flag, path := range map[string]string{"model": c.Model, "prefill-drafter": c.PrefillDrafter,
		"chat-template-file": c.ChatTemplateFile, "model-card": c.ModelCard,
		"registry-ca": c.RegistryCA, "registry-cert": c.RegistryCert, "registry-key": c.RegistryKey,
		"registry-password-file": c.RegistryPasswordFile, "api-key-file": c.APIKeyFile,
		"tls-cert": c.TLSCert, "tls-key": c.TLSKey} {
		if path == "" {
			continue
		}
		if st, err := os.Stat(path); err != nil {
			bad(flag, "%v", err)
		} else if st.IsDir() {
			bad(flag, "%s is a directory", path)
		}
	}
}

// Check reports settings that are legal and dangerous.
func (c *Config) Check() []config.Warning {
	var out []config.Warning
	warn := func(flag, text string) { out = append(out, config.Warning{Flag: flag, Text: text}) }
	keys := len(c.APIKey) > 0 || c.APIKeyFile != ""
	if config.Exposed(net.JoinHostPort(c.Host, strconv.Itoa(c.Port))) {
		switch {
		case !keys:
			warn("host", c.Host+" is reachable from other machines and no key is asked for: everybody there can use the model; "+
				"set --api-key or --api-key-file")
		case c.TLSCert == "":
			warn("host", c.Host+" is reachable from other machines without TLS: keys and prompts travel unencrypted; set "+
				"--tls-cert and --tls-key, or put a proxy with TLS in front")
		}
	}
	if w, ok := telemetry.ExposedWarning("admin-listen", c.AdminListen); ok {
		out = append(out, w)
	}
	if c.Plaintext && config.Exposed(c.RegistryListen) {
		warn("plaintext", c.RegistryListen+
			" is reachable from other machines: whoever reaches it can join as a worker and read prompts; keep it on a "+
			"network of your own")
	}
	if at, err := parseRegistry(c.Registry); err == nil && c.RegistryCA == "" && c.RegistryCert == "" &&
		slices.ContainsFunc(at.endpoints, config.Exposed) {
		warn("registry", c.Registry+" is reached without TLS: prompts and answers of the Responses API travel unencrypted; "+
			"set --registry-ca")
	}
	if slices.Contains(c.CORSOrigin, httpapi.OriginAny) && !c.NoCORS && !keys {
		warn("cors-origin", "* without a key lets every web page that somebody opens on this machine use the gateway; set "+
			"--api-key, or name the origins")
	}
	return out
}

// splitListen turns host:port or unix:///path (unix://path too) into the arguments of net.Listen.
func splitListen(addr string) (network, address string, err error) {
	if path, ok := strings.CutPrefix(addr, "unix://"); ok {
		if path == "" {
			return "", "", errors.New("unix:// needs a path")
		}
		return "unix", path, nil
	}
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return "", "", fmt.Errorf("%q is neither host:port nor unix:///path", addr)
	}
	return "tcp", addr, nil
}

// seconds converts a setting in seconds.
func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
