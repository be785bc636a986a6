package cli

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"syscall"
)

// TrustFlags say whom a command that asks a gateway over https trusts.
type TrustFlags struct {
	CAFile   string `name:"ca-file" type:"path" placeholder:"PATH" help:"Certificates (PEM) that --server may be signed by, besides those of the system."`
	Insecure bool   `help:"Do not check the certificate of --server. Whoever is on the way can then read and change everything."`
}

// reached names the gateway in the error of a request that nothing answered, and says what helps.
func reached(server string, err error) error {
	if errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("no gateway at %s: tandem serve starts one, --server (or TANDEM_SERVER) names another",
			baseURL(server))
	}
	return err
}

// client is an HTTP client for server.
func (f *TrustFlags) client(server string) (*http.Client, error) {
	if f.CAFile == "" && !f.Insecure {
		return http.DefaultClient, nil
	}
	if !strings.HasPrefix(baseURL(server), "https://") {
		return nil, errors.New("--ca-file and --insecure are for a --server of https://")
	}
	config := &tls.Config{InsecureSkipVerify: f.Insecure}
	if f.CAFile != "" {
		pem, err := os.ReadFile(f.CAFile)
		if err != nil {
			return nil, fmt.Errorf("--ca-file: %w", err)
		}
		if config.RootCAs, err = x509.SystemCertPool(); err != nil {
			config.RootCAs = x509.NewCertPool()
		}
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--ca-file: %s holds no certificate in PEM form", f.CAFile)
		}
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = config
	return &http.Client{Transport: transport}, nil
}
