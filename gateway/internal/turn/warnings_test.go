package turn

import (
	"fmt"
	"strings"
	"testing"
)

// TestLongWarnings: what finds no room is counted, and no name is cut.
func TestLongWarnings(t *testing.T) {
	if got := listed("fields-ignored", []string{"a", "b[].c"}); got != "fields-ignored: a,b[].c" {
		t.Errorf("%q", got)
	}
	var names []string
	for i := range 500 {
		names = append(names, fmt.Sprintf("messages[].field_%03d", i))
	}
	got := headerText(listed("fields-ignored", names))
	shown, more, ok := strings.Cut(got, " and ")
	n := len(strings.Split(shown, ","))
	if !ok || more != fmt.Sprintf("%d more", len(names)-n) || !strings.HasSuffix(shown, names[n-1]) || n < 20 {
		t.Errorf("%d names: %q", n, got)
	}
	if got := listed("fields-ignored", []string{strings.Repeat("x", 2*maxWarning)}); got != "fields-ignored: 1 more" {
		t.Errorf("a name beyond the bound: %q", got)
	}
}
