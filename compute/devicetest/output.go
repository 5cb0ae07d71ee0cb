package devicetest

import (
	"fmt"
	"math"
	"math/rand/v2"

	"rondo/compute"
)

// outputProblem is an output layer with all that it reads, in float64.
type outputProblem struct {
	name    string
	shape   compute.OutputShape
	x, w, b []float64 // b is nil where there is no bias
	targets []int32   // some are negative
}

// outputScale is a power of two, so that it does not matter where it is multiplied with.
const outputScale = 0.5

func newOutputProblem(s compute.OutputShape, bias bool, random *rand.Rand) *outputProblem {
	p := &outputProblem{fmt.Sprintf("%+v bias=%t", s, bias), s, normal(random, s.N*s.H, 1),
		normal(random, s.V*s.H, 1), nil, ids(random, s.N, s.V+1)}
	if bias {
		p.b = normal(random, s.V, 1)
	}
	for i := range p.targets {
		p.targets[i]--
	}
	return p
}

// outputProblems are random shapes, with and without a bias, some of more tokens than a block of
// threads has, and those given.
func outputProblems(random *rand.Rand, trials int,
	given []compute.OutputShape) []*outputProblem {
	shapes := append([]compute.OutputShape{{N: 1, H: 1, V: 1}, {N: 3, H: 20, V: 1031},
		{N: 150, H: 65, V: 530}}, given...)
	for trial := range trials {
		s := compute.OutputShape{N: 1 + random.IntN(67), H: 1 + random.IntN(67),
			V: 1 + random.IntN(67)}
		if trial%3 == 2 {
			s.V = 1 + random.IntN(300)
		}
		shapes = append(shapes, s)
	}
	var all []*outputProblem
	for i, s := range shapes {
		if i%2 == 1 { // also every third, which have no bias
			s.Smoothing = 0.25
		}
		all = append(all, newOutputProblem(s, i%3 != 0, random))
	}
	return all
}

// solve runs the oracle of ForwardBackward, and with smoothing 0 that of Forward. The names of the
// tensors are those of run.
func (p *outputProblem) solve(precision compute.Precision, smoothing float32) (loss float64,
	gradients map[string][]float64) {
	s, t := p.shape, newTape(precision)
	x, w, b := given(p.x, s.N, s.H), given(p.w, s.V, s.H), given(p.b, 1, s.V)
	logits := t.product(x, w)
	if p.b != nil {
		logits = t.add(logits, b, 1)
	}
	loss = t.crossEntropy(logits, p.targets, outputScale, float64(smoothing))
	t.back()
	return loss, map[string][]float64{"dx": x.g, "dw": w.g, "db": b.g}
}

// run returns the gradients, and the losses of Forward and of ForwardBackward.
func (p *outputProblem) run(dev compute.Device) (gradients []Result, losses [2]float64) {
	o := dev.NewOutput(p.shape)
	defer o.Close()
	x, w, b := put(dev, p.x), put(dev, p.w), put(dev, p.b)
	dx, dw, db := junk(dev, len(x)), junk(dev, len(w)), junk(dev, len(b))
	c := results{dev: dev, problem: p.name}
	targets := append([]int32(nil), p.targets...)
	o.Forward(x, w, b, targets)
	clear(targets) // which are the caller's again
	losses[0] = o.Sum()
	copy(targets, p.targets)
	o.ForwardBackward(x, w, b, targets, outputScale, dx, dw, db)
	clear(targets)
	losses[1] = o.Sum()
	c.add("dx", dx)
	c.add("dw", dw)
	if b != nil {
		c.add("db", db)
	}
	c.all = append(c.all, Result{p.name, "losses",
		[]float32{float32(losses[0]), float32(losses[1])}})
	return c.all, losses
}

// testOutput holds the output layer against the oracle.
func testOutput(r *rig) {
	compared := NewComparison(r, BoundsOf(r.precision))
	for _, p := range outputProblems(r.random, r.Trials, r.Outputs) {
		plain, _ := p.solve(r.precision, 0)
		loss, want := p.solve(r.precision, p.shape.Smoothing)
		gradients, losses := p.run(r.dev)
		if losses[0] != losses[1] && p.shape.Smoothing == 0 {
			r.Errorf("%s: Forward's sum is %v, ForwardBackward's %v", p.name, losses[0], losses[1])
		}
		compared.loss(p.name, losses[0], plain)
		compared.loss(p.name, losses[1], loss)
		for _, got := range gradients {
			if got.Tensor != "losses" {
				compared.Tensor(p.name, got.Tensor, got.Values, want[got.Tensor])
			}
		}
	}
	compared.End()
}

// testMasked: rows without a target have no loss and no gradient, even if their logits are
// infinite. Only the one row with a target counts.
func testMasked(r *rig) {
	const n, h, v = 35, 3, 300
	host, two, targets := make([]float32, n*h), make([]float32, v*h), make([]int32, n)
	for i := range targets {
		targets[i], host[i*h] = -1, 3e38
	}
	for i := range two {
		two[i] = 2
	}
	d := r.dev
	x, w, b := upload(d, host), upload(d, two), d.Alloc(v)
	dx, dw, db := junk(d, n*h), junk(d, v*h), junk(d, v)
	o := d.NewOutput(compute.OutputShape{N: n, H: h, V: v})
	defer o.Close()
	o.ForwardBackward(x, w, b, targets, 1, dx, dw, db)
	if loss := o.Sum(); loss != 0 {
		r.Errorf("loss %v of no target", loss)
	}
	for i, g := range [][]float32{dx, dw, db} {
		if s := d.SumSquares(g); s != 0 {
			r.Errorf("squared gradient %d is %v of no target", i, s)
		}
	}
	targets[n-1], host[(n-1)*h] = 2, 0
	d.Upload(x, host)
	o.ForwardBackward(x, w, b, targets, 1, dx, dw, db)
	if loss, want := o.Sum(), math.Log(v); !(math.Abs(loss-want) <= 1e-5) {
		r.Errorf("loss %v of a row of equal logits, want %v", loss, want)
	}
	if got, want := get(d, db)[2], 1/float32(v)-1; !(math.Abs(float64(got-want)) <= 1e-6) {
		r.Errorf("the target's bias has gradient %v, want %v", got, want)
	}
}

// testOutputNaN puts one NaN where it spoils a single logit, or a row of them: it must reach the
// loss and every gradient that depends on it.
func testOutputNaN(r *rig) {
	p := newOutputProblem(compute.OutputShape{N: 40, H: 7, V: 600}, true, r.random)
	p.targets = ids(r.random, p.shape.N, p.shape.V)
	for of, x := range map[string][]float64{"x": p.x, "w": p.w, "b": p.b} {
		spoilt := &x[r.random.IntN(len(x))]
		was := *spoilt
		*spoilt = math.NaN()
		gradients, losses := p.run(r.dev)
		*spoilt = was
		for _, loss := range losses {
			if !math.IsNaN(loss) {
				r.Errorf("loss %v of a NaN in %s", loss, of)
			}
		}
		for _, g := range gradients {
			if finite(g.Values) {
				r.Errorf("%s is finite with a NaN in %s", g.Tensor, of)
			}
		}
	}
}
