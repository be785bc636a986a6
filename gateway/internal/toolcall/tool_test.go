package toolcall

import (
	"slices"
	"testing"
)

func TestUnion(t *testing.T) {
	set := func(description string, names ...string) *Set {
		s := &Set{}
		for _, n := range names {
			if err := s.Add(Tool{Name: n, Description: description}, nil); err != nil {
				t.Fatal(err)
			}
		}
		return s
	}
	first, second, third := set("1", "a", "b"), set("2", "c", "a"), set("3", "d", "c")
	got := first.Union(nil, second, third)
	var names []string
	for _, x := range got.All() {
		names = append(names, x.Name+x.Description)
		if got.Get(x.Name) != x {
			t.Errorf("%s is found as another tool", x.Name)
		}
	}
	if want := []string{"a2", "b1", "c3", "d3"}; !slices.Equal(names, want) {
		t.Errorf("%v, want %v", names, want)
	}
	if len(first.All()) != 2 || first.Get("a").Description != "1" {
		t.Error("the first set was changed")
	}
	if first.Union(nil) != first || (*Set)(nil).Union(second).Len() != 2 {
		t.Error("unions with nothing are not the other set")
	}
}
