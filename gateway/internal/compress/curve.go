package compress

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Curve gives the keep ratio by the length of a prompt: points with rising lengths, linear between them over the
// logarithm of the length, constant outside. The zero value is no curve.
type Curve []CurvePoint

// CurvePoint is a point of a Curve.
type CurvePoint struct {
	Tokens int
	Ratio  float64
}

// ParseCurve reads "32k:0.10,64k:0.05,128k:0.02"; k is 1024 tokens. Empty text is no curve.
func ParseCurve(text string) (Curve, error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	var c Curve
	for _, part := range strings.Split(text, ",") {
		length, ratio, ok := strings.Cut(strings.TrimSpace(part), ":")
		if !ok {
			return nil, fmt.Errorf("%q is not LENGTH:RATIO", part)
		}
		number, factor := length, 1
		if n, found := strings.CutSuffix(strings.ToLower(length), "k"); found {
			number, factor = n, 1024
		}
		tokens, err := strconv.Atoi(number)
		if err != nil || tokens < 1 || tokens > math.MaxInt32/factor {
			return nil, fmt.Errorf("%q is no length in tokens", length)
		}
		p := CurvePoint{Tokens: tokens * factor}
		if p.Ratio, err = strconv.ParseFloat(ratio, 64); err != nil || !(p.Ratio > 0 && p.Ratio <= 1) {
			return nil, fmt.Errorf("%q is no ratio in (0, 1]", ratio)
		}
		if n := len(c); n > 0 && p.Tokens <= c[n-1].Tokens {
			return nil, fmt.Errorf("lengths must rise, %s does not", length)
		}
		c = append(c, p)
	}
	return c, nil
}

// At is the ratio for a prompt of that many tokens; the curve must have a point.
func (c Curve) At(tokens int) float64 {
	if tokens <= c[0].Tokens {
		return c[0].Ratio
	}
	for i := 1; i < len(c); i++ {
		a, b := c[i-1], c[i]
		if tokens <= b.Tokens {
			f := math.Log(float64(tokens)/float64(a.Tokens)) / math.Log(float64(b.Tokens)/float64(a.Tokens))
			return a.Ratio + f*(b.Ratio-a.Ratio)
		}
	}
	return c[len(c)-1].Ratio
}
