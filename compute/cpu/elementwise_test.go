package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"rondo/compute"
)

// lengths are around the widths of vectors.
var lengths = []int{1, 3, 4, 7, 8, 15, 16, 17, 31, 33, 67, 1000}

func randoms(d *Device, n int, random *rand.Rand) []float32 {
	x := d.Alloc(n)
	for i := range x {
		x[i] = float32(random.NormFloat64())
	}
	return x
}

func TestElementwise(t *testing.T) {
	random := newRandom(t)
	onDevices(t, func(t *testing.T, d *Device) {
		for _, n := range lengths {
			x, y := randoms(d, n, random), randoms(d, n, random)
			x[n/2] = float32(math.NaN())
			wantAdd, wantClamp, wantScale := append([]float32{}, y...),
				append([]float32{}, x...), append([]float32{}, x...)
			refAdd(wantAdd, x)
			refClamp(wantClamp, 0.5)
			refScale(wantScale, 0.3)
			d.Add(y, x)
			same(t, "Add", y, wantAdd)
			d.Upload(y, x)
			d.Clamp(y, 0.5)
			same(t, "Clamp", y, wantClamp)
			d.Scale(x, 0.3)
			same(t, "Scale", x, wantScale)
		}
	})
}

// same wants the same bits, NaN being NaN.
func same(t *testing.T, what string, got, want []float32) {
	t.Helper()
	for i, w := range want {
		if got[i] != w && (got[i] == got[i] || w == w) {
			t.Errorf("%s of %d: [%d] is %v, want %v", what, len(want), i, got[i], w)
		}
	}
}

func TestSumSquares(t *testing.T) {
	random := newRandom(t)
	onDevices(t, func(t *testing.T, d *Device) {
		for _, n := range lengths {
			x := randoms(d, n, random)
			if got, want := d.SumSquares(x), refSumSquares(x); got != want {
				t.Errorf("of %d: %v, want the same bits as %v", n, got, want)
			}
			for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
				x[random.IntN(n)] = float32(bad)
				if got := d.SumSquares(x); got-got == 0 {
					t.Errorf("of %d with %v: %v is finite", n, bad, got)
				}
			}
			for i := range x {
				x[i] = math.MaxFloat32
			}
			if got := d.SumSquares(x); got-got != 0 {
				t.Errorf("of %d times the largest float: %v is not finite", n, got)
			}
		}
	})
}

func TestDropout(t *testing.T) {
	random := newRandom(t)
	onDevices(t, func(t *testing.T, d *Device) {
		for _, p := range []float32{0, 0.3, 0.5, 1} {
			for _, h := range []int{1, 5, 16, 33} {
				const steps = 4
				keys := []uint64{random.Uint64(), random.Uint64(), random.Uint64()}
				x := randoms(d, steps*len(keys)*h, random)
				y := junk(d, len(x))
				d.Dropout(y, x, steps, p, keys)
				for i, v := range x {
					row, want := i/h, float32(0)
					if compute.DropoutKeep(keys[row%len(keys)], row/len(keys)*h+i%h, p) {
						want = v * (1 / (1 - p))
					}
					if y[i] != want {
						t.Fatalf("p %v, h %d: [%d] is %v, want %v", p, h, i, y[i], want)
					}
				}
				d.Dropout(x, x, steps, p, keys)
				same(t, "Dropout in place", x, y)
			}
		}
	})
}

func TestEmbed(t *testing.T) {
	random := newRandom(t)
	onDevices(t, func(t *testing.T, d *Device) {
		const tokens, width = 5, 19
		table, ids := randoms(d, tokens*width, random), []int32{4, 0, 4, 2}
		y := junk(d, len(ids)*width)
		d.Embed(y, table, ids)
		want := append([]float32{}, table...)
		for i, id := range ids {
			same(t, "Embed", y[i*width:(i+1)*width], table[int(id)*width:(int(id)+1)*width])
			refAdd(want[int(id)*width:(int(id)+1)*width], y[i*width:(i+1)*width])
		}
		d.EmbedBackward(table, y, ids)
		same(t, "EmbedBackward", table, want)
		bias := randoms(d, width, random)
		want = append([]float32{}, y...)
		addRow(want, bias)
		d.AddBias(y, bias)
		same(t, "AddBias", y, want)
	})
}

func TestGemm(t *testing.T) {
	random := newRandom(t)
	onDevices(t, func(t *testing.T, d *Device) {
		compared := newComparison(t, d.Precision())
		for trial := range 40 {
			m, n, k := 1+random.IntN(40), 1+random.IntN(40), 1+random.IntN(40)
			a, b, c := randoms(d, m*k, random), randoms(d, k*n, random), randoms(d, m*n, random)
			alpha, beta := float32(random.NormFloat64()), float32(random.NormFloat64())
			if trial%4 == 0 {
				beta, c = 0, junk(d, m*n)
			}
			want := wide(c)
			if beta == 0 {
				clear(want)
			}
			transA, transB := trial%2 == 1, trial%3 == 1
			plainRows[float64](d.Precision()).gemm(transA, transB, m, n, k, float64(alpha),
				wide(a), wide(b), float64(beta), want)
			d.Gemm(transA, transB, m, n, k, alpha, a, b, beta, c)
			compared.tensor(fmt.Sprintf("%dx%dx%d", m, n, k), "Gemm", c, want)
		}
		compared.end()
	})
}

// TestUpdate holds every optimizer against the reference over three updates.
func TestUpdate(t *testing.T) {
	random := newRandom(t)
	onDevices(t, func(t *testing.T, d *Device) {
		for o := compute.SGD; o <= compute.Adagrad; o++ {
			for _, n := range lengths {
				p, g := randoms(d, n, random), randoms(d, n, random)
				s1, s2 := d.Alloc(n), d.Alloc(n)
				wp := append([]float32{}, p...)
				w1, w2 := make([]float32, n), make([]float32, n)
				for step := range 3 {
					u := compute.Update{Optimizer: o, Step: int64(step + 1), LR: 0.1,
						Momentum: 0.9, Beta1: 0.9, Beta2: 0.999, Rho: 0.99, Epsilon: 1e-8,
						WeightDecay: 0.01}
					d.Update(u, p, g, s1, s2)
					refUpdate(u, biasCorrection(u), wp, g, w1, w2)
				}
				close := func(what string, got, want []float32) {
					for i, w := range want {
						bound := 2e-6 * (1 + math.Abs(float64(w)))
						if e := math.Abs(float64(got[i] - w)); !(e <= bound) {
							t.Errorf("optimizer %d of %d: %s[%d] is %v, want %v", o, n, what, i,
								got[i], w)
						}
					}
				}
				close("parameter", p, wp)
				close("slot 1", s1, w1)
				close("slot 2", s2, w2)
			}
		}
	})
}

// TestAdam checks the first steps by hand: with a constant gradient the bias-corrected moments
// are the gradient and its square, so that each step is lr (and AdamW's shrinks by 1 - lr*decay).
func TestAdam(t *testing.T) {
	d := newDevice(t, "", Config{Threads: 1})
	p, g, s1, s2 := d.Alloc(1), d.Alloc(1), d.Alloc(1), d.Alloc(1)
	p[0], g[0] = 1, 0.5
	want := 1.0
	for step := range 5 {
		d.Update(compute.Update{Optimizer: compute.AdamW, Step: int64(step + 1), LR: 0.1,
			Beta1: 0.9, Beta2: 0.999, Epsilon: 1e-8, WeightDecay: 0.1}, p, g, s1, s2)
		want = want*(1-0.1*0.1) - 0.1
		if math.Abs(float64(p[0])-want) > 1e-5 {
			t.Errorf("after step %d: %v, want %v", step+1, p[0], want)
		}
	}
}
