package registry

import (
	"testing"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/identity"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// TestKnown: a worker with a certificate registers in its role and under its name only.
func TestKnown(t *testing.T) {
	holder := identity.Info{Identity: identity.Identity{Role: identity.Draft, ID: "box"}}
	for _, test := range []struct {
		name string
		info identity.Info
		role tandemv1.Role
		id   string
		want codes.Code
	}{
		{"itself", holder, tandemv1.Role_ROLE_DRAFT, "box", codes.OK},
		{"another name", holder, tandemv1.Role_ROLE_DRAFT, "other", codes.PermissionDenied},
		{"another role", holder, tandemv1.Role_ROLE_TARGET, "box", codes.PermissionDenied},
		{"nobody", identity.Info{}, tandemv1.Role_ROLE_DRAFT, "box", codes.PermissionDenied},
		{"this host", identity.Info{Trusted: true}, tandemv1.Role_ROLE_TARGET, "any", codes.OK},
	} {
		ctx := peer.NewContext(t.Context(), &peer.Peer{AuthInfo: test.info})
		err := known(ctx, &tandemv1.Registration{Role: test.role, WorkerId: test.id})
		if status.Code(err) != test.want {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}
