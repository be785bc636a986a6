package identity

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// SharedLedger keeps what an authority remembers, for gateways that have it in folders of their own.
type SharedLedger interface {
	// Load returns what is kept and its version; no data = nothing is.
	Load() (data []byte, version string, err error)
	// Save replaces what had a version; ErrLedgerChanged when it has another one.
	Save(data []byte, was string) error
}

// ErrLedgerChanged says that another gateway was faster.
var ErrLedgerChanged = errors.New("another gateway changed what the authority remembers")

// saves bounds the attempts to change a shared ledger; each fails only because another one succeeded.
const saves = 50

// Share has the authority remember together with others that have the same key: who has a certificate, and which tokens
// there are and were used. It must be called before the authority is used by more than one goroutine.
func (a *Authority) Share(l SharedLedger) { a.shared = l }

// Sync brings what tandem certs wrote into the folder to the others.
func (a *Authority) Sync() error { return a.locked(func(*ledger) error { return nil }) }

// together runs f with what the authority and the others remember, and saves what f leaves. Without the others it fails
// when it has to be sure.
func (a *Authority) together(l *ledger, sure bool, f func(*ledger) error) error {
	if a.shared == nil {
		return f(l)
	}
	own, err := json.Marshal(l)
	if err != nil {
		return err
	}
	for range saves {
		data, version, err := a.shared.Load()
		if err != nil {
			if sure {
				return fmt.Errorf("%w: %w", errAsk, err)
			}
			return f(l)
		}
		*l = ledger{Issued: map[string]issued{}}
		if err := json.Unmarshal(own, l); err != nil {
			return err
		}
		if len(data) > 0 {
			other := &ledger{}
			if err := json.Unmarshal(data, other); err != nil {
				return fmt.Errorf("what the gateways remember of certificates: %w", err)
			}
			l.merge(other)
		}
		if err := f(l); err != nil {
			return err
		}
		changed, err := json.Marshal(l)
		if err != nil {
			return err
		}
		if string(changed) == string(data) {
			return nil
		}
		switch err := a.shared.Save(changed, version); {
		case err == nil:
			return nil
		case errors.Is(err, ErrLedgerChanged):
		case sure:
			return fmt.Errorf("%w: %w", errAsk, err)
		default:
			return nil // the folder has it, and the next change brings it there
		}
	}
	return fmt.Errorf("%w: other gateways change it all the time", errAsk)
}

// errAsk is why a token can be neither taken nor refused.
var errAsk = errors.New("which tokens were used cannot be told now")

// merge adds what another ledger knows. Uses of a token count wherever they were.
func (l *ledger) merge(other *ledger) {
	for _, theirs := range other.Tokens {
		i := slices.IndexFunc(l.Tokens, func(t *token) bool { return t.Name == theirs.Name })
		if i < 0 {
			if time.Now().Before(theirs.Expires) {
				l.Tokens = append(l.Tokens, theirs)
			}
			continue
		}
		ours := l.Tokens[i]
		for _, key := range theirs.Keys {
			if !slices.Contains(ours.Keys, key) {
				ours.Keys = append(ours.Keys, key)
			}
		}
		if ours.Uses != ManyUses {
			ours.Uses = min(ours.Uses, theirs.Uses)
		}
	}
	newest := map[string]time.Time{} // of the tokens with a label, of which there is one each
	for _, t := range l.Tokens {
		if t.Expires.After(newest[t.Label]) {
			newest[t.Label] = t.Expires
		}
	}
	l.Tokens = slices.DeleteFunc(l.Tokens, func(t *token) bool {
		return t.Label != "" && t.Expires.Before(newest[t.Label])
	})
	for name, theirs := range other.Issued {
		if ours, ok := l.Issued[name]; !ok || theirs.NotAfter.After(ours.NotAfter) {
			l.Issued[name] = theirs
		}
	}
	for digest, until := range other.Superseded {
		if l.Superseded == nil {
			l.Superseded = map[string]time.Time{}
		}
		if until.After(l.Superseded[digest]) {
			l.Superseded[digest] = until
		}
	}
}
