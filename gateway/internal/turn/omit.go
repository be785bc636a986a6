package turn

import (
	"slices"
	"strings"

	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
)

// Omit decides about content that the model cannot read: an image, a sound, a file. By default a short text takes its
// place and the client is warned, because agents keep such content in their history and an error would end the session.
// With the policy reject it is an error at path. kind is the part's type in any dialect's words.
func (s *Service) Omit(req *Request) func(kind, path string) (string, error) {
	return func(kind, path string) (string, error) {
		if !s.cfg.ImagePlaceholder {
			return "", reqerr.Unsupported(path, "%q is not supported by this model", kind)
		}
		name := strings.TrimSuffix(strings.TrimPrefix(kind, "input_"), "_url")
		if !slices.Contains(req.Omitted, name) {
			req.Omitted = append(req.Omitted, name)
		}
		return "[" + name + " omitted]", nil
	}
}
