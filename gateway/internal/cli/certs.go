package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/services/identity"
)

// CertsCmd is tandem certs: what a cluster over several hosts needs to know its workers.
type CertsCmd struct {
	Init   CertsInitCmd   `cmd:"" help:"Make the authority of a cluster; a gateway that other hosts reach does it by itself."`
	Token  CertsTokenCmd  `cmd:"" help:"Make a join token: a worker that starts with it gets a certificate."`
	Issue  CertsIssueCmd  `cmd:"" help:"Write a certificate for a worker into a folder, to be copied to its host."`
	Rotate CertsRotateCmd `cmd:"" help:"Replace the authority; workers take the new one when they renew their certificates."`
	Show   CertsShowCmd   `cmd:"" help:"Show who has a certificate, and which tokens can be used."`
}

// AuthorityFlags name the folder of the authority.
type AuthorityFlags struct {
	Authority string `type:"path" placeholder:"DIR" help:"Folder of the cluster's authority, which gives workers their certificates; made when missing. Default where other hosts reach --registry-listen: tandem/cluster in the user's configuration."`
}

// open opens the authority, whose certificates live for so long.
func (f *AuthorityFlags) open(life time.Duration) (*identity.Authority, error) {
	dir, err := app.AuthorityDir(f.Authority)
	if err != nil {
		return nil, err
	}
	a, err := identity.Open(dir, life)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("--authority: there is no authority in %s: run this where the gateway runs, as its user, or "+
			"make one with tandem certs init", dir)
	}
	if err != nil {
		return nil, fmt.Errorf("--authority: %w", err)
	}
	return a, nil
}

// CertsInitCmd is tandem certs init.
type CertsInitCmd struct{ AuthorityFlags }

// Run makes an authority.
func (c *CertsInitCmd) Run(e *env) error {
	dir, err := app.AuthorityDir(c.Authority)
	if err != nil {
		return err
	}
	if _, err := identity.Init(dir, app.GatewayName(), identity.DefaultLifetime); err != nil {
		return fmt.Errorf("--authority: %w", err)
	}
	fmt.Fprintf(e.out, "The cluster's authority is in %s. Keep it to yourself: who has it can join.\n", dir)
	return nil
}

// CertsTokenCmd is tandem certs token.
type CertsTokenCmd struct {
	AuthorityFlags
	Role string        `arg:"" enum:"target,draft,prefill,any" default:"any" help:"Role of the worker: target (stages too), draft, prefill, or any."`
	Name string        `arg:"" optional:"" help:"Name that the worker must have; its certificate may then replace one of the same name."`
	TTL  time.Duration `name:"ttl" default:"1h" env:"-" help:"How long the token can be used."`
	Uses int           `default:"1" env:"-" help:"How many workers can use it, -1 = any number."`
	// Replace is for workers whose folders do not outlive them, such as pods.
	Replace bool `env:"-" help:"Let its certificates take the place of those of the same names: for workers that keep no files. Who has such a token can be any worker."`
}

// Run makes a token.
func (c *CertsTokenCmd) Run(e *env) error {
	a, err := c.open(identity.DefaultLifetime)
	if err != nil {
		return err
	}
	role := c.Role
	if role == "any" {
		role = ""
	}
	token, err := a.NewToken(identity.JoinToken{Role: role, ID: c.Name, TTL: c.TTL, Uses: c.Uses, Replace: c.Replace})
	if err != nil {
		return err
	}
	fmt.Fprintln(e.out, token)
	return nil
}

// CertsIssueCmd is tandem certs issue.
type CertsIssueCmd struct {
	AuthorityFlags
	Role   string        `arg:"" enum:"target,draft,prefill" help:"Role of the worker: target (stages too), draft, prefill."`
	Name   string        `arg:"" help:"Name of the worker."`
	Output string        `arg:"" type:"path" help:"Folder for the certificate: the worker's --certs."`
	Life   time.Duration `default:"24h" env:"-" help:"Life of the certificate; workers that reach their gateway renew it."`
}

// Run writes a certificate.
func (c *CertsIssueCmd) Run(e *env) error {
	if err := identity.CheckID(c.Name); err != nil {
		return fmt.Errorf("name: %w", err)
	}
	if c.Life <= 0 {
		return fmt.Errorf("--life: must be above 0, got %v", c.Life)
	}
	a, err := c.open(c.Life)
	if err != nil {
		return err
	}
	if own, err := filepath.Abs(c.Output); err == nil && own == a.Dir() {
		return errors.New("output: is the authority's own folder")
	}
	pair, err := a.IssuePair(identity.Identity{Role: c.Role, ID: c.Name}, c.Output)
	if err != nil {
		return fmt.Errorf("output: %w", err)
	}
	fmt.Fprintf(e.out, "%s holds the certificate of %s until %s.\n", c.Output, pair.Identity(),
		pair.Cert.Leaf.NotAfter.Format(time.RFC3339))
	return nil
}

// CertsRotateCmd is tandem certs rotate.
type CertsRotateCmd struct {
	AuthorityFlags
	Revoke bool `env:"-" help:"Trust the old authority no more, nor any certificate that it issued: for keys that others may have. All workers of other hosts need new tokens."`
}

// Run replaces the authority.
func (c *CertsRotateCmd) Run(e *env) error {
	a, err := c.open(identity.DefaultLifetime)
	if err != nil {
		return err
	}
	if err := a.Rotate(app.GatewayName(), c.Revoke); err != nil {
		return err
	}
	fmt.Fprintln(e.out, "The authority is replaced; a running gateway takes it within seconds.")
	return nil
}

// CertsShowCmd is tandem certs show.
type CertsShowCmd struct{ AuthorityFlags }

// Run lists holders and tokens.
func (c *CertsShowCmd) Run(e *env) error {
	a, err := c.open(identity.DefaultLifetime)
	if err != nil {
		return err
	}
	holders, tokens, err := a.Holders()
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(e.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "WORKER\tEXPIRES")
	for _, h := range holders {
		fmt.Fprintf(w, "%s\t%s\n", h.Identity, h.NotAfter.Format(time.RFC3339))
	}
	fmt.Fprintln(w, "\nTOKEN FOR\tEXPIRES IN\tUSES LEFT")
	for _, t := range tokens {
		role, uses := t.Role, fmt.Sprint(t.Uses)
		if role == "" {
			role = "any"
		}
		if t.ID != "" {
			role += "/" + t.ID
		}
		if t.Uses == identity.ManyUses {
			uses = "any"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", role, t.TTL.Round(time.Second), uses)
	}
	return w.Flush()
}
