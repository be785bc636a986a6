package turn

import (
	"strings"

	"github.com/tandem-inference/tandem/gateway/internal/apierror"
)

// Omit decides about content that the model cannot read: an image, a sound, a file. Leaving it out silently would change the
// answer; it is an error at path, or by configuration a short text in its place. kind is the part's type in any dialect's words.
func (s *Service) Omit(kind, path string) (string, error) {
	if !s.cfg.ImagePlaceholder {
		return "", apierror.Unsupported(path, "%q is not supported by this model", kind)
	}
	return "[" + strings.TrimSuffix(strings.TrimPrefix(kind, "input_"), "_url") + " omitted]", nil
}
