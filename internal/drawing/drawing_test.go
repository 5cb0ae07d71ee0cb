package drawing

import (
	"math"
	"path/filepath"
	"strings"
	"testing"
)

func TestSave(t *testing.T) {
	for name, c := range map[string]struct {
		x, y []float64
		want string
	}{
		"one point":    {[]float64{3}, []float64{5}, ""},
		"constant":     {[]float64{0, 1, 2}, []float64{0.1, 0.1, 0.1}, ""},
		"tiny":         {[]float64{0, 1}, []float64{-1e-30, 1e-30}, ""},
		"huge":         {[]float64{0, 1}, []float64{-1e30, 1e30}, ""},
		"no point":     {nil, nil, "no point"},
		"not a number": {[]float64{0, 1}, []float64{0, math.NaN()}, "NaN"},
		"infinite":     {[]float64{0, 1}, []float64{0, math.Inf(-1)}, "-Inf"},
	} {
		p := Plot{Title: name, Lines: []Line{{Name: "empty"}, {Name: "a", X: c.x, Y: c.y}}}
		err := Save(filepath.Join(t.TempDir(), "a.svg"), p)
		if c.want == "" && err != nil || c.want != "" &&
			(err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestTicksCoverTheValues(t *testing.T) {
	for _, values := range [][]float64{{0, 1}, {-3, 1e6}, {0.123, 0.124}, {1e-9, 1e9}, {7, 7}} {
		ticks := Plot{}.ticks(values)
		rounding := 1e-9 * (values[1] - values[0])
		if n := len(ticks); n < 2 || n > 15 || ticks[0].Value > values[0]+rounding ||
			ticks[n-1].Value < values[1]-rounding {
			t.Errorf("%v: %v", values, ticks)
		}
	}
}
