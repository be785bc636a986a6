package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/apikey"
	"github.com/tandem-inference/tandem/services/telemetry"
	"github.com/tandem-inference/tandem/services/wholefile"
	"go.uber.org/zap"
)

// readKeys collects the API keys of flags and file.
func (a *App) readKeys() ([]apikey.Key, error) {
	var keys []apikey.Key
	for _, k := range a.cfg.APIKey {
		if k.Reveal() == "" {
			return nil, fmt.Errorf("--api-key: %w", os.ErrInvalid)
		}
		keys = append(keys, apikey.New("", k.Reveal()))
	}
	if a.cfg.APIKeyFile == "" {
		return keys, nil
	}
	more, err := apikey.ReadFile(a.cfg.APIKeyFile)
	if err != nil {
		return nil, fmt.Errorf("--api-key-file: %w", err)
	}
	return append(keys, more...), nil
}

// servedCertificate is the one of the HTTP and gRPC ports; it can be replaced while they serve.
type servedCertificate struct {
	pair atomic.Pointer[tls.Certificate]
}

// readCertificate reads certificate and key.
func (a *App) readCertificate() (*tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(a.cfg.TLSCert, a.cfg.TLSKey)
	if err != nil {
		return nil, fmt.Errorf("--tls-cert: %w", err)
	}
	return &pair, nil
}

// config is for a server that speaks protocols, those of ALPN.
func (c *servedCertificate) config(protocols ...string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: protocols,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.pair.Load(), nil },
	}
}

// load reads the files of API keys and of the certificate. What cannot be read stays as it was.
func (a *App) load() error {
	keys, keysErr := a.readKeys()
	if keysErr == nil {
		a.keys.Set(keys)
	}
	var certErr error
	if a.cfg.TLSCert != "" {
		pair, err := a.readCertificate()
		if certErr = err; err == nil {
			a.cert.pair.Store(pair)
		}
	}
	return errors.Join(keysErr, certErr)
}

// Reload reads the files of API keys and of the certificate again. What cannot be read stays as it was; the error,
// which is logged too, says why. Open connections keep their certificate, running requests their key.
func (a *App) Reload() error {
	err := a.load()
	if err != nil {
		a.log.Error("keys or certificate could not be read again, the old ones still hold",
			zap.NamedError(telemetry.KeyErr, err))
		return err
	}
	a.log.Info("keys and certificate were read again", zap.Strings(telemetry.KeyPath, a.secretFiles()))
	return nil
}

// secretFiles are those that Reload reads.
func (a *App) secretFiles() []string {
	return slices.DeleteFunc([]string{a.cfg.APIKeyFile, a.cfg.TLSCert, a.cfg.TLSKey},
		func(path string) bool { return path == "" })
}

// watchFiles calls Reload when one of the files changes. It asks for times and sizes every so often, which also works
// where files are links that somebody turns, as in Kubernetes, and on network drives.
func (a *App) watchFiles(ctx context.Context) error {
	files := a.secretFiles()
	if len(files) == 0 {
		return nil
	}
	ticker := time.NewTicker(seconds(a.cfg.FilePollS))
	defer ticker.Stop()
	for old := a.filesRead; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if now := stamps(files); !slices.Equal(now, old) {
			old = now
			_ = a.Reload() // logs its error
		}
	}
}

// stamps are those of files.
func stamps(files []string) []string {
	out := make([]string, len(files))
	for i, path := range files {
		out[i] = wholefile.Stamp(path)
	}
	return out
}
