//go:build cuda

package cuda

import "rondo/compute"

// Tanh sets x to tanh(x).
func (d *Device) Tanh(x []float32) {
	if len(x) > 0 {
		d.queue.launch("attention_tanh", d.queue.parted(len(x), flatThreads), int64(len(x)), x)
	}
}

// TanhBackward multiplies dy by tanh's derivative, 1 - y².
func (d *Device) TanhBackward(dy, y []float32) {
	compute.CheckSame("TanhBackward", len(dy), len(y))
	if len(y) > 0 {
		d.queue.launch("attention_tanh_backward", d.queue.parted(len(y), flatThreads),
			int64(len(y)), dy, y)
	}
}

// Attend computes attention's weights and results.
func (d *Device) Attend(a compute.Attention) {
	a.Check()
	d.queue.launch("attention_forward", d.queue.overRows(a.T*a.B), int32(a.T), int32(a.S),
		int32(a.B), int32(a.H), int32(a.W), d.ferry.stageLengths(a.Lengths, a.S), a.Q, a.K, a.V,
		a.Weights, a.Y)
}

// AttendBackward overwrites dq, dk and dv with the gradients of attention's queries, keys and
// values.
func (d *Device) AttendBackward(a compute.Attention, dy, dq, dk, dv []float32) {
	a.CheckBackward(dy, dq, dk, dv)
	lengths := d.ferry.stageLengths(a.Lengths, a.S)
	steps := func(n int, x, dx []float32) {
		d.queue.launch("attention_steps", d.queue.overRows(a.S*a.B), int32(a.T), int32(a.S),
			int32(a.B), int32(n), lengths, x, a.Weights, dx)
	}
	steps(a.W, dy, dv)
	d.queue.launch("attention_queries", d.queue.overRows(a.T*a.B), int32(a.T), int32(a.S),
		int32(a.B), int32(a.H), int32(a.W), lengths, a.K, a.V, a.Weights, a.Y, dy, dq)
	steps(a.H, a.Q, dk)
}
