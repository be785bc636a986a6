package drafts

import (
	"testing"

	"github.com/tandem-inference/tandem/services/telemetry"
	"google.golang.org/grpc/metadata"
)

// TestStreamsAreNamed: a stream carries its request's id, and an id that metadata cannot hold costs no stream.
func TestStreamsAreNamed(t *testing.T) {
	for id, want := range map[string]int{"req-1": 1, "": 0, "two\nlines": 0, "é": 0} {
		md, _ := metadata.FromOutgoingContext(named(t.Context(), id))
		if got := md.Get(telemetry.MetadataRequestID); len(got) != want || want == 1 && got[0] != id {
			t.Errorf("%q: %q", id, got)
		}
	}
}
