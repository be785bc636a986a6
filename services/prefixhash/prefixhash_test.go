package prefixhash

import "testing"

// TestNumbers: a begin has one number wherever it is computed, and another one in every isolation and order.
func TestNumbers(t *testing.T) {
	tokens := []int32{5, 0, 7, 7, 0, 5, 31999}
	seen := map[uint64]string{}
	for _, isolation := range []string{"", "a", "b"} {
		all := All(isolation, tokens)
		if len(all) != len(tokens)+1 {
			t.Fatalf("%d numbers", len(all))
		}
		for n, h := range all {
			if h != Of(isolation, tokens[:n]) {
				t.Errorf("%q: the number of %d tokens is another one alone", isolation, n)
			}
			if other, ok := seen[h]; ok {
				t.Errorf("%q has the number of %q", isolation, other)
			}
			seen[h] = isolation
		}
	}
	if Of("", []int32{1, 2}) == Of("", []int32{2, 1}) || Of("", []int32{0}) == Of("", []int32{0, 0}) {
		t.Error("order or length of the tokens does not count")
	}
}
