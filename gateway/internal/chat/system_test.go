package chat

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestJoinSystem(t *testing.T) {
	sys := func(s string) Message { return Message{Role: RoleSystem, Content: s} }
	user := Message{Role: RoleUser, Content: "u"}
	in := []Message{sys("a"), sys(""), sys("b"), user, sys("c"), user}
	for _, tt := range []struct {
		name  string
		in    []Message
		later bool
		want  []Message
	}{
		{"later ones stay", in, true, []Message{sys("a\n\nb"), user, sys("c"), user}},
		{"later ones join", in, false, []Message{sys("a\n\nb\n\nc"), user, user}},
		{"none", []Message{user}, false, []Message{user}},
		{"only later ones", []Message{user, sys("c")}, false, []Message{sys("c"), user}},
		{"only empty ones", []Message{sys(""), user}, true, []Message{user}},
	} {
		if d := cmp.Diff(tt.want, JoinSystem(tt.in, tt.later)); d != "" {
			t.Errorf("%s: %s", tt.name, d)
		}
	}
	if in[0].Content != "a" || len(in) != 6 {
		t.Error("the messages were changed")
	}
}
