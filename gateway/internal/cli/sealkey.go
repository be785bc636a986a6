package cli

import (
	"os"
	"path/filepath"

	"github.com/tandem-inference/tandem/gateway/internal/seal"
	"github.com/tandem-inference/tandem/services/telemetry"
	"go.uber.org/zap"
)

// sealKeyFile is the flag's value, or a file in the user's cache. Where none can be kept (a container without a home)
// the gateway does with a key of its own: after a restart, reasoning that clients carried is left out of their prompts.
func sealKeyFile(flag string, log *zap.Logger) string {
	if flag != "" {
		return flag
	}
	dir, err := os.UserCacheDir()
	if err == nil {
		path := filepath.Join(dir, "tandem", "gateway.key")
		if _, err = seal.ReadOrCreate(path); err == nil {
			return path
		}
	}
	log.Warn("the key of sealed reasoning lasts only until the gateway ends", zap.NamedError(telemetry.KeyErr, err))
	return ""
}
