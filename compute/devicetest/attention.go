package devicetest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"rondo/compute"
)

// attentionProblem is an attention and the gradient of its result.
type attentionProblem struct {
	shape       compute.Attention // without tensors
	q, k, v, dy []float64
}

func newAttentionProblem(T, S, H, W int, lengths []int32, random *rand.Rand) *attentionProblem {
	B := len(lengths)
	return &attentionProblem{compute.Attention{T: T, S: S, B: B, H: H, W: W, Lengths: lengths},
		normal(random, T*B*H, 1), normal(random, S*B*H, 1), normal(random, S*B*W, 1),
		normal(random, T*B*W, 1)}
}

// attentionProblems have lengths from none to all steps, and widths around those of vectors. One is
// long enough for several threads.
func attentionProblems(random *rand.Rand) []*attentionProblem {
	var all []*attentionProblem
	for _, s := range []struct{ T, S, B, H, W int }{{1, 1, 1, 1, 1}, {3, 2, 2, 5, 4},
		{1, 7, 9, 16, 32}, {12, 5, 5, 33, 17}, {4, 40, 3, 67, 130}, {20, 35, 21, 26, 52}} {
		lengths := ids(random, s.B, s.S+1)
		lengths[0] = int32(s.S)
		if s.B > 1 {
			lengths[1] = 0
		}
		all = append(all, newAttentionProblem(s.T, s.S, s.H, s.W, lengths, random))
	}
	return all
}

// solve is the definition in float64, and its gradients.
func (p *attentionProblem) solve() map[string][]float64 {
	a := p.shape
	weights, y := make([]float64, a.B*a.T*a.S), make([]float64, len(p.dy))
	dq, dk, dv := make([]float64, len(p.q)), make([]float64, len(p.k)), make([]float64, len(p.v))
	for b, length := range a.Lengths {
		for t := range a.T {
			row := t*a.B + b
			w, sum := weights[(b*a.T+t)*a.S:][:length], 0.0
			for s := range w {
				w[s] = math.Exp(inner(p.q[row*a.H:][:a.H], p.k[(s*a.B+b)*a.H:][:a.H]))
				sum += w[s]
			}
			dw, mean := make([]float64, length), 0.0
			for s := range w {
				w[s] /= sum
				dw[s] = inner(p.dy[row*a.W:][:a.W], p.v[(s*a.B+b)*a.W:][:a.W])
				mean += w[s] * dw[s]
			}
			for s := range w {
				at := s*a.B + b
				for j := range a.W {
					y[row*a.W+j] += w[s] * p.v[at*a.W+j]
					dv[at*a.W+j] += w[s] * p.dy[row*a.W+j]
				}
				for j := range a.H {
					dq[row*a.H+j] += w[s] * (dw[s] - mean) * p.k[at*a.H+j]
					dk[at*a.H+j] += w[s] * (dw[s] - mean) * p.q[row*a.H+j]
				}
			}
		}
	}
	return map[string][]float64{"weights": weights, "y": y, "dq": dq, "dk": dk, "dv": dv}
}

// run returns the device's results.
func (p *attentionProblem) run(dev compute.Device) map[string][]float32 {
	a := p.shape
	a.Lengths = slices.Clone(a.Lengths)
	a.Q, a.K, a.V = put(dev, p.q), put(dev, p.k), put(dev, p.v)
	a.Weights, a.Y = junk(dev, a.B*a.T*a.S), junk(dev, len(p.dy))
	dq, dk, dv := junk(dev, len(p.q)), junk(dev, len(p.k)), junk(dev, len(p.v))
	dev.Attend(a)
	clear(a.Lengths) // which are the caller's again
	weights := get(dev, a.Weights)
	copy(a.Lengths, p.shape.Lengths)
	dev.AttendBackward(a, put(dev, p.dy), dq, dk, dv)
	return map[string][]float32{"weights": weights, "y": get(dev, a.Y), "dq": get(dev, dq),
		"dk": get(dev, dk), "dv": get(dev, dv)}
}

// testAttention allows a relative error of 1e-5 of each tensor's largest element. A score is a sum
// of up to 67 products, and its rounding becomes a relative error of the weight.
func testAttention(r *rig) {
	for _, p := range attentionProblems(r.random) {
		got := p.run(r.dev)
		for name, want := range p.solve() {
			size := 1e-3
			for _, v := range want {
				size = math.Max(size, math.Abs(v))
			}
			for i, v := range want {
				e := math.Abs(float64(got[name][i]) - v)
				if !(e <= 1e-5*size) {
					r.Fatalf("%v: %s[%d] is %v, want %v", p, name, i, got[name][i], v)
				}
			}
		}
	}
}

// testAttentionNaN wants NaN of a key in every weight of its lane, and none from behind a length.
func testAttentionNaN(r *rig) {
	p := newAttentionProblem(2, 3, 4, 5, []int32{2, 2}, r.random)
	p.k[0], p.k[2*2*4] = math.NaN(), math.NaN() // lane 0: of the first step, and of the third
	p.k[2*2*4+4], p.v[2*2*5+5] = math.NaN(), math.NaN()
	got := p.run(r.dev)
	for i, v := range got["y"] {
		if isNaN := v != v; isNaN != (i/5%2 == 0) {
			r.Errorf("y[%d] is %v", i, v)
		}
	}
	for i, v := range got["weights"] {
		if i%3 == 2 && v != 0 {
			r.Errorf("the weight %d, behind its lane's length, is %v", i, v)
		}
	}
}

// attentionShapes are attentions that do not fit.
func (r *rig) attentionShapes() map[string]func() {
	attend := func(change func(a *compute.Attention)) func() {
		return func() {
			a := compute.Attention{T: 2, S: 3, B: 1, H: 4, W: 5, Lengths: []int32{3},
				Q: r.dev.Alloc(8), K: r.dev.Alloc(12), V: r.dev.Alloc(15), Y: r.dev.Alloc(10),
				Weights: r.dev.Alloc(6)}
			change(&a)
			r.dev.Attend(a)
		}
	}
	all := map[string]func(){
		"an attention's steps":   attend(func(a *compute.Attention) { a.S = 0 }),
		"an attention's length":  attend(func(a *compute.Attention) { a.Lengths[0] = 4 }),
		"an attention's lengths": attend(func(a *compute.Attention) { a.Lengths = nil }),
	}
	for i, name := range []string{"queries", "keys", "values", "weights", "results"} {
		all["an attention's "+name] = attend(func(a *compute.Attention) {
			x := []*[]float32{&a.Q, &a.K, &a.V, &a.Weights, &a.Y}[i]
			*x = (*x)[1:]
		})
	}
	return all
}

// String describes the problem.
func (p *attentionProblem) String() string {
	a := p.shape
	return fmt.Sprintf("T %d, S %d, B %d, H %d, W %d", a.T, a.S, a.B, a.H, a.W)
}

// testTanh allows a relative error of 1e-6 of tanh, and of its derivative times a gradient.
func testTanh(r *rig) {
	for _, n := range []int{0, 1, 33, 1<<17 + 77} {
		x, dy := normal(r.random, n, 2), normal(r.random, n, 1)
		y, d := put(r.dev, x), put(r.dev, dy)
		r.dev.Tanh(y)
		r.dev.TanhBackward(d, y)
		got, derivative := get(r.dev, y), get(r.dev, d)
		for i := range x {
			want := math.Tanh(x[i])
			if e := math.Abs(float64(got[i]) - want); !(e <= 1e-6*math.Abs(want)) {
				r.Fatalf("tanh(%v) is %v, want %v", x[i], got[i], want)
			}
			want = dy[i] * (1 - want*want)
			if e := math.Abs(float64(derivative[i]) - want); !(e <= 1e-6*math.Abs(dy[i])) {
				r.Fatalf("%v times the derivative at %v is %v, want %v", dy[i], x[i],
					derivative[i], want)
			}
		}
	}
}

// inner is the inner product.
func inner(x, y []float64) float64 {
	sum := 0.0
	for i, v := range x {
		sum += v * y[i]
	}
	return sum
}
