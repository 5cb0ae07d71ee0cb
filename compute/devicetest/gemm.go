package devicetest

import (
	"fmt"
	"math"
	"math/rand/v2"

	"rondo/compute"
)

// gemmProblem is a product; want is c when it is done, by the oracle.
type gemmProblem struct {
	name           string
	transA, transB bool
	m, n, k        int
	alpha, beta    float64
	a, b, c        []float64
}

// gemmProblems are random sizes around those of tiles, all ways to transpose, and some that are
// long in one dimension. Every fourth adds to nothing.
func gemmProblems(random *rand.Rand, trials int) []gemmProblem {
	shapes := [][3]int{{1, 1, 1}, {133, 34, 217}, {4, 283, 130}, {70, 249, 31}, {5, 7, 1100},
		{300, 3, 5}, {129, 130, 65}}
	for range trials {
		shapes = append(shapes, [3]int{1 + random.IntN(80), 1 + random.IntN(80),
			1 + random.IntN(80)})
	}
	var all []gemmProblem
	for i, s := range shapes {
		for trans := range 4 {
			p := gemmProblem{transA: trans&1 != 0, transB: trans&2 != 0, m: s[0], n: s[1], k: s[2],
				alpha: normal(random, 1, 1)[0], beta: normal(random, 1, 1)[0]}
			if (i+trans)%4 == 0 {
				p.beta = 0
			}
			p.a, p.b, p.c = normal(random, p.m*p.k, 1), normal(random, p.k*p.n, 1),
				normal(random, p.m*p.n, 1)
			p.name = fmt.Sprintf("%dx%dx%d transposed %t %t beta %.2g", p.m, p.n, p.k, p.transA,
				p.transB, p.beta)
			all = append(all, p)
		}
	}
	return all
}

// solve is the definition.
func (p gemmProblem) solve(precision compute.Precision) []float64 {
	round := rounding(precision, false)
	a, b, c := rounded(p.a, round), rounded(p.b, round), make([]float64, len(p.c))
	for i := range p.m {
		for j := range p.n {
			sum := 0.0
			for q := range p.k {
				x, y := i*p.k+q, q*p.n+j
				if p.transA {
					x = q*p.m + i
				}
				if p.transB {
					y = j*p.k + q
				}
				sum += a[x] * b[y]
			}
			c[i*p.n+j] = p.alpha * sum
			if p.beta != 0 {
				c[i*p.n+j] += p.beta * p.c[i*p.n+j]
			}
		}
	}
	return c
}

func (p gemmProblem) run(dev compute.Device) []Result {
	c := put(dev, p.c)
	if p.beta == 0 {
		c = junk(dev, len(p.c))
	}
	dev.Gemm(p.transA, p.transB, p.m, p.n, p.k, float32(p.alpha), put(dev, p.a), put(dev, p.b),
		float32(p.beta), c)
	all := results{dev: dev, problem: p.name}
	all.add("c", c)
	return all.all
}

func testGemm(r *rig) {
	compared := NewComparison(r, BoundsOf(r.precision))
	for _, p := range gemmProblems(r.random, r.Trials) {
		compared.Tensor(p.name, "c", p.run(r.dev)[0].Values, p.solve(r.precision))
	}
	compared.End()
}

// testGemmOverwrites: with beta zero the contents of c have no effect, and without terms c is
// scaled.
func testGemmOverwrites(r *rig) {
	d := r.dev
	a, b, c := put(d, []float64{2, 3}), put(d, []float64{5, 7}), junk(d, 1)
	want := func(what string, want float32) {
		r.Helper()
		if got := get(d, c)[0]; got != want {
			r.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	d.Gemm(false, false, 1, 1, 2, 1, a, b, 0, c)
	want("over NaN", 31)
	d.Gemm(false, false, 1, 1, 0, 1, nil, nil, 2, c)
	want("no terms, and twice 31", 62)
	d.Upload(c, []float32{float32(math.NaN())})
	d.Gemm(false, false, 1, 1, 0, 1, nil, nil, 0, c)
	want("no terms over NaN", 0)
	d.Gemm(false, false, 0, 0, 3, 1, nil, nil, 0, nil)
}
