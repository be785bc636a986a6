package shared_test

import (
	"testing"

	"github.com/tandem-inference/tandem/services/shared"
	"github.com/tandem-inference/tandem/services/shared/storetest"
)

func TestEmbedded(t *testing.T) {
	e := shared.NewEmbedded()
	storetest.Run(t, func(*testing.T) shared.Store { return e.Open() })
}
