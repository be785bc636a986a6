package identity

import (
	"crypto/rand"
	"crypto/x509"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// board is what gateways remember together.
type board struct {
	mu      sync.Mutex
	data    []byte
	version int
	away    error
}

func (b *board) Load() ([]byte, string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data, strconv.Itoa(b.version), b.away
}

func (b *board) Save(data []byte, was string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.away != nil {
		return b.away
	}
	if was != strconv.Itoa(b.version) {
		return ErrLedgerChanged
	}
	b.data, b.version = data, b.version+1
	return nil
}

// twins are two gateways that have one authority in folders of their own.
func twins(t *testing.T, b *board) (one, two *Authority) {
	t.Helper()
	one, err := Init(t.TempDir(), "one", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(one.Dir())); err != nil {
		t.Fatal(err)
	}
	if two, err = Open(dir, time.Hour); err != nil {
		t.Fatal(err)
	}
	one.Share(b)
	two.Share(b)
	return one, two
}

// request is one of a process with a new key.
func request(t *testing.T) []byte {
	t.Helper()
	key, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	return csr
}

func redeem(t *testing.T, a *Authority, token, id string) error {
	t.Helper()
	secret, _, err := splitToken(token)
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = a.Redeem(request(t), secret, Identity{Target, id})
	return err
}

// TestTokenUsedElsewhere: a token that was used at one gateway is refused by the others, of which each has the
// authority in a folder of its own; so is a name that has a certificate.
func TestTokenUsedElsewhere(t *testing.T) {
	b := &board{}
	one, two := twins(t, b)
	token := func(a *Authority) string {
		t.Helper()
		text, err := a.NewToken(JoinToken{Role: Target, TTL: time.Hour, Uses: 1})
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	used := token(one)
	if err := redeem(t, two, used, "a"); err != nil {
		t.Fatalf("at the gateway that did not make it: %v", err)
	}
	for name, a := range map[string]*Authority{"one": one, "two": two} {
		if err := redeem(t, a, used, "b"); err == nil || !strings.Contains(err.Error(), "has been used") {
			t.Errorf("again at %s: %v", name, err)
		}
	}
	if err := redeem(t, one, token(two), "a"); err == nil || !strings.Contains(err.Error(), "has a certificate") {
		t.Errorf("a name that another gateway gave a certificate: %v", err)
	}
	// At the same time at both, one of them wins.
	race := token(one)
	errs := make([]error, 2)
	var wg sync.WaitGroup
	for i, a := range []*Authority{one, two} {
		wg.Go(func() { errs[i] = redeem(t, a, race, "race"+strconv.Itoa(i)) })
	}
	wg.Wait()
	if (errs[0] == nil) == (errs[1] == nil) {
		t.Errorf("one token at two gateways at once: %v", errs)
	}
}

// TestTokenMadeByCommand: a token that tandem certs wrote into one gateway's folder reaches the others.
func TestTokenMadeByCommand(t *testing.T) {
	b := &board{}
	one, two := twins(t, b)
	command, err := Open(one.Dir(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	text, err := command.NewToken(JoinToken{TTL: time.Hour, Uses: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := one.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := redeem(t, two, text, "a"); err != nil {
		t.Fatal(err)
	}
}

// TestLedgerAway: what cannot be asked is not decided: a token is neither taken nor refused, and certificates are still
// renewed.
func TestLedgerAway(t *testing.T) {
	b := &board{}
	one, _ := twins(t, b)
	text, err := one.NewToken(JoinToken{TTL: time.Hour, Uses: 1})
	if err != nil {
		t.Fatal(err)
	}
	b.away = errors.New("nobody answers")
	if err := redeem(t, one, text, "a"); !errors.Is(err, errAsk) {
		t.Errorf("a token: %v", err)
	}
	if _, _, err := one.Renew(request(t), Identity{Target, "a"}); err != nil {
		t.Errorf("a renewal: %v", err)
	}
	b.away = nil
	if err := redeem(t, one, text, "b"); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}
