package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"rondo/compute"
	"rondo/compute/devicetest"
)

// headCase is an output layer and how many rows of logits it keeps; 0: it makes them again.
type headCase struct {
	outputCase
	keep int
}

func (c headCase) run(d *Device) (losses [2]float64, gradients []named) {
	kept := c.outputCase
	kept.rows = c.keep
	return kept.run(d)
}

// headCases are vocabularies of one strip of tokens and of several, whole and not, each with all
// logits kept, with some, in chunks, and with none. They hold logits of many sizes: those of the
// second strip are far above those of the first, and the third's are far below.
func headCases(random *rand.Rand) []headCase {
	var all []headCase
	for i, s := range []compute.OutputShape{
		{N: 1, H: 1, V: 1}, {N: 5, H: 3, V: 33}, {N: 67, H: 33, V: 256}, {N: 33, H: 67, V: 257},
		{N: 45, H: 40, V: 700}, {N: 150, H: 65, V: 530}, {N: 40, H: 33, V: 530, Smoothing: 0.1},
		{N: 19, H: 20, V: 100, Smoothing: 0.5},
	} {
		c := newOutputCase(s, s.N, i%2 == 0, random)
		for j := range c.w {
			switch strip := j / s.H / 256; {
			case strip == 1 && i == 4:
				c.w[j] *= 8
			case strip == 2 && i == 4:
				c.w[j] *= 1e-3
			}
		}
		for _, keep := range []int{s.N, (s.N + 2) / 3, 0} {
			c.name = fmt.Sprintf("%+v keep=%d", s, keep)
			all = append(all, headCase{c, keep})
		}
	}
	return all
}

// TestHead holds the output layer against the reference, whatever it keeps.
func TestHead(t *testing.T) { checkOutputs(t, headCases(newRandom(t))) }

// TestHeadThreads wants the same bits from 1 to 4 threads, whatever is kept.
func TestHeadThreads(t *testing.T) {
	all := headCases(newRandom(t))
	for _, p := range precisions {
		for _, isa := range isas(p) {
			losses, gradients := make([][2]float64, len(all)), make([][]named, len(all))
			for threads := 1; threads <= 4; threads++ {
				d := newDevice(t, isa, Config{Threads: threads, Precision: p})
				for i, c := range all {
					sums, tensors := c.run(d)
					if threads == 1 {
						losses[i], gradients[i] = sums, tensors
						continue
					}
					name := fmt.Sprintf("%s %s %s threads=%d", p, isa, c.name, threads)
					if sums != losses[i] {
						t.Errorf("%s: losses %v, want the bits of %v", name, sums, losses[i])
					}
					for j, g := range tensors {
						devicetest.SameBits(t, name+" "+g.name, g.values, gradients[i][j].values)
					}
				}
			}
		}
	}
}

// TestHeadMasked wants no loss and no gradient of rows without a target, not even where logits are
// infinite: a row that counts beside them is all there is.
func TestHeadMasked(t *testing.T) {
	onDevices(t, func(t *testing.T, d *Device) {
		const n, h, v = 35, 3, 300
		for _, keep := range []int{n, 20, 0} {
			x, w, b := d.Alloc(n*h), d.Alloc(v*h), d.Alloc(v)
			dx, dw, db := junk(d, n*h), junk(d, v*h), junk(d, v)
			targets := make([]int32, n)
			for i := range targets {
				targets[i] = -1
				x[i*h] = 3e38
			}
			for i := range w {
				w[i] = 2
			}
			o := d.newOutput(compute.OutputShape{N: n, H: h, V: v}, keep)
			o.ForwardBackward(x, w, b, targets, 1, dx, dw, db)
			if loss := o.Sum(); loss != 0 {
				t.Errorf("keep %d: loss %v of no target", keep, loss)
			}
			for i, g := range [][]float32{dx, dw, db} {
				if s := d.SumSquares(g); s != 0 {
					t.Errorf("keep %d: squared gradient %d is %v of no target", keep, i, s)
				}
			}
			targets[n-1], x[(n-1)*h] = 2, 0
			o.ForwardBackward(x, w, b, targets, 1, dx, dw, db)
			loss := o.Sum()
			if want := math.Log(v); !(math.Abs(loss-want) <= 1e-5) {
				t.Errorf("keep %d: loss %v of a row of equal logits, want %v", keep, loss, want)
			}
			if want := 1/float32(v) - 1; !(math.Abs(float64(db[2]-want)) <= 1e-6) {
				t.Errorf("keep %d: the target's bias has gradient %v, want %v", keep, db[2], want)
			}
			o.Close()
		}
	})
}

// TestHeadNaN puts one NaN where it spoils a single logit, or a row of them: it must reach the loss
// and every gradient that depends on it.
func TestHeadNaN(t *testing.T) {
	random := newRandom(t)
	onDevices(t, func(t *testing.T, d *Device) {
		c := newOutputCase(compute.OutputShape{N: 40, H: 7, V: 600}, 0, true, random)
		for i := range c.targets {
			c.targets[i] = int32(random.IntN(c.shape.V))
		}
		for _, keep := range []int{c.shape.N, 9, 0} {
			for _, at := range [][]float64{c.x, c.w, c.b} {
				spoilt := &at[random.IntN(len(at))]
				was := *spoilt
				*spoilt = math.NaN()
				losses, gradients := headCase{c, keep}.run(d)
				*spoilt = was
				for _, loss := range losses {
					if !math.IsNaN(loss) {
						t.Errorf("keep %d: loss %v of a NaN", keep, loss)
					}
				}
				for _, g := range gradients {
					if s := d.SumSquares(g.values); !math.IsNaN(s) {
						t.Errorf("keep %d: squared %s %v of a NaN", keep, g.name, s)
					}
				}
			}
		}
	})
}

// TestOutputRows bounds what is kept: all rows where they fit, else chunks that are worth a pass
// over the weights, else none.
func TestOutputRows(t *testing.T) {
	for _, c := range []struct{ n, v, want int }{
		{1, 1, 1}, {1120, 28, 1120}, {1120, 10_000, 1120}, {4096, 10_000, 1366},
		{1120, 50_000, 280}, {1120, 250_000, 0}, {60, 250_000, 60}, {1, 1 << 25, 0},
	} {
		got := outputRows(compute.OutputShape{N: c.n, H: 1, V: c.v})
		if got != c.want || got*c.v > maxLogits {
			t.Errorf("%d rows of %d tokens: %d rows kept, want %d", c.n, c.v, got, c.want)
		}
	}
}
