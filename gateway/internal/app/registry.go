package app

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/gateways"
	"github.com/tandem-inference/tandem/gateway/internal/seal"
	"github.com/tandem-inference/tandem/gateway/internal/toolcall"
	"github.com/tandem-inference/tandem/services/identity"
	"github.com/tandem-inference/tandem/services/shared"
	"github.com/tandem-inference/tandem/services/shared/etcdstore"
	"github.com/tandem-inference/tandem/services/shared/kubestore"
	"github.com/tandem-inference/tandem/services/telemetry"
	"go.uber.org/zap"
)

// RegistryEmbedded is the --registry of a gateway that is alone.
const RegistryEmbedded = "embedded"

// registryAt is a --registry that was read.
type registryAt struct {
	kind      string // embedded, etcd, kubernetes
	endpoints []string
	prefix    string
	namespace string // of Kubernetes; empty = the pod's own
}

// Kinds of --registry beside embedded.
const (
	kindEtcd       = "etcd"
	kindKubernetes = "kubernetes"
)

// namespaces are the names that Kubernetes lets a namespace have.
var namespaces = regexp.MustCompile(`^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?$`)

// etcdPrefix begins the keys in etcd unless --registry names another prefix.
const etcdPrefix = "tandem"

// parseRegistry reads --registry.
func parseRegistry(text string) (at registryAt, err error) {
	if text == RegistryEmbedded {
		return registryAt{kind: RegistryEmbedded}, nil
	}
	if ns, ok := strings.CutPrefix(text, "kubernetes://"); ok {
		if !namespaces.MatchString(ns) {
			return at, fmt.Errorf("%q: %q is no name of a namespace", text, ns)
		}
		return registryAt{kind: kindKubernetes, namespace: ns}, nil
	}
	rest, ok := strings.CutPrefix(text, "etcd://")
	if !ok {
		return at, fmt.Errorf("%q is not embedded, etcd://HOST:PORT[,HOST:PORT][/PREFIX] or kubernetes://NAMESPACE", text)
	}
	hosts, prefix, _ := strings.Cut(rest, "/")
	at = registryAt{kind: kindEtcd, endpoints: strings.Split(hosts, ","), prefix: strings.Trim(prefix, "/")}
	if at.prefix == "" {
		at.prefix = etcdPrefix
	}
	if err := shared.CheckKey(at.prefix); err != nil {
		return at, fmt.Errorf("%q: the prefix: %w", text, err)
	}
	for _, e := range at.endpoints {
		if host, port, err := net.SplitHostPort(e); err != nil || host == "" || port == "" {
			return at, fmt.Errorf("%q: %q is not HOST:PORT", text, e)
		}
	}
	return at, nil
}

// openStore opens the store that the gateways share; nil: this gateway is alone.
func (a *App) openStore() (shared.Store, error) {
	if a.deps.Store != nil {
		return a.deps.Store, nil
	}
	at, err := parseRegistry(a.cfg.Registry)
	if err != nil || at.kind == RegistryEmbedded {
		return nil, err
	}
	if at.kind == kindKubernetes {
		s, err := kubestore.Open(context.Background(), kubestore.Config{Namespace: at.namespace,
			Logger: a.log.Named("kubernetes")})
		if err != nil {
			return nil, fmt.Errorf("--registry: %w", err)
		}
		return s, nil
	}
	c := etcdstore.Config{Endpoints: at.endpoints, Prefix: at.prefix, User: a.cfg.RegistryUser,
		Logger: a.log.Named("etcd")}
	if c.TLS, err = a.registryTLS(); err != nil {
		return nil, err
	}
	if path := a.cfg.RegistryPasswordFile; path != "" {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("--registry-password-file: %w", err)
		}
		c.Password = strings.TrimSpace(string(data))
	}
	s, err := etcdstore.Open(context.Background(), c)
	if err != nil {
		return nil, fmt.Errorf("--registry: %w", err)
	}
	return s, nil
}

// registryTLS is nil for plaintext.
func (a *App) registryTLS() (*tls.Config, error) {
	if a.cfg.RegistryCA == "" && a.cfg.RegistryCert == "" {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if path := a.cfg.RegistryCA; path != "" {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("--registry-ca: %w", err)
		}
		if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(data) {
			return nil, fmt.Errorf("--registry-ca: %s holds no certificate", path)
		}
	}
	if a.cfg.RegistryCert != "" {
		pair, err := tls.LoadX509KeyPair(a.cfg.RegistryCert, a.cfg.RegistryKey)
		if err != nil {
			return nil, fmt.Errorf("--registry-cert: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// joinGateways gives the gateway its place among the others.
func (a *App) joinGateways() {
	if a.link == nil {
		return
	}
	name := strings.ToLower(GatewayName())
	if shared.CheckKey(name) != nil || len(name) > 64 || strings.Contains(name, "/") {
		name = "gateway"
	}
	a.node = gateways.New(gateways.Info{
		ID: name + "-" + strings.ToLower(rand.Text()[:8]), Workers: a.workersReach(), Clients: a.HTTPAddr().String(),
		Version: a.deps.Version, Began: time.Now().UnixNano(),
	}, gateways.Deps{Link: a.link, Changed: a.registry.SetGateways, Logger: a.log.Named("gateways")})
}

// workersReach is the address at which workers of any host reach the registry.
func (a *App) workersReach() string {
	if a.cfg.RegistryAdvertise != "" {
		return a.cfg.RegistryAdvertise
	}
	switch at := a.registryLis.Addr().(type) {
	case *net.UnixAddr:
		return "unix://" + at.Name
	case *net.TCPAddr:
		if at.IP.IsUnspecified() {
			return net.JoinHostPort(GatewayName(), fmt.Sprint(at.Port))
		}
	}
	return a.registryLis.Addr().String()
}

// storeAway says what does not work while the gateways' store is away, empty while it is there.
func (a *App) storeAway() string {
	if a.link == nil {
		return ""
	}
	since, why := a.link.Away()
	if why == nil {
		return ""
	}
	return fmt.Sprintf("the store of the gateways (--registry) has been away for %v: responses and tool memory are not "+
		"shared", time.Since(since).Round(time.Second))
}

// ledgerKey is the record of the certificates and tokens that the gateways gave out.
const ledgerKey = "authority/ledger"

// ledger keeps what the authority remembers where all gateways see it.
type ledger struct{ link *shared.Link }

// Load implements identity.SharedLedger.
func (l ledger) Load() (data []byte, version string, err error) {
	err = l.link.Do(context.Background(), func(ctx context.Context, s shared.Store) error {
		r, err := s.Get(ctx, ledgerKey)
		data, version = r.Value, string(r.Version)
		return err
	})
	if errors.Is(err, shared.ErrNotFound) {
		return nil, "", nil
	}
	return data, version, err
}

// Save implements identity.SharedLedger.
func (l ledger) Save(data []byte, was string) error {
	err := l.link.Do(context.Background(), func(ctx context.Context, s shared.Store) (err error) {
		if was == "" {
			_, err = s.Create(ctx, ledgerKey, data, shared.Life{})
		} else {
			_, err = s.Update(ctx, ledgerKey, data, shared.Version(was), shared.Life{})
		}
		return err
	})
	if errors.Is(err, shared.ErrConflict) {
		return identity.ErrLedgerChanged
	}
	return err
}

// sealRecord is the key under which gateways seal what clients keep for them.
const sealRecord = "secrets/seal"

// sharedSeal returns the key of all gateways: that of the first one.
func (a *App) sharedSeal(own seal.Key) (key seal.Key, err error) {
	if a.link == nil {
		return own, nil
	}
	key = own
	err = a.link.Do(context.Background(), func(ctx context.Context, s shared.Store) error {
		_, err := s.Create(ctx, sealRecord, own[:], shared.Life{})
		if !errors.Is(err, shared.ErrConflict) {
			return err
		}
		r, err := s.Get(ctx, sealRecord)
		if err == nil && copy(key[:], r.Value) != len(key) {
			return fmt.Errorf("%s: has %d bytes, not %d", sealRecord, len(r.Value), len(key))
		}
		return err
	})
	if err != nil {
		return key, fmt.Errorf("--registry: %w", err)
	}
	return key, nil
}

const (
	// toolsPrefix begins the records of calls that models wrote.
	toolsPrefix = "tools/"
	// toolLife is how long gateways remember each other's calls.
	toolLife = 24 * time.Hour
	// mostToolsWaiting bounds the calls that wait to be written; those beyond are known here alone.
	mostToolsWaiting = 256
)

// shareTools lets the gateways know each other's calls until ctx ends.
func (a *App) shareTools(ctx context.Context) error {
	written := make(chan toolcall.Remembered, mostToolsWaiting)
	a.memory.Share(func(r toolcall.Remembered) {
		select {
		case written <- r:
		default:
		}
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-ctx.Done():
				return
			case r := <-written:
				if err := a.writeTool(ctx, r); err != nil {
					a.log.Debug("a call is remembered here alone", zap.NamedError(telemetry.KeyErr, err))
				}
			}
		}
	}()
	for e := range a.link.Watch(ctx, toolsPrefix) {
		var r toolcall.Remembered
		if e.Kind == shared.Written && json.Unmarshal(e.Record.Value, &r) == nil {
			a.memory.Learn(r)
		}
	}
	<-done
	return nil
}

func (a *App) writeTool(ctx context.Context, r toolcall.Remembered) error {
	body, err := json.Marshal(r)
	if err != nil {
		return err
	}
	scope := "open"
	if r.Scope != "" {
		scope = r.Scope[:min(len(r.Scope), 32)]
	}
	return a.link.Do(ctx, func(ctx context.Context, s shared.Store) error {
		_, err := s.Put(ctx, toolsPrefix+scope+"/"+r.Key(), body, shared.Life{TTL: toolLife})
		return err
	})
}
