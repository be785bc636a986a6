package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/services/config"
	"github.com/tandem-inference/tandem/services/telemetry"
	"go.uber.org/zap"
)

// GatewayCmd is tandem gateway: the gateway without local workers.
type GatewayCmd struct {
	config.Flags
	app.Config
	LogFlags
}

// Validate reports settings that cannot work.
func (c *GatewayCmd) Validate() error { return c.Config.Validate() }

// Verify looks at the model files for --verify-config.
func (c *GatewayCmd) Verify() error {
	var problems []error
	for flag, path := range map[string]string{"--model": c.Model, "--prefill-drafter": c.PrefillDrafter} {
		if path == "" {
			continue
		}
		if _, err := readModel(path); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", flag, err))
		}
	}
	return errors.Join(problems...)
}

// Run serves until the process is told to stop.
func (c *GatewayCmd) Run(e *env) error {
	log, level, err := c.LogFlags.resolve(e.err).logger(e.err)
	if err != nil {
		return err
	}
	c.SealKeyFile = sealKeyFile(c.SealKeyFile, log)
	gateway, err := app.New(c.Config, app.Deps{Logger: log, Level: &level, Version: config.Version()})
	if err != nil {
		return err
	}
	e.onHangup(func() { _ = gateway.Reload() }) // logs its errors
	log.Info("gateway listens", zap.String(telemetry.KeyAddress, gateway.HTTPAddr().String()),
		zap.String(telemetry.KeyVersion, config.Version()))
	at := endpoint{gateway.HTTPAddr(), c.TLSCert != ""}
	fmt.Fprint(e.out, banner("waits for workers at "+gateway.RegistryAddr().String(), at.url(), gateway))
	stop, err := reportLife(e.ctx, at)
	if err != nil {
		return err
	}
	defer stop()
	return gateway.Run(e.ctx)
}

// banner tells people (and scripts) where a gateway can be reached.
func banner(state, url string, gateway *app.App) string {
	text := fmt.Sprintf("Tandem %s %s\n  HTTP  %s  (OpenAI and Anthropic APIs)\n", config.Version(), state, url)
	if addr := gateway.GRPCAddr(); addr != nil {
		text += fmt.Sprintf("  gRPC  %s  (tandem.v1, with reflection%s)\n", addr,
			map[bool]string{true: ", TLS"}[strings.HasPrefix(url, "https:")])
	}
	return text
}
