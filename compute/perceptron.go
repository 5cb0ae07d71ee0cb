package compute

// Linear is the parameters of a linear layer, or their gradients.
type Linear struct {
	W []float32 // [width, inputs]
	B []float32 // [width]
}

// Tanh computes y = tanh(x Wᵀ + b); x: [n, inputs], y: [n, width].
func (l Linear) Tanh(dev Device, n int, x, y []float32) {
	dev.Gemm(false, true, n, len(l.B), len(x)/n, 1, x, l.W, 0, y)
	dev.AddBias(y, l.B)
	dev.Tanh(y)
}

// PerceptronShape is layers y = tanh(x Wᵀ + b) over N rows, one behind the other. The first reads D
// numbers, and each gives H.
type PerceptronShape struct{ N, D, H, Layers int }

// inputs is how many numbers layer i reads.
func (s PerceptronShape) inputs(i int) int {
	if i == 0 {
		return s.D
	}
	return s.H
}

// Perceptron is such layers with their workspace, made of a device's other operations: the deep
// input or output of a network (Pascanu et al. 2014, "How to Construct Deep Recurrent Neural
// Networks", arXiv:1312.6026).
type Perceptron struct {
	dev   Device
	shape PerceptronShape
	flat  []float32
	y     [][]float32  // each layer's output, [N, H]
	d     [2][]float32 // gradients, [N, H]
	first []int32      // [N] zeros: all rows of a gradient add up in a bias's one row
}

// NewPerceptron makes the workspace.
func NewPerceptron(dev Device, s PerceptronShape) *Perceptron {
	p := &Perceptron{dev: dev, shape: s, first: make([]int32, s.N)}
	p.flat = dev.Alloc((s.Layers + len(p.d)) * padded(s.N*s.H))
	parts := parts{flat: p.flat}
	for range s.Layers {
		p.y = append(p.y, parts.take(s.N*s.H))
	}
	for i := range p.d {
		p.d[i] = parts.take(s.N * s.H)
	}
	return p
}

// PerceptronSize is a device's memory for a Perceptron and its calls.
func PerceptronSize(on Sizer, s PerceptronShape) Size {
	size := on.TensorSize((s.Layers + len(Perceptron{}.d)) * padded(s.N*s.H))
	for i := range s.Layers {
		D := s.inputs(i)
		size = size.And(on.GemmSize(s.N, s.H, D)).And(on.GemmSize(s.H, D, s.N)).
			And(on.GemmSize(s.N, D, s.H))
	}
	return size
}

// Forward computes the last layer's output, which is Output.
func (p *Perceptron) Forward(w []Linear, x []float32) []float32 {
	for i, l := range w {
		l.Tanh(p.dev, p.shape.N, x, p.y[i])
		x = p.y[i]
	}
	return x
}

// Output is the memory of the last layer's output, [N, H].
func (p *Perceptron) Output() []float32 { return p.y[p.shape.Layers-1] }

// Gradient is memory for the output's gradient, [N, H].
func (p *Perceptron) Gradient() []float32 { return p.d[0] }

// Backward follows Forward of the same x. It adds the weights' gradients to dw, and overwrites dx,
// [N, D], with that of x. dy may be dx's memory, or Gradient.
func (p *Perceptron) Backward(w, dw []Linear, x, dy, dx []float32) {
	s, d, next := p.shape, p.d[0], p.d[1]
	if &d[0] != &dy[0] {
		copyMatrix(p.dev, d, dy, s.H)
	}
	for i := s.Layers - 1; i >= 0; i-- {
		in, to := x, dx
		if i > 0 {
			in, to = p.y[i-1], next
		}
		p.dev.TanhBackward(d, p.y[i])
		p.dev.Gemm(true, false, s.H, s.inputs(i), s.N, 1, d, in, 1, dw[i].W)
		p.dev.EmbedBackward(dw[i].B, d, p.first)
		p.dev.Gemm(false, false, s.N, s.inputs(i), s.H, 1, d, w[i].W, 0, to)
		d, next = next, d
	}
}

// Close frees the workspace.
func (p *Perceptron) Close() {
	p.dev.Free(p.flat)
	p.flat = nil
}

// parts cuts memory into parts that are each aligned.
type parts struct {
	flat   []float32 // the rest; nil: parts are only counted
	floats int       // that the parts took
}

func (p *parts) take(n int) []float32 {
	p.floats += padded(n)
	if p.flat == nil {
		return nil
	}
	part := p.flat[:n:n]
	p.flat = p.flat[padded(n):]
	return part
}

// padded rounds n floats up to 64 bytes.
func padded(n int) int { return (n + 15) / 16 * 16 }

// rowsOf is part t of n floats.
func rowsOf(x []float32, t, n int) []float32 { return x[t*n : (t+1)*n : (t+1)*n] }

// whole is all columns of a matrix of this width.
func whole(x []float32, width int) Columns { return Columns{X: x, Stride: width} }

// copyMatrix copies a matrix of this width.
func copyMatrix(dev Device, dst, src []float32, width int) {
	dev.CopyRows(whole(dst, width), whole(src, width), len(dst)/width, width, nil, false)
}
