package app

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/tandem-inference/tandem/services/config"
	"github.com/tandem-inference/tandem/services/identity"
	"github.com/tandem-inference/tandem/services/wholefile"
)

// AuthorityDir is the folder of the cluster's authority: --authority, or one of the user's.
func AuthorityDir(flag string) (string, error) {
	if flag != "" {
		return flag, nil
	}
	base, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("--authority: %w", err)
	}
	return filepath.Join(base, "tandem", "cluster"), nil
}

// GatewayName is the one in a gateway's certificate.
func GatewayName() string {
	name, _ := os.Hostname() // one that no certificate can have is replaced
	return name
}

// certify opens the authority, or makes it, where there is to be one.
func (a *App) certify() error {
	c := &a.cfg
	far := a.registryLis.Addr().Network() != "unix" && config.Exposed(a.registryLis.Addr().String())
	if c.Plaintext || !far && c.Authority == "" && c.JoinTokenOutput == "" {
		return nil
	}
	dir, err := AuthorityDir(c.Authority)
	if err != nil {
		return err
	}
	authority, err := identity.OpenOrInit(dir, GatewayName(), c.CertLifetime)
	if err != nil {
		return fmt.Errorf("--authority: %w", err)
	}
	if a.link != nil {
		authority.Share(ledger{a.link})
	}
	if a.head, err = identity.NewHead(authority, GatewayName(), a.log.Named("certs")); err != nil {
		return fmt.Errorf("--authority: %w", err)
	}
	return a.writeToken(authority)
}

// tokenLife is that of the token in --join-token-output.
const tokenLife = 365 * 24 * time.Hour

// writeToken writes the token of --join-token-output. The one of an earlier start does not work any more.
func (a *App) writeToken(authority *identity.Authority) error {
	if a.cfg.JoinTokenOutput == "" {
		return nil
	}
	token, err := authority.NewToken(identity.JoinToken{TTL: tokenLife, Uses: identity.ManyUses,
		Label: a.tokenLabel(), Replace: true})
	if err == nil {
		err = wholefile.Write(a.cfg.JoinTokenOutput, []byte(token+"\n"))
	}
	if err != nil {
		return fmt.Errorf("--join-token-output: %w", err)
	}
	return nil
}

// tokenLabel tells the tokens of gateways apart that share what their authority remembers.
func (a *App) tokenLabel() string {
	const label = "--join-token-output"
	if a.link == nil {
		return label
	}
	return label + " " + GatewayName() + " " + a.cfg.JoinTokenOutput
}

// transport is how the gateway talks to workers.
func (a *App) transport() identity.Transport {
	t := identity.Transport{Plaintext: a.cfg.Plaintext, Logger: a.log.Named("registry")}
	if a.head != nil {
		t.Source = a.head.Source()
	}
	return t
}

// Certificate makes a certificate for a worker of this machine in a folder and keeps it new; false: the cluster has
// none. It must be called before Run.
func (a *App) Certificate(role, id, dir string) (bool, error) {
	if a.head == nil {
		return false, nil
	}
	return true, a.head.Own(identity.Identity{Role: role, ID: id}, dir)
}
