package model

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"rondo/compute"
	"rondo/compute/cpu"
)

// TestOmega: the gradient of W_hh has that of the regulariser besides its own, with the
// back-propagated gradients as constants, by finite differences. Other gradients are unchanged.
func TestOmega(t *testing.T) {
	const lambda, scale = 0.7, 0.25
	s := compute.RecurrentShape{Cell: compute.RNNTanh, T: 5, B: 3, D: 2, H: 4}
	dev, rng := newDevice(t), rand.New(rand.NewPCG(1, 2))
	random := func(n int) []float32 {
		x := dev.Alloc(n)
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
		return x
	}
	w, x, dy := s.Weights(random), random(s.T*s.B*s.D), random(s.T*s.B*s.H)
	in, dout := s.State(random), s.State(random)
	run := func(k compute.Recurrent) (y []float32, dw compute.RecurrentWeights, dx []float32) {
		defer k.Close()
		y, dw, dx = dev.Alloc(s.T*s.B*s.H), s.Weights(dev.Alloc), dev.Alloc(len(x))
		k.Forward(w, compute.RecurrentInput{X: x}, in, y, s.State(dev.Alloc))
		k.Backward(append([]float32{}, dy...), dout, dw, dx, s.State(dev.Alloc))
		return y, dw, dx
	}
	factor := float32(scale)
	y, plain, dx := run(compute.NewRecurrent(dev, s, false))
	_, with, dx2 := run(newOmega(dev, s, compute.NewRecurrent(dev, s, false), lambda, &factor))

	h := func(t, b, i int) float64 { return float64(y[(t*s.B+b)*s.H+i]) }
	deltas := make([]float64, len(y)) // dE/da
	back := func(W []float64, t, b, j int) (sum float64) {
		for i := range s.H {
			sum += W[i*s.H+j] * deltas[(t*s.B+b)*s.H+i]
		}
		return sum
	}
	W := make([]float64, len(w.HH))
	for i, x := range w.HH {
		W[i] = float64(x)
	}
	for t := s.T - 1; t >= 0; t-- {
		for b := range s.B {
			for i := range s.H {
				d := float64(dy[(t*s.B+b)*s.H+i])
				if t == s.T-1 {
					d += float64(dout.H[b*s.H+i])
				} else {
					d += back(W, t+1, b, i)
				}
				deltas[(t*s.B+b)*s.H+i] = d * (1 - h(t, b, i)*h(t, b, i))
			}
		}
	}
	regulariser := func() (sum float64) {
		for t := 1; t < s.T; t++ {
			for b := range s.B {
				before, after := 0.0, 0.0
				for j := range s.H {
					v := back(W, t, b, j) * (1 - h(t-1, b, j)*h(t-1, b, j))
					d := deltas[(t*s.B+b)*s.H+j]
					before, after = before+d*d, after+v*v
				}
				sum += math.Pow(math.Sqrt(after/before)-1, 2)
			}
		}
		return sum
	}
	for i := range W {
		const step = 1e-5
		W[i] += step
		up := regulariser()
		W[i] -= 2 * step
		want := lambda * scale * (up - regulariser()) / (2 * step)
		W[i] += step
		if got := float64(with.HH[i] - plain.HH[i]); math.Abs(got-want) > 1e-5 {
			t.Errorf("W_hh %d: %v, want %v", i, got, want)
		}
	}
	for i := range dx {
		if dx[i] != dx2[i] {
			t.Fatalf("dx %d: %v and %v", i, dx[i], dx2[i])
		}
	}
	for i := range plain.IH {
		if plain.IH[i] != with.IH[i] {
			t.Fatalf("W_ih %d: %v and %v", i, plain.IH[i], with.IH[i])
		}
	}
}

// omegaConfig is a network with the regulariser.
func omegaConfig() Config {
	return Config{Cell: compute.RNNTanh, Vocab: 5, Hidden: 16, Layers: 2, Embed: 16, Dropout: 0.3,
		Omega: 0.5, Seed: 3}
}

// TestOmegaInModel: a pass has the loss that it has without the regulariser, and only gradients of
// W_hh differ, in proportion to the scale.
func TestOmegaInModel(t *testing.T) {
	difference := map[float32]float64{}
	for _, scale := range []float32{1, 0.5} {
		var grads [][]float32
		var losses []float64
		var views []View
		for _, lambda := range []float64{0, 0.5} {
			c := omegaConfig()
			c.Omega = lambda
			m, err := New(c, newDevice(t))
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			s, err := m.NewSegment(6, 2)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			in := randomInput(rand.New(rand.NewPCG(1, 2)), 6, 2, c.Vocab)
			in.Scale, in.Lanes = scale, []int{0, 1}
			loss, err := s.Run(in)
			if err != nil {
				t.Fatal(err)
			}
			grads, losses, views = append(grads, m.Gradients()), append(losses, loss), m.views
		}
		if losses[0] != losses[1] {
			t.Errorf("losses %v", losses)
		}
		for _, v := range views {
			most := 0.0
			for i, g := range v.of(grads[0]) {
				most = max(most, math.Abs(float64(g-v.of(grads[1])[i])))
			}
			if strings.Contains(v.Name, "weight_hh") != (most > 1e-4) {
				t.Errorf("%s: gradients differ by %v", v.Name, most)
			}
			if v.Name == layerName("weight_hh", 0) {
				difference[scale] = most
			}
		}
	}
	if r := difference[1] / difference[0.5]; math.Abs(r-2) > 1e-3 {
		t.Errorf("twice the scale has %v times the gradient", r)
	}
}

// TestOmegaSize: its memory is counted. What cannot have it is refused.
func TestOmegaSize(t *testing.T) {
	on, c := cpu.Config{Threads: 1}, omegaConfig()
	c.Dropout = 0
	parameters := on.TensorSize(Span(Layout(c)))
	want := parameters.And(parameters).And(c.SegmentSize(on, 12, 4)).Total()
	host := int64(0) // of an omega for each layer
	for k := range c.Layers {
		s, factor := c.layerShape(k, 12, 4), float32(1)
		dev := newDevice(t)
		o := newOmega(dev, s, compute.NewRecurrent(dev, s, false), 1, &factor)
		defer o.Close()
		for _, x := range append(o.host[:], o.rows[0], o.rows[1], make([]float32, s.B*s.H)) {
			host += on.TensorSize(len(x)).Total()
		}
	}
	if got := stepBytes(t, c, compute.FP32, 12, 4, 1) + host; got != want {
		t.Errorf("sizes add up to %d bytes, and it held %d, %d of them Go's", want, got, host)
	}
	for _, change := range []func(*Config){func(c *Config) { c.Cell = compute.GRU },
		func(c *Config) { c.DeepTransition = 1 }, func(c *Config) { c.Recompute = 3 },
		func(c *Config) { c.Omega = -1 }, func(c *Config) { c.Omega = math.NaN() }} {
		c := omegaConfig()
		if change(&c); c.Validate() == nil {
			t.Errorf("%+v is no error", c)
		}
	}
}
