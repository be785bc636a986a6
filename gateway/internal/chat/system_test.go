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
		{"only empty ones", []Message{sys(""), sys(""), user}, true, []Message{user}},
		{"a single one", []Message{{Role: RoleSystem, Name: "n"}, user}, false,
			[]Message{{Role: RoleSystem, Name: "n"}, user}},
		{"a single one before later ones", []Message{{Role: RoleSystem, Content: "a", Name: "n"}, user, sys("c")}, true,
			[]Message{{Role: RoleSystem, Content: "a", Name: "n"}, user, sys("c")}},
		{"no messages", nil, false, nil},
	} {
		if d := cmp.Diff(tt.want, JoinSystem(tt.in, tt.later)); d != "" {
			t.Errorf("%s: %s", tt.name, d)
		}
		if once := JoinSystem(tt.in, tt.later); cmp.Diff(once, JoinSystem(once, tt.later)) != "" {
			t.Errorf("%s: a second time changes it", tt.name)
		}
	}
	if in[0].Content != "a" || len(in) != 6 {
		t.Error("the messages were changed")
	}
}
