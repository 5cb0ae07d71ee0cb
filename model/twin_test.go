package model

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"rondo/compute"
)

// twin is the whole model in float64, one number at a time, straight from the equations. Finite
// differences are computed from it.
type twin struct {
	c                Config
	view             func(name string) []float64 // of flat
	flat             []float64
	layers           []twinLayer
	norms            [][2][]float64 // weight and bias
	table, proj      []float64      // views of flat, as are the slices below
	outputs, biasOut []float64
	penalty          *float64 // of the last training pass: what its objective adds to the loss
}

type twinLayer struct{ ih, hh, biasIH, biasHH, peephole []float64 }

// newTwin returns a twin with the model's parameters.
func newTwin(m *Model) twin {
	w := twin{c: m.config, penalty: new(float64)}
	for _, x := range download(m, m.params) {
		w.flat = append(w.flat, float64(x))
	}
	view := func(name string) []float64 {
		v := find(m.views, name)
		return w.flat[v.Offset : v.Offset+v.Len]
	}
	w.view = view
	for k := range w.c.Layers {
		l := twinLayer{ih: view(layerName("weight_ih", k)), biasIH: view(layerName("bias_ih", k))}
		if w.c.Cell.HiddenGates() > 0 {
			l.hh, l.biasHH = view(layerName("weight_hh", k)), view(layerName("bias_hh", k))
		}
		if w.c.Cell.Peepholes() > 0 {
			l.peephole = view(layerName(w.c.Cell.Elementwise(), k))
		}
		w.layers = append(w.layers, l)
		if w.c.LayerNorm {
			w.norms = append(w.norms, [2][]float64{view(fmt.Sprintf("norm.%d.weight", k)),
				view(fmt.Sprintf("norm.%d.bias", k))})
		}
	}
	if w.c.Embed > 0 {
		w.table = view(embeddingWeight)
	}
	if w.c.projects() {
		w.proj = view(projectionWeight)
	}
	w.outputs, w.biasOut = view(w.c.outputWeights()), view(outputBias)
	return w
}

// row is the sum over j of W[row, j] x[j].
func row(w []float64, row int, x []float64) float64 {
	sum := 0.0
	for j, v := range x {
		sum += w[row*len(x)+j] * v
	}
	return sum
}

// deep is what a perceptron makes of x. format takes a layer's number and the tensor's name.
func (w twin) deep(format string, layers int, x []float64) []float64 {
	for i := range layers {
		weight, y := w.view(fmt.Sprintf(format, i, "weight")), make([]float64, w.c.Hidden)
		for j, b := range w.view(fmt.Sprintf(format, i, "bias")) {
			y[j] = math.Tanh(row(weight, j, x) + b)
		}
		x = y
	}
	return x
}

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// step is one step of one lane in recurrent layer k. It returns the new h and c.
func (w twin) step(k int, x, h, c []float64) (h2, c2 []float64) {
	H, l := w.c.Hidden, w.layers[k]
	ih := func(gate, j int) float64 {
		r := gate*H + j
		return row(l.ih, r, x) + l.biasIH[r]
	}
	hhOf := func(gate, j int, h []float64) float64 {
		r := gate*H + j
		return row(l.hh, r, h) + l.biasHH[r]
	}
	hh := func(gate, j int) float64 { return hhOf(gate, j, h) }
	h2, c2 = make([]float64, H), make([]float64, H)
	var rh []float64 // r ⊙ h
	if w.c.Cell.ResetsBefore() {
		for j := range H {
			rh = append(rh, sigmoid(ih(0, j)+hh(0, j))*h[j])
		}
	}
	for j := range H {
		switch w.c.Cell {
		case compute.RNNTanh:
			h2[j] = math.Tanh(ih(0, j) + hh(0, j))
		case compute.RNNReLU:
			h2[j] = max(0, ih(0, j)+hh(0, j))
		case compute.GRU, compute.GRUResetBefore:
			z := sigmoid(ih(1, j) + hh(1, j))
			var n float64
			if w.c.Cell == compute.GRU {
				n = math.Tanh(ih(2, j) + sigmoid(ih(0, j)+hh(0, j))*hh(2, j))
			} else {
				n = math.Tanh(ih(2, j) + hhOf(2, j, rh))
			}
			h2[j] = (1-z)*n + z*h[j]
		case compute.LSTM:
			i, f := sigmoid(ih(0, j)+hh(0, j)), sigmoid(ih(1, j)+hh(1, j))
			g, o := math.Tanh(ih(2, j)+hh(2, j)), sigmoid(ih(3, j)+hh(3, j))
			c2[j] = f*c[j] + i*g
			h2[j] = o * math.Tanh(c2[j])
		case compute.LSTMCoupled, compute.LSTMNoForget:
			i, g := sigmoid(ih(0, j)+hh(0, j)), math.Tanh(ih(1, j)+hh(1, j))
			c2[j] = c[j] + i*g
			if w.c.Cell == compute.LSTMCoupled {
				c2[j] -= i * c[j]
			}
			h2[j] = sigmoid(ih(2, j)+hh(2, j)) * math.Tanh(c2[j])
		case compute.Leaky:
			a := cmp.Or(w.c.Leak, compute.DefaultLeak)
			h2[j] = (1-a)*h[j] + a*math.Tanh(ih(0, j)+hh(0, j))
		case compute.LeakyLearned:
			a := sigmoid(l.peephole[j])
			h2[j] = (1-a)*h[j] + a*math.Tanh(ih(0, j)+hh(0, j))
		case compute.MinGRU:
			z := sigmoid(ih(0, j))
			h2[j] = (1-z)*h[j] + z*ih(1, j)
		case compute.Clockwork:
			s, read := w.c.layerShape(k, 1, 1), slices.Clone(h)
			for i := range read {
				if s.Removed(i, j) {
					read[i] = 0
				}
			}
			if h2[j] = h[j]; c[j] < 1 {
				h2[j] = math.Tanh(ih(0, j) + hhOf(0, j, read))
			}
			if c2[j] = c[j] + 1; c2[j] >= float64(s.Period(j)) {
				c2[j] = 0
			}
		case compute.MGU:
			f := sigmoid(ih(0, j) + hh(0, j))
			h2[j] = (1-f)*h[j] + f*math.Tanh(ih(1, j)+hhOf(1, j, rh))
		case compute.LSTMPeephole:
			i := sigmoid(ih(0, j) + hh(0, j) + l.peephole[j]*c[j])
			f := sigmoid(ih(1, j) + hh(1, j) + l.peephole[H+j]*c[j])
			c2[j] = f*c[j] + i*math.Tanh(ih(2, j)+hh(2, j))
			o := sigmoid(ih(3, j) + hh(3, j) + l.peephole[2*H+j]*c2[j])
			h2[j] = o * math.Tanh(c2[j])
		}
	}
	return h2, c2
}

// loss returns the summed cross-entropy of a segment, and the state after it. state is [B, L,
// States, H].
func (w twin) loss(in SegmentInput, T, B int, state []float64, train bool) (float64, []float64) {
	c, size := w.c, w.c.StateSize()
	after := make([]float64, len(state))
	if *w.penalty = 0; train {
		w = w.dropWeights(in.Step)
	}
	sum := 0.0
	for b := range B {
		lane := append([]float64(nil), state[b*size:(b+1)*size]...)
		for t := range T {
			x := w.input(in.Inputs[t*B+b])
			if train {
				x = w.dropWord(x, in.Inputs[t*B+b], in.Step)
				x = w.dropout(x, inputDropout, w.c.DropoutInput, t, in, b)
			}
			x = w.deep("deep_input.%d.%s", c.DeepInput, x)
			for k := range c.Layers {
				s := lane[k*c.states()*c.Hidden:][:c.states()*c.Hidden]
				cell := s[(c.Cell.States()-1)*c.Hidden:][:c.Hidden]
				past := s[c.Cell.States()*c.Hidden:]
				read := x
				if c.SkipThroughTime > 0 {
					read = append(slices.Clip(x), past[:c.Hidden]...)
					copy(past, append(past[c.Hidden:len(past):len(past)], s[:c.Hidden]...))
				}
				h, c2 := w.step(k, read, s[:c.Hidden], cell)
				h = w.deep("rnn.transition.%d.%s_l"+fmt.Sprint(k), c.DeepTransition, h)
				copy(cell, c2)
				copy(s, h)
				if train {
					h = w.dropout(h, k, dropoutOf(c, k), t, in, b)
				}
				if k == c.Layers-1 {
					*w.penalty += c.ActivationL2 * row(h, 0, h) / float64(len(h))
				}
				x = w.after(k, x, h)
			}
			if target := in.Targets[t*B+b]; target >= 0 {
				sum -= w.logSoftmax(x, int(target))
			}
		}
		copy(after[b*size:], lane)
	}
	return sum, after
}

// after is what follows layer k, from its input x and its output h.
func (w twin) after(k int, x, h []float64) []float64 {
	n := float64(len(h))
	u, y := make([]float64, len(h)), make([]float64, len(h))
	mean, variance := 0.0, 0.0
	for j := range h {
		if u[j] = h[j]; w.c.Skip && k > 0 {
			u[j] += x[j]
		}
		mean += u[j] / n
	}
	if !w.c.LayerNorm {
		return u
	}
	for j := range u {
		variance += (u[j] - mean) * (u[j] - mean) / n
	}
	for j := range u {
		y[j] = (u[j]-mean)/math.Sqrt(variance+1e-5)*w.norms[k][0][j] + w.norms[k][1][j]
	}
	return y
}

func (w twin) input(id int32) []float64 {
	if w.c.Embed == 0 {
		x := make([]float64, w.c.Vocab)
		x[id] = 1
		return x
	}
	x := make([]float64, w.c.Embed)
	for j := range x {
		x[j] = w.table[int(id)*w.c.Embed+j]
	}
	return x
}

// dropout drops elements of layer k's output; inputDropout: of the embedding's.
func (w twin) dropout(h []float64, k int, probability float64, t int, in SegmentInput,
	b int) []float64 {
	if probability == 0 {
		return h
	}
	p := float32(probability)
	key := DropoutKey(w.c.Seed, in.Step, k, in.Lanes[b])
	x := make([]float64, len(h))
	for j := range h {
		index := t*len(h) + j
		if w.c.DropoutLocked {
			index = j
		}
		if compute.DropoutKeep(key, index, p) {
			x[j] = h[j] / float64(1-p)
		}
	}
	return x
}

// dropWord drops a token's row of the embedding.
func (w twin) dropWord(x []float64, id int32, step int64) []float64 {
	p, y := float32(w.c.DropoutWords), make([]float64, len(x))
	if p > 0 && !compute.DropoutKeep(DropoutKey(w.c.Seed, step, wordLayer, int(id)), 0, p) {
		return y
	}
	for j := range x {
		y[j] = x[j] / float64(1-p)
	}
	return y
}

// dropWeights returns the twin with a step's mask of each W_hh.
func (w twin) dropWeights(step int64) twin {
	p := float32(w.c.WeightDrop)
	if p == 0 {
		return w
	}
	w.layers = slices.Clone(w.layers)
	for k := range w.layers {
		key, hh := DropoutKey(w.c.Seed, step, k, weightLane), make([]float64, len(w.layers[k].hh))
		for i, x := range w.layers[k].hh {
			if compute.DropoutKeep(key, i, p) {
				hh[i] = x / float64(1-p)
			}
		}
		w.layers[k].hh = hh
	}
	return w
}

// logSoftmax is log softmax(output layer of x)[target].
func (w twin) logSoftmax(x []float64, target int) float64 {
	x = w.deep("deep_output.%d.%s", w.c.DeepOutput, x)
	if w.c.projects() {
		p := make([]float64, w.c.Embed)
		for j := range p {
			p[j] = row(w.proj, j, x)
		}
		x = p
	}
	logp, end := 0.0, w.c.Vocab
	for i, first := range slices.Backward(w.c.Cutoffs) {
		if target >= first && target < end {
			tail := fmt.Sprintf("output.tail.%d.", i)
			y := products(w.view(tail+"0.weight"), x)
			logp = logSoftmaxOf(products(w.view(tail+"1.weight"), y), target-first)
			target = w.c.Cutoffs[0] + i
			break
		}
		end = first
	}
	z := products(w.outputs, x)
	for v := range z {
		z[v] += w.biasOut[v]
	}
	return logp + logSoftmaxOf(z, target)
}

// products is the product of a matrix and x.
func products(matrix, x []float64) (y []float64) {
	for i := range len(matrix) / len(x) {
		y = append(y, row(matrix, i, x))
	}
	return y
}

func logSoftmaxOf(z []float64, target int) float64 {
	sum, largest := 0.0, slices.Max(z) // logits of rnn-relu may be large
	for _, v := range z {
		sum += math.Exp(v - largest)
	}
	return z[target] - largest - math.Log(sum)
}

// The twin is exact, and a central difference in float64 with step 1e-5 almost exact. The remaining
// difference is float32 rounding in the kernels.
const (
	differenceStep    = 1e-5
	gradientTolerance = 2e-5
	lossTolerance     = 1e-6
)

// TestGradientsAgainstFiniteDifferences compares loss, state and every gradient of a segment, from
// a random state, with the twin and its central differences.
func TestGradientsAgainstFiniteDifferences(t *testing.T) {
	for name, cfg := range some(shapes()) {
		t.Run(name, func(t *testing.T) {
			const T, B = 3, 2
			m := newModel(t, cfg)
			s := newSegment(t, m, T, B)
			rng := rand.New(rand.NewPCG(5, 6))
			in := randomInput(rng, T, B, cfg.Vocab)
			state := make([]float32, B*cfg.StateSize())
			fillNormal(state, rng, 0.5)
			wide := make([]float64, len(state))
			for i, x := range state {
				wide[i] = float64(x)
			}
			if err := s.SetState(state); err != nil {
				t.Fatal(err)
			}
			loss := run(t, s, in)

			w := newTwin(m)
			wantLoss, wantState := w.loss(in, T, B, wide, true)
			if e := math.Abs(loss-wantLoss) / wantLoss; e > lossTolerance {
				t.Errorf("loss %v, want %v", loss, wantLoss)
			}
			if err := s.State(state); err != nil {
				t.Fatal(err)
			}
			if e := relative(state, wantState); e > gradientTolerance {
				t.Errorf("state: relative error %.2g", e)
			}
			grads := download(m, m.Gradients())
			for _, v := range m.views {
				want := make([]float64, v.Len)
				for i := range want {
					want[i] = w.difference(v.Offset+i, func() float64 {
						sum, _ := w.loss(in, T, B, wide, true)
						return (sum + *w.penalty) * float64(in.Scale)
					})
				}
				if e := relative(v.of(grads), want); e > gradientTolerance {
					t.Errorf("gradient of %s: relative error %.2g", v.Name, e)
				}
			}
			checkPadding(t, "gradient", m.views, grads)
		})
	}
}

// difference is the central difference of f with respect to parameter i.
func (w twin) difference(i int, f func() float64) float64 {
	x := w.flat[i]
	w.flat[i] = x + differenceStep
	up := f()
	w.flat[i] = x - differenceStep
	down := f()
	w.flat[i] = x
	return (up - down) / (2 * differenceStep)
}

// checkPadding checks that floats outside of all views are zero.
func checkPadding(t *testing.T, what string, views []View, flat []float32) {
	t.Helper()
	covered := make([]bool, len(flat))
	for _, v := range views {
		for i := range v.Len {
			covered[v.Offset+i] = true
		}
	}
	for i, x := range flat {
		if !covered[i] && x != 0 {
			t.Errorf("%s: padding %d is %v", what, i, x)
		}
	}
}

// TestEvaluate compares the evaluation of two consecutive segments with the twin. Training state
// and dropout must not affect it.
func TestEvaluate(t *testing.T) {
	for name, cfg := range some(shapes()) {
		t.Run(name, func(t *testing.T) {
			const T, B = 4, 2
			m := newModel(t, cfg)
			s := newSegment(t, m, T, B)
			rng := rand.New(rand.NewPCG(8, 9))
			state := make([]float64, B*cfg.StateSize())
			w := newTwin(m)
			for segment := range 3 {
				if segment == 2 {
					s.ZeroEvaluationState()
					clear(state)
				}
				in := randomInput(rng, T, B, cfg.Vocab)
				run(t, s, in)
				count := 0
				for _, id := range in.Targets {
					if id >= 0 {
						count++
					}
				}
				var want float64
				want, state = w.loss(in, T, B, state, false)
				sum, n, err := s.Evaluate(in.Inputs, in.Targets)
				if err != nil || n != count {
					t.Fatalf("%d targets counted, want %d (%v)", n, count, err)
				}
				if math.Abs(sum-want) > lossTolerance*want {
					t.Errorf("segment %d: %v nats, want %v", segment, sum, want)
				}
			}
		})
	}
}
