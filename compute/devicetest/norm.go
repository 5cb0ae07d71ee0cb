package devicetest

import (
	"fmt"
	"math"
	"math/rand/v2"

	"rondo/compute"
)

// normProblem is a layer normalisation and the gradient of its result.
type normProblem struct {
	rows        int
	x, w, b, dy []float64
}

// normProblems have widths around those of vectors, and rows for one thread and for several. Their
// means are of the size of the deviations; one row is constant.
func normProblems(random *rand.Rand) []*normProblem {
	var all []*normProblem
	for _, s := range [][2]int{{1, 1}, {3, 2}, {7, 15}, {5, 33}, {2, 64}, {40, 67}, {130, 16},
		{300, 130}, {1100, 128}} {
		p := &normProblem{rows: s[0], x: normal(random, s[0]*s[1], 1), w: normal(random, s[1], 1),
			b: normal(random, s[1], 1), dy: normal(random, s[0]*s[1], 1)}
		for i := range p.x {
			p.x[i] = float64(float32(p.x[i] + 1.5))
			if i < s[1] {
				p.x[i] = 0.75
			}
		}
		all = append(all, p)
	}
	return all
}

// solve is the definition in float64, and its gradients. terms are the largest terms of each row's
// dx, to which its rounding errors are relative.
func (p *normProblem) solve() (results map[string][]float64, terms []float64) {
	W := len(p.w)
	y, dx := make([]float64, len(p.x)), make([]float64, len(p.x))
	dw, db, stats := make([]float64, W), make([]float64, W), make([]float64, 2*p.rows)
	for r := range p.rows {
		x, dy, n := p.x[r*W:][:W], p.dy[r*W:][:W], float64(W)
		mean, variance := 0.0, 0.0
		for _, v := range x {
			mean += v / n
		}
		for _, v := range x {
			variance += (v - mean) * (v - mean) / n
		}
		factor := 1 / math.Sqrt(variance+compute.LayerNormEpsilon)
		stats[2*r], stats[2*r+1] = mean, factor
		sum, product, largest := 0.0, 0.0, 0.0
		for j, v := range x {
			z := (v - mean) * factor
			y[r*W+j] = z*p.w[j] + p.b[j]
			dw[j] += dy[j] * z
			db[j] += dy[j]
			sum += dy[j] * p.w[j] / n
			product += dy[j] * p.w[j] * z / n
			largest = math.Max(largest, math.Abs(dy[j]*p.w[j]*factor))
		}
		terms = append(terms, largest)
		for j, v := range x {
			dx[r*W+j] = factor * (dy[j]*p.w[j] - sum - (v-mean)*factor*product)
		}
	}
	return map[string][]float64{"y": y, "stats": stats, "dx": dx, "dw": dw, "db": db}, terms
}

// run returns the device's results, with y in x's memory and dx in dy's, or each in its own.
func (p *normProblem) run(dev compute.Device, inPlace bool) map[string][]float32 {
	n := compute.LayerNorm{X: put(dev, p.x), Weight: put(dev, p.w), Bias: put(dev, p.b),
		Stats: junk(dev, 2*p.rows), Y: junk(dev, len(p.x))}
	dy, dx := put(dev, p.dy), junk(dev, len(p.x))
	dw, db := junk(dev, len(p.w)), junk(dev, len(p.w))
	dev.LayerNorm(n)
	if inPlace {
		dx = dy
	}
	dev.LayerNormBackward(n, dy, dx, dw, db)
	got := map[string][]float32{"stats": get(dev, n.Stats), "dx": get(dev, dx),
		"dw": get(dev, dw), "db": get(dev, db)}
	if inPlace {
		n.Y, n.Stats = n.X, nil
		dev.LayerNorm(n)
	}
	got["y"] = get(dev, n.Y)
	return got
}

// testLayerNorm allows a relative error of 1e-5 of each tensor's largest element, since dw and db
// are sums of up to 1100 products; of dx, of the row's largest term.
func testLayerNorm(r *rig) {
	for _, p := range normProblems(r.random) {
		want, terms := p.solve()
		for _, inPlace := range []bool{false, true} {
			got := p.run(r.dev, inPlace)
			for name, want := range want {
				size := 1e-3
				for _, v := range want {
					size = math.Max(size, math.Abs(v))
				}
				for i, v := range want {
					if name == "dx" {
						size = terms[i/len(p.w)]
					}
					if e := math.Abs(float64(got[name][i]) - v); !(e <= 1e-5*size) {
						r.Fatalf("%v: %s[%d] is %v, want %v", p, name, i, got[name][i], v)
					}
				}
			}
		}
	}
}

// normShapes are layer normalisations that do not fit.
func (r *rig) normShapes() map[string]func() {
	all := map[string]func(){}
	for i, name := range []string{"x", "weight", "bias", "stats", "y", "dy", "dx", "dw", "db",
		"width"} {
		all["a layer normalisation's "+name] = func() {
			x := func(n int) []float32 { return r.dev.Alloc(n) }
			n := compute.LayerNorm{X: x(6), Weight: x(3), Bias: x(3), Stats: x(4), Y: x(6)}
			dy, dx, dw, db := x(6), x(6), x(3), x(3)
			if name == "width" {
				n.Weight, n.Bias = nil, nil
			} else {
				to := []*[]float32{&n.X, &n.Weight, &n.Bias, &n.Stats, &n.Y, &dy, &dx, &dw, &db}[i]
				*to = (*to)[1:]
			}
			r.dev.LayerNormBackward(n, dy, dx, dw, db)
		}
	}
	return all
}

// String describes the problem.
func (p *normProblem) String() string { return fmt.Sprintf("%d rows of %d", p.rows, len(p.w)) }
