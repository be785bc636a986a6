package workernode

import (
	"slices"
	"strings"
	"testing"
)

func TestSplitLayers(t *testing.T) {
	for _, c := range []struct {
		split     string
		n, layers int
		want      []int
		err       string
	}{
		{"auto", 2, 8, []int{4, 4}, ""},
		{"", 3, 8, []int{2, 3, 3}, ""},
		{"5,3", 2, 8, []int{5, 3}, ""},
		{" 1, 7", 2, 8, []int{1, 7}, ""},
		{"5,4", 2, 8, nil, "5,4 are 9 layers"},
		{"5,3", 3, 8, nil, "--target-layer-split"},
		{"8,0", 2, 8, nil, "40,24"},
		{"a", 1, 8, nil, "40,24"},
		{"auto", 9, 8, nil, "--target-devices"},
	} {
		got, err := SplitLayers(c.split, c.n, c.layers)
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) ||
			!slices.Equal(got, c.want) {
			t.Errorf("%q for %d of %d: %v, %v", c.split, c.n, c.layers, got, err)
		}
	}
}

func TestCheckStages(t *testing.T) {
	for _, c := range []struct {
		devices []string
		split   string
		err     string
	}{
		{nil, "auto", ""},
		{[]string{"cpu", "cuda:1", "hip:0"}, "1,2,3", ""},
		{[]string{"cpu", "gpu"}, "auto", "--target-devices"},
		{nil, "4,4", "names none"},
		{[]string{"cpu", "cpu"}, "4", "has 1 numbers"},
		{[]string{"cpu", "cpu"}, "4,-4", "40,24"},
		{slices.Repeat([]string{"cpu"}, mostStages+1), "auto", "at most"},
	} {
		err := CheckStages(c.devices, c.split)
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%v %q: %v", c.devices, c.split, err)
		}
	}
}
