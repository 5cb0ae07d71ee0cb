package cpu

import (
	"fmt"

	"rondo/compute"
)

// maxLogits is the most logits that an output layer keeps at once, 64 MiB; it processes more rows
// in chunks. Each chunk costs a pass over the weights and their gradient, which does not pay below
// minOutputRows rows. Then no logits are kept, and backward recomputes them, a strip of tokens at a
// time: a third more products, with the same memory for any vocabulary.
//
// Kept logits are written to memory and read back; a recomputed one costs 2H operations and an
// exponential. With fast products, as with AMX, and a small H, recomputing may be faster. That
// limit would depend on the processor's memory as well as on H, so maxLogits only bounds memory.
const (
	maxLogits     = 1 << 24
	minOutputRows = 256
)

// output is the last layer. It checks shapes; the build's head does the arithmetic.
type output struct {
	shape     compute.OutputShape // with N of LimitRows
	most      int                 // N at first
	head      head
	workspace workspace
	sum       float64
}

// NewOutput makes the last layer's workspace.
func (d *Device) NewOutput(s compute.OutputShape) compute.Output {
	s.Check()
	return d.newOutput(s, outputRows(s))
}

func (d *Device) newOutput(s compute.OutputShape, rows int) *output {
	h := d.backend.newHead(s, rows)
	return &output{shape: s, most: s.N, head: h,
		workspace: d.workspace(d.config.headBytes(s, rows))}
}

// outputRows is the number of rows whose logits are kept at once, in chunks of about one size; or
// 0.
func outputRows(s compute.OutputShape) int {
	most := maxLogits / s.V
	if s.N <= most {
		return s.N
	}
	if most < minOutputRows {
		return 0
	}
	chunks := (s.N + most - 1) / most
	return (s.N + chunks - 1) / chunks
}

// LimitRows implements compute.RowLimiter.
func (o *output) LimitRows(n int) {
	if n < 1 || n > o.most {
		panic(fmt.Sprintf("cpu: %d rows of an output layer of %d", n, o.most))
	}
	o.shape.N = n
}

// Forward computes the summed cross-entropy in nats; rows with a negative target do not count.
func (o *output) Forward(x, w, b []float32, targets []int32) {
	o.check(x, w, b, targets)
	defer o.workspace.device.grown()
	o.sum = o.head.forward(x, w, b, targets)
}

// ForwardBackward also overwrites dx, dw and db with the gradients of scale times that sum.
func (o *output) ForwardBackward(x, w, b []float32, targets []int32, scale float32,
	dx, dw, db []float32) {
	o.check(x, w, b, targets)
	o.shape.CheckBackward(b, dx, dw, db)
	defer o.workspace.device.grown()
	o.sum = o.head.forwardBackward(x, w, b, targets, scale, dx, dw, db)
}

// Sum returns the sum of the last Forward or ForwardBackward.
func (o *output) Sum() float64 { return o.sum }

// Close frees the workspace.
func (o *output) Close() {
	o.workspace.release()
	o.head.close()
}

// check panics unless the arguments have their shapes.
func (o *output) check(x, w, b []float32, targets []int32) {
	o.shape.CheckForward(x, w, b, targets)
	o.shape.CheckTargets(targets)
}
