//go:build cuda

package cuda

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"rondo/compute"
)

// outputProblem is an output layer with all that it reads. b may be nil.
type outputProblem struct {
	compute.OutputShape
	x, w, b []float32
	targets []int32
}

func newOutputProblem(s compute.OutputShape, bias bool, random *rand.Rand) *outputProblem {
	p := &outputProblem{s, normals(s.N*s.H, random), normals(s.V*s.H, random),
		normals(s.V, random), make([]int32, s.N)}
	if !bias {
		p.b = nil
	}
	for i := range p.targets {
		p.targets[i] = int32(random.IntN(s.V+1)) - 1
	}
	return p
}

const outputScale = 0.5

// solve computes the loss and dx, dw, db in float64, of operands rounded as the passes do.
func (p *outputProblem) solve(forward, backward operands) (loss float64, gradients [3][]float64) {
	dx, dw, db := make([]float64, len(p.x)), make([]float64, len(p.w)), make([]float64, len(p.b))
	for i, target := range p.targets {
		if target < 0 {
			continue
		}
		logits, sum := make([]float64, p.V), 0.0
		for v := range logits {
			if p.b != nil {
				logits[v] = float64(p.b[v])
			}
			for h := range p.H {
				logits[v] += roundedTo(forward, p.x[i*p.H+h]) * roundedTo(forward, p.w[v*p.H+h])
			}
		}
		largest := slices.Max(logits)
		for _, v := range logits {
			sum += math.Exp(v - largest)
		}
		loss += math.Log(sum) - (logits[target] - largest)
		for v := range logits {
			g := outputScale * math.Exp(logits[v]-largest) / sum
			if v == int(target) {
				g -= outputScale
			}
			if p.b != nil {
				db[v] += g
			}
			g = roundedTo(backward, float32(g))
			for h := range p.H {
				dx[i*p.H+h] += g * roundedTo(backward, p.w[v*p.H+h])
				dw[v*p.H+h] += g * roundedTo(backward, p.x[i*p.H+h])
			}
		}
	}
	return loss, [3][]float64{dx, dw, db}
}

// outputResult is what an output layer gives: the loss of Forward and of ForwardBackward, and dx,
// dw and db.
type outputResult struct {
	losses    [2]float64
	gradients [3][]float32
}

// garbage is n numbers of a device's memory that must be overwritten.
func garbage(d compute.Device, n, offset int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(math.NaN())
	}
	return place(d, x, offset)
}

// run has a layer compute it, on tensors that begin offset elements behind an aligned place.
func (p *outputProblem) run(d *Device, o compute.Output, offset int) (r outputResult) {
	x, w, b := place(d, p.x, offset), place(d, p.w, offset), []float32(nil)
	dx, dw, db := garbage(d, len(p.x), offset), garbage(d, len(p.w), offset), b
	if p.b != nil {
		b, db = place(d, p.b, offset), garbage(d, p.V, offset)
	}
	o.Forward(x, w, b, p.targets)
	r.losses[0] = o.Sum()
	o.ForwardBackward(x, w, b, p.targets, outputScale, dx, dw, db)
	r.losses[1] = o.Sum()
	for i, g := range [][]float32{dx, dw, db} {
		r.gradients[i] = read(d, g)
	}
	return r
}

// wayOf is a way to compute an output layer.
type wayOf struct {
	name string
	rows int
	few  fewTokens
}

// waysOf are all of them: few tokens in one chunk of columns and in several, all rows' logits at
// once, and those of some.
func waysOf(d *Device, s compute.OutputShape) []wayOf {
	all := []wayOf{{"whole", s.N, fewTokens{}}}
	if s.N > 1 {
		all = append(all, wayOf{"chunks", (s.N + 2) / 3, fewTokens{}})
	}
	if few := chooseFew(s, d.queue.info.SharedPerBlock); few.fits() {
		all = append(all, wayOf{"few", s.N, few})
		few.chunk, few.shared = fewStep, fewBytes(s.V, fewStep)
		all = append(all, wayOf{"few in chunks", s.N, few})
	}
	return all
}

// check holds a result against the solution. Rounding a gradient of the logits to fewer bits may
// go the other way than in float64, which is one unit of its last place.
func (p *outputProblem) check(t *testing.T, what string, got outputResult, loss float64,
	gradients [3][]float64, bound float64) {
	t.Helper()
	for _, l := range got.losses {
		if e := math.Abs(l - loss); !(e <= 1e-5*(1+loss)) {
			t.Errorf("%s: loss %v, want %v", what, l, loss)
		}
	}
	for i, name := range []string{"dx", "dw", "db"} {
		size := 0.0
		for _, v := range gradients[i] {
			size = max(size, math.Abs(v))
		}
		for j, v := range gradients[i] {
			if e := math.Abs(float64(got.gradients[i][j]) - v); !(e <= bound*size) {
				t.Fatalf("%s: %s[%d] is %v, want %v", what, name, j, got.gradients[i][j], v)
			}
		}
	}
}

// TestOutput holds every way against float64, in every precision, and wants the same bits again.
// What rounding changes does not depend on the shape.
func TestOutput(t *testing.T) {
	random := rand.New(rand.NewPCG(31, 32))
	bounds := map[compute.Precision]float64{compute.FP32: 1e-5, compute.TF32: 2e-3,
		compute.BF16: 8e-3, compute.FP16: 8e-3}
	var problems []*outputProblem
	for i, s := range []compute.OutputShape{{N: 1, H: 1, V: 1}, {N: 33, H: 31, V: 28},
		{N: 20, H: 70, V: 128}, {N: 12, H: 40, V: 131}, {N: 7, H: 24, V: 300}} {
		problems = append(problems, newOutputProblem(s, i%2 == 1, random))
	}
	for precision, bound := range bounds {
		d := newGPU(t, precision)
		for i, p := range problems {
			if precision != compute.FP32 && i%3 != 1 {
				continue
			}
			loss, gradients := p.solve(d.gemm.forward(), d.gemm.backward())
			for _, way := range waysOf(d, p.OutputShape) {
				what := fmt.Sprintf("%v %+v %s", precision, p.OutputShape, way.name)
				o := newOutput(d, p.OutputShape, way.rows, way.few)
				got := p.run(d, o, i%2)
				p.check(t, what, got, loss, gradients, bound)
				if precision != compute.FP32 {
					o.Close()
					continue
				}
				again := p.run(d, o, i%2)
				if again.losses != got.losses {
					t.Errorf("%s: losses %v, then %v", what, got.losses, again.losses)
				}
				for j, g := range got.gradients {
					wantSame(t, what+", again,", again.gradients[j], g)
				}
				o.Close()
			}
		}
	}
}

// TestOutputHalves has products of cuBLAS share copies of their operands, and wants what they give
// without.
func TestOutputHalves(t *testing.T) {
	d := newGPU(t, compute.BF16)
	s := compute.OutputShape{N: 256, H: 1024, V: 2048}
	if !d.gemm.sharesHalves(s.N, s.V, s.H) {
		t.Skip("this test needs cuBLAS")
	}
	p := newOutputProblem(s, true, rand.New(rand.NewPCG(39, 40)))
	o := newOutput(d, s, s.N, fewTokens{})
	defer o.Close()
	x, w, b := place(d, p.x, 0), place(d, p.w, 0), place(d, p.b, 0)
	var got [2][3][]float32
	for i := range got {
		dx, dw, db := garbage(d, len(x), 0), garbage(d, len(w), 0), garbage(d, s.V, 0)
		o.ForwardBackward(x, w, b, p.targets, outputScale, dx, dw, db)
		got[i] = [3][]float32{read(d, dx), read(d, dw), read(d, db)}
		o.halves = outputHalves{}
	}
	for i, g := range got[1] {
		wantSame(t, "with shared copies", got[0][i], g)
	}
}

// TestOutputLong has rows of logits that just fit in shared memory, and that do not.
func TestOutputLong(t *testing.T) {
	d := newGPU(t, compute.FP32)
	most := (d.queue.info.SharedPerBlock - rowBytes) / 4
	for _, c := range []struct {
		V      int
		cached bool
	}{{most &^ 3, true}, {most&^3 + 4, false}, {most&^3 + 7, false}} {
		s := compute.OutputShape{N: 2, H: 2, V: c.V}
		if _, cached := rowLaunch(s.N, s.V, d.queue.info.SharedPerBlock); cached != c.cached {
			t.Fatalf("rows of %d logits are cached: %t", s.V, cached)
		}
		p := newOutputProblem(s, true, rand.New(rand.NewPCG(33, 34)))
		p.targets = []int32{int32(s.V) - 1, 0}
		loss, gradients := p.solve(operandFP32, operandFP32)
		o := d.NewOutput(s)
		p.check(t, fmt.Sprintf("rows of %d", s.V), p.run(d, o, 0), loss, gradients, 1e-5)
		o.Close()
	}
}

// TestOutputMasked wants no loss and no gradient of rows without a target, not even where their
// logits are infinite: a row that counts beside them is all there is.
func TestOutputMasked(t *testing.T) {
	d := newGPU(t, compute.FP32)
	for _, V := range []int{30, 140} {
		s := compute.OutputShape{N: 11, H: 3, V: V}
		p := &outputProblem{s, make([]float32, s.N*s.H), make([]float32, V*s.H), make([]float32, V),
			make([]int32, s.N)}
		for i := range p.targets {
			p.targets[i], p.x[i*s.H] = -1, 3e38
		}
		for i := range p.w {
			p.w[i] = 2
		}
		for _, way := range waysOf(d, s) {
			o := newOutput(d, s, way.rows, way.few)
			none := p.run(d, o, 0)
			if none.losses != [2]float64{} {
				t.Errorf("%d tokens, %s: losses %v of no target", V, way.name, none.losses)
			}
			for i, g := range none.gradients {
				wantSame(t, fmt.Sprintf("gradient %d of no target", i), g, make([]float32, len(g)))
			}
			one := *p
			one.x, one.targets = slices.Clone(p.x), slices.Clone(p.targets)
			one.targets[s.N-1], one.x[(s.N-1)*s.H] = 2, 0
			got := one.run(d, o, 0)
			if want := math.Log(float64(V)); !(math.Abs(got.losses[1]-want) <= 1e-5) {
				t.Errorf("%d tokens, %s: loss %v of a row of equal logits, want %v", V, way.name,
					got.losses[1], want)
			}
			if g, want := got.gradients[2][2], outputScale*(1/float64(V)-1); !(math.Abs(
				float64(g)-want) <= 1e-6) {
				t.Errorf("%d tokens, %s: the target's bias has gradient %v, want %v", V,
					way.name, g, want)
			}
			o.Close()
		}
	}
}

// TestOutputNaN puts one NaN where it spoils a single logit, or a row of them: it must reach the
// loss and every gradient that depends on it.
func TestOutputNaN(t *testing.T) {
	d, random := newGPU(t, compute.FP32), rand.New(rand.NewPCG(35, 36))
	for _, s := range []compute.OutputShape{{N: 10, H: 5, V: 40}, {N: 5, H: 3, V: 150}} {
		p := newOutputProblem(s, true, random)
		for i := range p.targets {
			p.targets[i] = int32(random.IntN(s.V))
		}
		for _, way := range waysOf(d, s) {
			o := newOutput(d, s, way.rows, way.few)
			for _, from := range [][]float32{p.x, p.w, p.b} {
				spoilt := &from[random.IntN(len(from))]
				was := *spoilt
				*spoilt = float32(math.NaN())
				got := p.run(d, o, 0)
				*spoilt = was
				for _, loss := range got.losses {
					if !math.IsNaN(loss) {
						t.Errorf("%+v %s: loss %v of a NaN", s, way.name, loss)
					}
				}
				for i, g := range got.gradients {
					if !slices.ContainsFunc(g, func(v float32) bool { return v != v }) {
						t.Errorf("%+v %s: gradient %d has no NaN", s, way.name, i)
					}
				}
			}
			o.Close()
		}
	}
}

// TestOutputReplay records a layer, and wants its sum and gradients of targets that came later.
func TestOutputReplay(t *testing.T) {
	d, random := newGPU(t, compute.FP32), rand.New(rand.NewPCG(37, 38))
	for _, s := range []compute.OutputShape{{N: 9, H: 8, V: 20}, {N: 6, H: 8, V: 200}} {
		p := newOutputProblem(s, true, random)
		x, w, b := place(d, p.x, 0), place(d, p.w, 0), place(d, p.b, 0)
		dx, dw, db := garbage(d, len(x), 0), garbage(d, len(w), 0), garbage(d, s.V, 0)
		targets := make([]int32, s.N)
		o := d.NewOutput(s)
		recording, err := d.Record(func() error {
			o.ForwardBackward(x, w, b, targets, outputScale, dx, dw, db)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			for i := range p.targets {
				p.targets[i] = int32(random.IntN(s.V+1)) - 1
			}
			copy(targets, p.targets)
			recording.Replay()
			clear(targets)
			sum := o.Sum()
			got := outputResult{[2]float64{sum, sum}, [3][]float32{read(d, dx), read(d, dw),
				read(d, db)}}
			loss, gradients := p.solve(operandFP32, operandFP32)
			p.check(t, fmt.Sprintf("%+v, replayed", s), got, loss, gradients, 1e-5)
		}
		recording.Close()
		o.Close()
	}
}

// TestOutputRows bounds what is kept.
func TestOutputRows(t *testing.T) {
	for _, c := range []struct{ n, v, want int }{
		{1, 1, 1}, {1120, 28, 1120}, {1120, 50_000, 1120}, {4096, 50_000, 1024}, {3, 1 << 27, 1},
	} {
		if got := outputRows(compute.OutputShape{N: c.n, H: 1, V: c.v}); got != c.want {
			t.Errorf("%d rows of %d logits: %d at once, want %d", c.n, c.v, got, c.want)
		}
	}
}

// TestChooseFew wants one chunk for characters, several where that does not fit, and none where
// tokens or rows are too many.
func TestChooseFew(t *testing.T) {
	for _, c := range []struct {
		s     compute.OutputShape
		chunk int
	}{
		{compute.OutputShape{N: 1120, H: 256, V: 28}, 256},
		{compute.OutputShape{N: 100, H: 1, V: 1}, 16},
		{compute.OutputShape{N: 100, H: 256, V: 128}, 128},
		{compute.OutputShape{N: 1120, H: 256, V: 129}, 0},
		{compute.OutputShape{N: 1 << 20, H: 256, V: 28}, 0},
		{compute.OutputShape{N: 8, H: 1 << 14, V: 2}, 1024},
	} {
		got := chooseFew(c.s, 227<<10)
		if got.chunk != c.chunk || got.shared > fewShared {
			t.Errorf("%+v: %+v, want a chunk of %d", c.s, got, c.chunk)
		}
	}
}
