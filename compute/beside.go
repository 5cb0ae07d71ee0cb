package compute

// Beside is an Output together with a second one of other targets. Its loss is the sum of both.
type Beside struct {
	Output
	// Targets are the other's. Set them before each call.
	Targets []int32

	dev          Device
	other        Output
	weights, dws Linear
	x            []float32 // the other's input; nil: that of Output
	dx           []float32 // its gradient
}

// NewBeside makes the second Output, of this shape, weights and gradients. It reads x, which has no
// gradient; if x is nil, it reads the first one's input. On a lack of memory it panics, and the
// first stays the caller's.
func NewBeside(dev Device, first Output, s OutputShape, weights, gradients Linear,
	x []float32) *Beside {
	b := &Beside{Output: first, Targets: make([]int32, s.N), dev: dev, weights: weights,
		dws: gradients, x: x, dx: dev.Alloc(s.N * s.H)}
	defer func() {
		if b.other == nil { // no memory
			dev.Free(b.dx)
		}
	}()
	b.other = dev.NewOutput(s)
	return b
}

// BesideSize is a device's memory for NewBeside and its calls.
func BesideSize(on Sizer, s OutputShape) Size {
	return on.TensorSize(s.N * s.H).And(on.OutputSize(s))
}

// First returns the first Output.
func (b *Beside) First() Output { return b.Output }

// Forward implements Output.
func (b *Beside) Forward(x, w, bias []float32, targets []int32) {
	b.Output.Forward(x, w, bias, targets)
	if b.x != nil {
		x = b.x
	}
	b.other.Forward(x, b.weights.W, b.weights.B, b.Targets)
}

// ForwardBackward implements Output.
func (b *Beside) ForwardBackward(x, w, bias []float32, targets []int32, scale float32,
	dx, dw, db []float32) {
	b.Output.ForwardBackward(x, w, bias, targets, scale, dx, dw, db)
	if b.x != nil {
		x = b.x
	}
	b.other.ForwardBackward(x, b.weights.W, b.weights.B, b.Targets, scale, b.dx, b.dws.W, b.dws.B)
	if b.x == nil {
		b.dev.Add(dx, b.dx)
	}
}

// Sum implements Output.
func (b *Beside) Sum() float64 { return b.Output.Sum() + b.other.Sum() }

// Close implements Output.
func (b *Beside) Close() {
	b.Output.Close()
	b.other.Close()
	b.dev.Free(b.dx)
	b.dx = nil
}
