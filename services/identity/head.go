package identity

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/tandem-inference/tandem/services/pause"
	"github.com/tandem-inference/tandem/services/telemetry"
	"github.com/tandem-inference/tandem/services/wholefile"
	"go.uber.org/zap"
)

// Head keeps the gateway's own certificate, and those of workers on its machine that have no other way to the
// authority.
type Head struct {
	authority *Authority
	name      string
	source    *Source
	log       *zap.Logger
	own       []*owned
	poll      time.Duration
	ledger    string // stamp of the file that the other gateways know
}

// owned is a worker whose folder the gateway writes.
type owned struct {
	who  Identity
	dir  string
	next time.Time
	root string // digest of the authority that issued the certificate
}

// NewHead reads the gateway's certificate in the authority's folder, or makes one.
func NewHead(a *Authority, name string, log *zap.Logger) (*Head, error) {
	h := &Head{authority: a, name: name, log: log, poll: defaultPoll}
	pair, err := Load(a.dir)
	if missing(err) || err == nil && time.Now().After(pair.renewAt()) {
		pair, err = a.IssueGateway(name)
	}
	if err != nil {
		return nil, err
	}
	h.source = NewSource(pair)
	return h, nil
}

// Source has the gateway's certificate.
func (h *Head) Source() *Source { return h.source }

// Authority issues certificates.
func (h *Head) Authority() *Authority { return h.authority }

// Own makes a certificate for a worker of this machine in a folder, and keeps it new while Run runs. It must not be
// called after Run.
func (h *Head) Own(who Identity, dir string) error {
	o := &owned{who: who, dir: dir}
	h.own = append(h.own, o)
	return h.renewOwned(o)
}

func (h *Head) renewOwned(o *owned) error {
	pair, err := h.authority.IssuePair(o.who, o.dir)
	if err == nil {
		o.next, o.root = pair.renewAt(), pinOf(pair.Roots[0])
	}
	return err
}

// Run renews certificates in time, and takes those that tandem certs wrote, until ctx ends.
func (h *Head) Run(ctx context.Context) error {
	read := stamp(h.authority.dir)
	for pause.For(ctx, h.poll) {
		if err := h.look(&read); err != nil {
			h.log.Warn("certificates were not renewed, will try again", zap.NamedError(telemetry.KeyErr, err))
		}
	}
	return nil
}

func (h *Head) look(read *string) error {
	var errs []error
	if now := wholefile.Stamp(filepath.Join(h.authority.dir, ledgerFile)); h.authority.shared != nil && now != h.ledger {
		if err := h.authority.Sync(); err != nil {
			errs = append(errs, err)
		} else {
			h.ledger = wholefile.Stamp(filepath.Join(h.authority.dir, ledgerFile))
		}
	}
	if time.Now().After(h.source.Pair().renewAt()) {
		_, err := h.authority.IssueGateway(h.name)
		errs = append(errs, err)
	}
	if now := stamp(h.authority.dir); now != *read {
		pair, err := Load(h.authority.dir)
		if err == nil {
			*read = now
			h.source.Set(pair)
		}
		errs = append(errs, err)
	}
	root := pinOf(h.source.Pair().Roots[0])
	for _, o := range h.own {
		if time.Now().After(o.next) || o.root != root {
			errs = append(errs, h.renewOwned(o))
		}
	}
	return errors.Join(errs...)
}
