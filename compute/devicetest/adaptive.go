package devicetest

import (
	"fmt"
	"math/rand/v2"

	"rondo/compute"
)

// adaptiveProblem is a compute.Adaptive with all that it reads, in float64.
type adaptiveProblem struct {
	name    string
	n       int
	parts   []compute.Tensor // with offsets, as if others lay between them
	x, w, b []float64
	targets []int32 // some are negative
}

// newAdaptiveProblem draws targets below most.
func newAdaptiveProblem(random *rand.Rand, n, h, v, most int, cutoffs ...int) *adaptiveProblem {
	p := &adaptiveProblem{name: fmt.Sprintf("N %d, H %d, V %d, cutoffs %v", n, h, v, cutoffs), n: n,
		parts: compute.AdaptiveParts(cutoffs, h, v), x: normal(random, n*h, 1),
		targets: ids(random, n, most+1)}
	end := 0
	for i := range p.parts {
		t := &p.parts[i]
		t.Offset, t.Len = end, t.Shape[0]*t.Shape[1]
		end += (t.Len + 15) / 16 * 16
	}
	last := p.parts[len(p.parts)-1]
	p.w = normal(random, last.Offset+last.Len, 1)
	p.b = normal(random, last.Shape[0], 1)
	for i := range p.targets {
		p.targets[i]--
	}
	return p
}

// solve runs the oracle. The gradients of w are those of its parts.
func (p *adaptiveProblem) solve(precision compute.Precision) (loss float64,
	gradients map[string][]float64) {
	t, last := newTape(precision), len(p.parts)-1
	leaf := func(i int) *value {
		part := p.parts[i]
		return given(p.w[part.Offset:][:part.Len], part.Shape[0], part.Shape[1])
	}
	head, H := leaf(last), p.parts[last].Shape[1]
	x, b := given(p.x, p.n, H), given(p.b, 1, len(p.b))
	words := p.parts[last].Shape[0] - last/2
	first := words
	targets := append([]int32(nil), p.targets...)
	gradients = map[string][]float64{}
	for i := last - 2; i >= 0; i -= 2 {
		w, project := leaf(i), leaf(i+1)
		within := make([]int32, p.n)
		for row, target := range p.targets {
			within[row] = -1
			if v := int(target) - first; v >= 0 && v < p.parts[i].Shape[0] {
				within[row], targets[row] = int32(v), int32(words+(last-2-i)/2)
			}
		}
		first += p.parts[i].Shape[0]
		loss += t.crossEntropy(t.product(t.product(x, project), w), within, outputScale, 0)
		gradients[p.parts[i].Name], gradients[p.parts[i+1].Name] = w.g, project.g
	}
	loss += t.crossEntropy(t.add(t.product(x, head), b, 1), targets, outputScale, 0)
	t.back()
	gradients["dx"], gradients["weight"], gradients["db"] = x.g, head.g, b.g
	return loss, gradients
}

// wholeOutputs is a device whose output layers compute all of their rows.
type wholeOutputs struct{ compute.Device }

func (d wholeOutputs) NewOutput(s compute.OutputShape) compute.Output {
	return struct{ compute.Output }{d.Device.NewOutput(s)} // which is no RowLimiter
}

// testAdaptive holds a compute.Adaptive against the oracle, also where it computes all rows of all
// tails.
func testAdaptive(r *rig) {
	compared := NewComparison(r, BoundsOf(r.precision))
	for _, p := range []*adaptiveProblem{
		newAdaptiveProblem(r.random, 1, 1, 2, 2, 1),
		newAdaptiveProblem(r.random, 35, 20, 100, 100, 10),
		newAdaptiveProblem(r.random, 64, 33, 300, 300, 7, 50, 120),
		newAdaptiveProblem(r.random, 40, 16, 90, 30, 12, 31, 60), // no target in two tails
	} {
		loss, want := p.solve(r.precision)
		for _, d := range []compute.Device{r.dev, wholeOutputs{r.dev}} {
			p.compare(r, compared, d, loss, want)
		}
	}
	compared.End()
}

// compare runs the problem twice, so that the second run overwrites what the first has left.
func (p *adaptiveProblem) compare(r *rig, compared *Comparison, d compute.Device, loss float64,
	want map[string][]float64) {
	a := compute.NewAdaptive(d, p.n, p.parts)
	defer a.Close()
	x, w, b := put(d, p.x), put(d, p.w), put(d, p.b)
	dx, dw, db := junk(d, len(x)), junk(d, len(w)), junk(d, len(b))
	targets := make([]int32, p.n)
	a.ForwardBackward(x, w, b, targets, outputScale, dx, dw, db)
	copy(targets, p.targets)
	a.Forward(x, w, b, targets)
	clear(targets) // which are the caller's again
	forward := a.Sum()
	copy(targets, p.targets)
	a.ForwardBackward(x, w, b, targets, outputScale, dx, dw, db)
	clear(targets)
	if forward != a.Sum() {
		r.Errorf("%s: Forward's sum is %v, ForwardBackward's %v", p.name, forward, a.Sum())
	}
	compared.loss(p.name, forward, loss)
	compared.Tensor(p.name, "dx", get(d, dx), want["dx"])
	compared.Tensor(p.name, "db", get(d, db), want["db"])
	all := get(d, dw)
	for _, part := range p.parts {
		compared.Tensor(p.name, part.Name, all[part.Offset:][:part.Len], want[part.Name])
	}
}
