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
		devices, addresses []string
		split              string
		err                string
	}{
		{nil, nil, "auto", ""},
		{[]string{"cpu", "cuda:1", "hip:0"}, nil, "1,2,3", ""},
		{[]string{"cpu", "gpu"}, nil, "auto", "--target-devices"},
		{nil, nil, "4,4", "name none"},
		{[]string{"cpu", "cpu"}, nil, "4", "has 1 numbers"},
		{[]string{"cpu", "cpu"}, nil, "4,-4", "40,24"},
		{slices.Repeat([]string{"cpu"}, mostStages+1), nil, "auto", "at most"},
		{nil, []string{"a:1"}, "5,3", ""},
		{[]string{"cpu", "cpu"}, []string{"a:1", "b:1"}, "2,2,2,2", ""},
		{nil, []string{"a:1"}, "8", "are 2"},
		{nil, []string{"a:1", "a:1"}, "auto", "--target-stages"},
		{nil, []string{"a:1", ""}, "auto", "--target-stages"},
		{slices.Repeat([]string{"cpu"}, mostStages), []string{"a:1"}, "auto", "at most"},
	} {
		err := CheckStages(c.devices, c.addresses, c.split, "f32")
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%v %v %q: %v", c.devices, c.addresses, c.split, err)
		}
	}
	if err := CheckStages(nil, nil, "auto", "bf16"); err == nil || !strings.Contains(err.Error(), "--stage-row-type") {
		t.Errorf("rows of stages without stages: %v", err)
	}
	if err := CheckStages(nil, []string{"a:1"}, "auto", "bf16"); err != nil {
		t.Error(err)
	}
}

func TestParseStage(t *testing.T) {
	if k, n, err := ParseStage("2/3"); k != 2 || n != 3 || err != nil {
		t.Errorf("2/3: %d of %d, %v", k, n, err)
	}
	for _, text := range []string{"", "2", "1/2", "3/2", "a/2", "2/b", "2/17", "-1/2", "2/3/4"} {
		if _, _, err := ParseStage(text); err == nil || !strings.HasPrefix(err.Error(), "--stage: ") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
