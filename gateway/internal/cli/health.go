package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// HealthCmd is tandem health, made for container health checks.
type HealthCmd struct {
	Server  string        `default:"${gateway}" help:"HTTP address of the gateway."`
	Live    bool          `env:"-" help:"Ask only whether the process runs, not whether it can serve."`
	Timeout time.Duration `default:"3s" env:"-" help:"Longest wait for an answer."`
	TrustFlags
}

// Run asks once.
func (c *HealthCmd) Run(e *env) error {
	ctx, cancel := context.WithTimeout(e.ctx, c.Timeout)
	defer cancel()
	path := "/health/ready"
	if c.Live {
		path = "/health/live"
	}
	client, err := c.client(c.Server)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	status, err := health(ctx, client, baseURL(c.Server)+path)
	if err != nil {
		return reached(c.Server, err)
	}
	fmt.Fprintln(e.out, status)
	return nil
}

// health returns the gateway's status, or an error that says why it is not well.
func health(ctx context.Context, client *http.Client, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<16))
	if err != nil {
		return "", err
	}
	var reply struct{ Status, Detail string }
	_ = json.Unmarshal(body, &reply)
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("the gateway answers %s: %s", response.Status, strings.TrimSpace(reply.Status+" "+reply.Detail))
	}
	return reply.Status, nil
}

// baseURL accepts host:port and URLs with or without a closing slash.
func baseURL(server string) string {
	if !strings.Contains(server, "://") {
		server = "http://" + server
	}
	return strings.TrimRight(server, "/")
}
