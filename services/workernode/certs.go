package workernode

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/tandem-inference/tandem/services/config"
	"github.com/tandem-inference/tandem/services/identity"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// CertFlags say who a worker is on connections to other hosts.
type CertFlags struct {
	Certs         string        `help:"Folder of the worker's certificate, made when missing; connections to other hosts need one. Default with a join token: tandem/certs in the user's configuration." type:"path" placeholder:"DIR"`
	JoinToken     config.Secret `help:"Join token, made by tandem certs token: gets the first certificate, later ones come by themselves." placeholder:"TOKEN"`
	JoinTokenFile string        `help:"File that holds the join token; waited for while it is missing." type:"path" placeholder:"PATH"`
	Plaintext     bool          `help:"Talk to other hosts without certificates: whoever is on the way, or reaches a port, can join, read and change everything."`

	member *identity.Member // nil = none
}

// wanted says that the worker is to have a certificate.
func (c *CertFlags) wanted() bool { return c.Certs != "" || c.JoinToken != "" || c.JoinTokenFile != "" }

// validate compares the flags with the addresses of a worker.
func (c *CertFlags) validate(addresses map[string]string) error {
	var errs []error
	if c.wanted() && c.Plaintext {
		errs = append(errs, errors.New("--plaintext: is for workers without --certs and --join-token"))
	}
	if c.JoinToken != "" && c.JoinTokenFile != "" {
		errs = append(errs, errors.New("--join-token-file: leave it out, --join-token is given"))
	}
	for flag, address := range addresses {
		errs = append(errs, c.CheckAddress(flag, address))
	}
	return errors.Join(errs...)
}

// CheckAddress says what the address of a flag lacks that reaches beyond this host.
func (c *CertFlags) CheckAddress(flag, address string) error {
	if c.wanted() || c.Plaintext || address == "" || !config.Exposed(address) {
		return nil
	}
	return fmt.Errorf("--%s: %s is not on this host alone: give the worker a certificate (--join-token, made by tandem "+
		"certs token, or --certs), or --plaintext", flag, address)
}

// token returns the join token, "" = none.
func (c *CertFlags) token() (string, error) {
	if c.JoinTokenFile == "" {
		return c.JoinToken.Reveal(), nil
	}
	data, err := os.ReadFile(c.JoinTokenFile)
	if err == nil && len(strings.TrimSpace(string(data))) == 0 {
		err = fmt.Errorf("%s: %w", c.JoinTokenFile, os.ErrNotExist) // it is being written
	}
	return strings.TrimSpace(string(data)), err
}

// join gets the worker's certificate, where it is to have one, and returns the name in it.
func (f *Flags) join(ctx context.Context, role string, log *zap.Logger) (id string, err error) {
	c := &f.CertFlags
	if !c.wanted() {
		return f.ID(role), nil
	}
	dir := c.Certs
	if dir == "" {
		base, err := os.UserConfigDir()
		if err != nil {
			return "", fmt.Errorf("--certs: %w", err)
		}
		name := role
		if f.WorkerID != "" {
			name = f.WorkerID
		}
		dir = filepath.Join(base, "tandem", "certs", name)
	}
	c.member, err = identity.Join(ctx, identity.MemberConfig{
		Dir: dir, Gateways: dialTargets(f.Gateway), Role: role, ID: f.WorkerID,
		NewID: func() string { return f.ID(role) }, Token: c.token, Logger: log.Named("certs"),
	})
	if err != nil {
		return "", err
	}
	return c.member.Source().Pair().Identity().ID, nil
}

// transport is how the worker talks to others.
func (f *Flags) transport(log *zap.Logger) identity.Transport {
	t := identity.Transport{Plaintext: f.Plaintext, Logger: log}
	if f.member != nil {
		t.Source = f.member.Source()
	}
	return t
}

// Credentials are those of connections to workers of a role.
func (o *Opened) Credentials(role string) credentials.TransportCredentials {
	return o.flags.transport(o.Log).Client(role)
}

// To are the options of connections to workers of a role: the calls on them continue the traces of their requests.
func (o *Opened) To(role string) []grpc.DialOption {
	return append(o.DialOptions(), grpc.WithTransportCredentials(o.Credentials(role)))
}

// whileRenewed runs do before the worker serves, and renews its certificate meanwhile: a model may be waited for longer
// than a certificate lives.
func (c *CertFlags) whileRenewed(ctx context.Context, do func(ctx context.Context) error) error {
	if c.member == nil {
		return do(ctx)
	}
	ctx, cancel := context.WithCancel(ctx)
	var renewing sync.WaitGroup
	defer renewing.Wait()
	defer cancel()
	renewing.Go(func() { _ = c.member.Run(ctx) }) // the log has what it could not do
	return do(ctx)
}

// leave lets another process use the worker's certificate.
func (c *CertFlags) leave() {
	if c.member != nil {
		c.member.Close()
	}
}
