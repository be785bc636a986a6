package cli

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/tandem-inference/tandem/gateway/internal/placement"
	"github.com/tandem-inference/tandem/gateway/internal/probe"
	"github.com/tandem-inference/tandem/services/config"
	"github.com/tandem-inference/tandem/services/identity"
	"github.com/tandem-inference/tandem/services/telemetry"
	"github.com/tandem-inference/tandem/services/workernode"
)

// PeerFlags join the probes of several hosts.
type PeerFlags struct {
	Peer      []string `placeholder:"HOST:PORT,…" env:"-" help:"Other hosts, where tandem probe --listen runs: their devices and the links to them become part of the rig."`
	Listen    string   `placeholder:"HOST:PORT" env:"-" help:"Give the figures of this host to tandem probe --peer on another one, until Ctrl-C."`
	Certs     string   `type:"path" placeholder:"DIR" env:"-" help:"Folder of a certificate of the cluster, as tandem certs issue writes it: connections to other hosts need one."`
	Plaintext bool     `env:"-" help:"Talk to other hosts without certificates."`
}

func (f *PeerFlags) validate(out string) error {
	var errs []error
	if f.Listen != "" && (len(f.Peer) > 0 || out != "") {
		errs = append(errs, errors.New("--listen: gives the figures of this host away; --peer and --out are for the host "+
			"that asks"))
	}
	if f.Plaintext && f.Certs != "" {
		errs = append(errs, errors.New("--plaintext: leave it out, --certs is given"))
	}
	for i, address := range f.Peer {
		if _, _, err := net.SplitHostPort(address); err != nil || slices.Contains(f.Peer[:i], address) {
			errs = append(errs, fmt.Errorf("--peer: wants HOST:PORT, once for each other host, got %q", address))
		}
		errs = append(errs, f.check("peer", address))
	}
	return errors.Join(append(errs, f.check("listen", f.Listen))...)
}

// check says what the address of a flag lacks that reaches beyond this host.
func (f *PeerFlags) check(flag, address string) error {
	if address == "" || f.Plaintext || f.Certs != "" || !config.Exposed(address) {
		return nil
	}
	return fmt.Errorf("--%s: %s is not on this host alone: give a certificate (--certs, a folder that tandem certs issue "+
		"wrote), or --plaintext", flag, address)
}

// transport is how this host talks to others.
func (f *PeerFlags) transport() (t identity.Transport, err error) {
	t.Plaintext = f.Plaintext
	if f.Certs == "" {
		return t, nil
	}
	pair, err := identity.Load(f.Certs)
	if err != nil {
		return t, fmt.Errorf("--certs: %w", err)
	}
	if end := pair.Cert.Leaf.NotAfter; time.Now().After(end) {
		return t, fmt.Errorf("--certs: the certificate in %s expired at %s: tandem certs issue writes another (--life)",
			f.Certs, end.Format(time.RFC3339))
	}
	t.Source = identity.NewSource(pair)
	return t, nil
}

// serveProbe measures this host and gives its figures to others until the command is told to end.
func serveProbe(e *env, address string, transport identity.Transport, cfg probe.Config) error {
	log, _, err := telemetry.NewLeveled("warn", telemetry.ChooseFormat("auto", e.err), e.err)
	if err != nil {
		return err
	}
	transport.Logger = log
	l, err := workernode.Listen(address)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	s := probe.NewServer()
	g := s.GRPC(transport, log)
	var serving sync.WaitGroup
	defer serving.Wait()
	defer g.Stop()
	serving.Go(func() {
		if err := g.Serve(l); err != nil {
			log.Error("serving ended", zap.NamedError(telemetry.KeyErr, err))
		}
	})
	fmt.Fprintf(e.out, "Other hosts get this one's figures with: tandem probe --peer %s\n", workernode.Address(l))
	rig, err := measure(e.ctx, e.err, cfg)
	if err != nil {
		s.Measured(nil, err)
		return err
	}
	s.Measured(&rig.Hosts[0], nil)
	if err := showRig(e.out, rig); err != nil {
		return err
	}
	<-e.ctx.Done()
	return nil
}

// dialPeers returns what connects to other hosts.
func dialPeers(transport identity.Transport) func(address string) (*grpc.ClientConn, error) {
	return func(address string) (*grpc.ClientConn, error) {
		return workernode.Dial(address, grpc.WithTransportCredentials(transport.Client("")))
	}
}

// addPeers asks other hosts for their figures and times the links to them.
func addPeers(e *env, rig *placement.Rig, addresses []string, transport identity.Transport) error {
	dial := dialPeers(transport)
	own := &rig.Hosts[0].Address
	for _, address := range addresses {
		fmt.Fprintf(e.err, "asking %s\n", address)
		p, err := probe.AskPeer(e.ctx, address, dial)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(rig.Hosts, func(h placement.Host) bool { return h.Name == p.Host.Name }) {
			return fmt.Errorf("peer %s: is called %q like another host of the rig: give one of them a --host-name", address,
				p.Host.Name)
		}
		if *own == "" {
			*own = p.Own
		}
		rig.Hosts = append(rig.Hosts, *p.Host)
		rig.Links = append(rig.Links, placement.Link{A: rig.Hosts[0].Name, B: p.Host.Name, Path: &p.Link})
		own = &rig.Hosts[0].Address // append may have moved it
	}
	return rig.Complete()
}
