package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Size is a number of bytes that is written with a unit: 8GiB, 512MB, 65536.
type Size int64

// Units in the order in which a suffix is looked for: longer ones first, so that "GiB" is not read as "B".
var sizeUnits = []struct {
	suffix string
	factor float64
}{
	{"kib", 1 << 10}, {"mib", 1 << 20}, {"gib", 1 << 30}, {"tib", 1 << 40},
	{"kb", 1e3}, {"mb", 1e6}, {"gb", 1e9}, {"tb", 1e12},
	{"k", 1 << 10}, {"m", 1 << 20}, {"g", 1 << 30}, {"t", 1 << 40},
	{"b", 1}, {"", 1},
}

// ParseSize reads a size. KiB, MiB, GiB, TiB and the bare letters are powers of 1024; kB, MB, GB, TB powers of 1000; no
// suffix means bytes. Case does not matter.
func ParseSize(text string) (Size, error) {
	lower := strings.ToLower(strings.TrimSpace(text))
	for _, unit := range sizeUnits {
		digits, found := strings.CutSuffix(lower, unit.suffix)
		if !found {
			continue
		}
		value, err := strconv.ParseFloat(strings.TrimSpace(digits), 64)
		if err != nil || math.IsNaN(value) || value < 0 {
			break
		}
		bytes := value * unit.factor
		if bytes >= math.MaxInt64 {
			return 0, fmt.Errorf("size %q does not fit 63 bits", text)
		}
		return Size(bytes), nil
	}
	return 0, fmt.Errorf("size %q is not a number with an optional unit such as 512MiB or 8GiB", text)
}

// UnmarshalText reads a size for kong and for JSON.
func (s *Size) UnmarshalText(text []byte) error {
	v, err := ParseSize(string(text))
	if err == nil {
		*s = v
	}
	return err
}

// MarshalText writes the size as String does.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// String writes the size in the largest power of 1024 that divides it, so that it reads back to the same number.
func (s Size) String() string {
	for _, unit := range []struct {
		suffix string
		factor Size
	}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if s != 0 && s%unit.factor == 0 {
			return strconv.FormatInt(int64(s/unit.factor), 10) + unit.suffix
		}
	}
	return strconv.FormatInt(int64(s), 10)
}

// Human writes the size for people, rounded to three digits: "8.0 GiB".
func (s Size) Human() string {
	v, units := float64(s), []string{"B", "KiB", "MiB", "GiB", "TiB"}
	i := 0
	for v >= 1000 && i < len(units)-1 {
		v /= 1024
		i++
	}
	if i == 0 {
		return fmt.Sprintf("%d B", int64(s))
	}
	return fmt.Sprintf("%.1f %s", v, units[i])
}
