package compute

import "math"

// Squares is a linear layer with squared error, made of a device's other operations. As an Output,
// its loss is the sum over rows of mean((x w^T + b - values[target])^2), the mean over the V
// columns. A target is a row of the values; a negative one does not count.
type Squares struct {
	dev     Device
	shape   OutputShape
	negated []float32 // the values times -1: [rows, V]
	outputs []float32 // x w^T + b: [N, V]
	errors  []float32 // [N, V], divided by sqrt(V): the loss is their sum of squares
	counted []int32   // [N]: n, or -1 for a row without a target
	ones    []float32 // [N]
	sum     SquareSum // nil: the device sums when it is asked
}

// SquareSummer is a Device that keeps a sum of squares in its memory for a Clipper's loss.
type SquareSummer interface{ NewSquareSum() SquareSum }

// SquareSum is a sum of squares in a device's memory.
type SquareSum interface {
	// Of computes Device.SumSquares of x and does not wait for it. It may be recorded.
	Of(x []float32)
	// Sum waits for the device and returns the last sum.
	Sum() float64
	Close()
}

// NewSquares makes the layer's workspace. negated is the targets' values times -1, in the device's
// memory: [rows, V].
func NewSquares(dev Device, s OutputShape, negated []float32) *Squares {
	s.Check()
	q := &Squares{dev: dev, shape: s, negated: negated}
	made := false
	defer func() {
		if !made { // no memory for a part
			q.Close()
		}
	}()
	q.counted = make([]int32, s.N)
	q.outputs, q.errors, q.ones = dev.Alloc(s.N*s.V), dev.Alloc(s.N*s.V), dev.Alloc(s.N)
	ones := make([]float32, s.N)
	for i := range ones {
		ones[i] = 1
	}
	dev.Upload(q.ones, ones)
	if d, ok := dev.(SquareSummer); ok {
		q.sum = d.NewSquareSum()
	}
	made = true
	return q
}

// SquaresSize is a device's memory for a Squares and its calls.
func SquaresSize(on Sizer, s OutputShape) Size {
	return on.TensorSize(s.N * s.V).And(on.TensorSize(s.N * s.V)).And(on.TensorSize(s.N)).And(on.GemmSize(s.N, s.V, s.H)).
		And(on.GemmSize(s.N, s.H, s.V)).And(on.GemmSize(s.V, s.H, s.N)).
		And(on.GemmSize(s.V, 1, s.N))
}

// Load notes which targets count. A Recording needs it before each Replay.
func (q *Squares) Load(targets []int32) {
	for n, target := range targets {
		q.counted[n] = int32(n)
		if target < 0 {
			q.counted[n] = -1
		}
	}
}

// Forward implements Output.
func (q *Squares) Forward(x, w, b []float32, targets []int32) {
	s := q.shape
	q.Load(targets)
	q.dev.Gemm(false, true, s.N, s.V, s.H, 1, x, w, 0, q.outputs)
	if b != nil {
		q.dev.AddBias(q.outputs, b)
	}
	q.dev.CopyRows(whole(q.errors, s.V), whole(q.outputs, s.V), s.N, s.V, q.counted, false)
	q.dev.CopyRows(Columns{X: q.errors, Stride: s.V}, Columns{X: q.negated, Stride: s.V}, s.N, s.V,
		targets, true)
	if s.V > 1 {
		q.dev.Scale(q.errors, q.share())
	}
	if q.sum != nil {
		q.sum.Of(q.errors)
	}
}

// share is the factor of an error that makes the sum of squares the mean over the columns.
func (q *Squares) share() float32 { return float32(1 / math.Sqrt(float64(q.shape.V))) }

// ForwardBackward implements Output.
func (q *Squares) ForwardBackward(x, w, b []float32, targets []int32, scale float32,
	dx, dw, db []float32) {
	s := q.shape
	s.CheckBackward(b, dx, dw, db)
	q.Forward(x, w, b, targets)
	by := 2 * scale * q.share()
	q.dev.Gemm(false, false, s.N, s.H, s.V, by, q.errors, w, 0, dx)
	q.dev.Gemm(true, false, s.V, s.H, s.N, by, q.errors, x, 0, dw)
	if db != nil {
		q.dev.Gemm(true, false, s.V, 1, s.N, by, q.errors, q.ones, 0, db)
	}
}

// Sum implements Output.
func (q *Squares) Sum() float64 {
	if q.sum != nil {
		return q.sum.Sum()
	}
	return q.dev.SumSquares(q.errors)
}

// Total is the device's own sum; nil: it has none.
func (q *Squares) Total() SquareSum { return q.sum }

// Close implements Output. It may be called more than once.
func (q *Squares) Close() {
	for _, x := range [][]float32{q.outputs, q.errors, q.ones} {
		q.dev.Free(x)
	}
	q.outputs, q.errors, q.ones = nil, nil, nil
	if q.sum != nil {
		q.sum.Close()
	}
}
