package config

import "runtime/debug"

// version is set by the Makefile: -ldflags "-X …/services/config.version=v0.1.0-12-gabcdef0".
var version string

// Version names the build: the Makefile's text, else the commit that the Go tool recorded, else "dev".
func Version() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "dev"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			return "dev-" + s.Value[:12]
		}
	}
	return "dev"
}
