package shared_test

import (
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/shared"
	"github.com/tandem-inference/tandem/gateway/internal/shared/storetest"
)

func TestEmbedded(t *testing.T) {
	e := shared.NewEmbedded()
	storetest.Run(t, func(*testing.T) shared.Store { return e.Open() })
}
