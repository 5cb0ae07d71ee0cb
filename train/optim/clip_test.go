package optim

import (
	"math"
	"testing"

	"rondo/compute/cpu"
)

func TestClip(t *testing.T) {
	dev, err := cpu.New(cpu.Config{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	clipper := dev.NewClipper()
	defer clipper.Close()
	inf := float32(math.Inf(1))
	g := func(x ...float32) []float32 { return x }
	for name, c := range map[string]struct {
		clip  Clip
		share float64
		g     []float32
		want  []float32
		norm  float64
	}{
		"off":             {Clip{0, ByNorm, ScopeGlobal}, 1, g(3, -4), g(3, -4), 5},
		"norm above":      {Clip{1, ByNorm, ScopeGlobal}, 1, g(3, -4), g(.6, -.8), 5},
		"norm just above": {Clip{4, ByNorm, ScopeGlobal}, 1, g(3, -4), g(2.4, -3.2), 5},
		"norm at":         {Clip{5, ByNorm, ScopeGlobal}, 1, g(3, -4), g(3, -4), 5},
		"norm below":      {Clip{9, ByNorm, ScopeGlobal}, 1, g(3, -4), g(3, -4), 5},
		"value":           {Clip{3.5, ByValue, ScopeGlobal}, 1, g(3, -4), g(3, -3.5), 5},
		"then the share":  {Clip{1, ByNorm, ScopeWorker}, .5, g(3, -4), g(.3, -.4), 5},
		"value and share": {Clip{3.5, ByValue, ScopeWorker}, .5, g(3, -4), g(1.5, -1.75), 5},
		"zero":            {Clip{1, ByNorm, ScopeGlobal}, 1, g(0, 0), g(0, 0), 0},
		"not finite":      {Clip{1, ByValue, ScopeWorker}, .5, g(3, inf), g(3, inf), math.Inf(1)},
	} {
		g := dev.Alloc(len(c.g))
		dev.Upload(g, c.g)
		by := c.clip.Args(c.share, 1<<59)
		clipper.Clip(g, &by, nil)
		for i := range g {
			if norm := clipper.Norm(); norm != c.norm || math.Abs(float64(g[i]-c.want[i])) > 1e-6 {
				t.Errorf("%s: %v and norm %v, want %v and %v", name, g, norm, c.want, c.norm)
			}
		}
	}
}
