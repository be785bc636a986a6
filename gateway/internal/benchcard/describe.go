package benchcard

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Page returns a page of the server, such as /cluster.
type Page func(ctx context.Context, path string) (io.ReadCloser, error)

// mostPage bounds a page that a server describes itself by, in bytes.
const mostPage = 16 << 20

func (p Page) read(ctx context.Context, path string, into any) error {
	body, err := p(ctx, path)
	if err != nil {
		return err
	}
	defer body.Close()
	if err := json.NewDecoder(io.LimitReader(body, mostPage)).Decode(into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// modelList is /v1/models as Tandem, vLLM and others answer it.
type modelList struct {
	Data []struct {
		ID          string
		MaxModelLen int `json:"max_model_len"`
	}
}

// errNoModel is the error of a server whose list of models is empty.
var errNoModel = errors.New("/v1/models: the server has no model")

// Describer returns the Describe of a Tandem gateway.
func Describer(page Page) func(context.Context, *Server) (Limits, error) {
	return func(ctx context.Context, s *Server) (Limits, error) {
		var models modelList
		var props struct {
			Server      struct{ Version string }
			Speculative struct{ Sources []string }
		}
		var cluster struct {
			Workers []struct {
				Role, Device, Model, Backend, Numerics, Contract string
				Digest                                           string `json:"model_digest"`
			}
		}
		if err := errors.Join(page.read(ctx, "/v1/models", &models), page.read(ctx, "/props", &props),
			page.read(ctx, "/cluster", &cluster)); err != nil {
			return Limits{}, err
		}
		if len(models.Data) == 0 {
			return Limits{}, errNoModel
		}
		s.Version, s.Model, s.Modes = props.Server.Version, models.Data[0].ID, modesOf(props.Speculative.Sources)
		for _, w := range cluster.Workers {
			s.Models = append(s.Models, Model{Role: w.Role, Name: w.Model, Digest: w.Digest, Device: w.Device,
				Backend: w.Backend, Numerics: w.Numerics, Contract: w.Contract})
		}
		slices.SortFunc(s.Models, func(a, b Model) int {
			return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Device, b.Device))
		})
		return Limits{Context: models.Data[0].MaxModelLen}, nil
	}
}

// rank of a model: the target's first, then those that help it.
func rank(m Model) int { return slices.Index([]string{"target", "draft", "scorer"}, m.Role) }

// modesOf returns the modes that make a difference with these sources of speculation. Plain is the first, automatic
// the last.
func modesOf(sources []string) []string {
	modes := []string{ModePlain}
	switch {
	case slices.Contains(sources, "draft"):
		modes = append(modes, "chain", "tree", "auto")
	case slices.Contains(sources, "lookup"):
		modes = append(modes, "lookup", "auto")
	}
	return modes
}

// OtherDescriber returns the Describe of any server with OpenAI's API. Its list of models may be missing.
func OtherDescriber(page Page, model string) func(context.Context, *Server) (Limits, error) {
	return func(ctx context.Context, s *Server) (Limits, error) {
		s.Model = model
		var models modelList
		if err := page.read(ctx, "/v1/models", &models); err != nil {
			return Limits{}, ctx.Err()
		}
		for _, m := range models.Data {
			if m.ID == model {
				return Limits{Context: m.MaxModelLen}, nil
			}
		}
		return Limits{}, nil
	}
}

// New returns a card of this machine without servers.
func New(version string, plan Plan, now time.Time) *Card {
	c := &Card{Schema: Schema, Version: version, Taken: now.UTC().Format(time.RFC3339), Plan: plan, Machine: Here()}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				c.Commit = s.Value
			}
		}
	}
	return c
}

// Here describes the machine that the client runs on.
func Here() Machine {
	m := Machine{System: runtime.GOOS + "/" + runtime.GOARCH, Cores: runtime.NumCPU(), Processor: "unknown"}
	if name := field("/proc/cpuinfo", "model name"); name != "" {
		m.Processor = name
	}
	if kib, err := strconv.ParseInt(strings.TrimSuffix(field("/proc/meminfo", "MemTotal"), " kB"), 10, 64); err == nil {
		m.MemoryBytes = kib << 10
	}
	if data, err := os.ReadFile("/proc/loadavg"); err == nil {
		first, _, _ := strings.Cut(string(data), " ")
		m.Load, _ = strconv.ParseFloat(first, 64)
	}
	return m
}

// field returns the value of the first line "key: value" of a file, empty without one.
func field(path, key string) string {
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if name, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(name) == key {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
