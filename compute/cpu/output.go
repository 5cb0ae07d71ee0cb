package cpu

import (
	"rondo/compute"
)

// maxLogits is the most logits that an output layer keeps at once, 64 MiB: more rows go through it
// in chunks. A chunk costs a pass over the weights and their gradient, for which fewer rows than
// minOutputRows are too few: then no logits are kept, and backward makes them again, a strip of
// tokens at a time, which is a third more to multiply and needs the same memory for any vocabulary.
//
// Logits that are kept go to memory and come back; made again, each takes 2H operations and an
// exponential more. Where products are fast, as with AMX, and H is small, that may take less. A
// bound that says when would be of the processor's memory as much as of H; this one only bounds
// memory.
const (
	maxLogits     = 1 << 24
	minOutputRows = 256
)

// output is the last layer: it checks shapes; the build's head does the arithmetic.
type output struct {
	shape     compute.OutputShape
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
	return &output{shape: s, head: h, workspace: d.workspace(d.config.headBytes(s, rows))}
}

// outputRows is how many rows' logits are kept in memory at once: chunks of about one size; or 0.
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

// Forward computes the summed cross-entropy in nats; rows with a negative target do not count.
func (o *output) Forward(x, w, b []float32, targets []int32) {
	o.check(x, w, b, targets)
	defer o.workspace.device.grown()
	o.sum = o.head.forward(x, w, b, targets)
}

// ForwardBackward also overwrites the gradients of scale times that sum.
func (o *output) ForwardBackward(x, w, b []float32, targets []int32, scale float32,
	dx, dw, db []float32) {
	o.check(x, w, b, targets)
	o.shape.CheckBackward(b, dx, dw, db)
	defer o.workspace.device.grown()
	o.sum = o.head.forwardBackward(x, w, b, targets, scale, dx, dw, db)
}

// Sum returns what the last of the two has computed.
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
