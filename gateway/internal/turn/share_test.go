package turn

import (
	"strings"
	"testing"
)

func TestShare(t *testing.T) {
	for _, tt := range []struct{ scope, session, address, want string }{
		{"k", "s", "10.0.0.1:99", "key k"},
		{"", "s", "10.0.0.1:99", "session s"},
		{"", "", "10.0.0.1:99", "host 10.0.0.1"},
		{"", "", "10.0.0.1:98", "host 10.0.0.1"},
		{"", "", "[fe80::1%eth0]:99", "host fe80::1%eth0"},
		{"", "", "@", "host @"},
		{"", "", "", "host "},
	} {
		if got := Share(tt.scope, tt.session, tt.address); got != tt.want {
			t.Errorf("Share(%q, %q, %q) = %q, want %q", tt.scope, tt.session, tt.address, got, tt.want)
		}
	}
}

func TestPriority(t *testing.T) {
	for value, want := range map[string]int{"": 5, "0": 0, "9": 9, "10": 5, "-1": 5, "high": 5} {
		if got := Priority(true, value); got != want {
			t.Errorf("Priority(%q) = %d, want %d", value, got, want)
		}
		if got := Priority(false, value); got != 5 {
			t.Errorf("Priority(%q) of one that is not trusted = %d", value, got)
		}
	}
}

func TestRequestID(t *testing.T) {
	for _, id := range []string{"a", "A-9_z.", strings.Repeat("x", 128)} {
		if RequestID(id) != id {
			t.Errorf("%q is not kept", id)
		}
	}
	for _, id := range []string{"", "a b", "a\nb", "é", strings.Repeat("x", 129)} {
		if got := RequestID(id); got == id || !strings.HasPrefix(got, "req-") {
			t.Errorf("%q became %q", id, got)
		}
	}
}
