package cpu

import (
	"fmt"

	"rondo/compute"
)

// recurrent is one layer: it checks shapes and remembers what Backward needs of Forward's
// arguments; the build's layer does the arithmetic.
type recurrent struct {
	shape     compute.RecurrentShape
	inference bool
	layer     layer
	workspace workspace

	ran     bool // Forward has, and Backward has not since
	weights compute.RecurrentWeights
	input   compute.RecurrentInput
}

// NewRecurrent makes a layer's workspace, with what Backward needs unless inference is set.
func (d *Device) NewRecurrent(s compute.RecurrentShape, inference bool) compute.Recurrent {
	s.Cell.Gates() // panics on an unknown cell
	if s.T < 1 || s.B < 1 || s.D < 1 || s.H < 1 {
		panic(fmt.Sprintf("cpu: recurrent layer of shape %+v", s))
	}
	l := d.backend.newLayer(s, inference)
	return &recurrent{shape: s, inference: inference, layer: l, workspace: d.workspace(l.bytes())}
}

// Forward computes y: [T, B, H] and the state after the segment.
func (r *recurrent) Forward(w compute.RecurrentWeights, in compute.RecurrentInput,
	state compute.RecurrentState, y []float32, out compute.RecurrentState) {
	s := r.shape
	r.checkWeights("weight", w)
	switch {
	case in.IDs != nil && in.X == nil:
		wantLength("ids", len(in.IDs), s.T*s.B)
		checkIDs("one-hot input", in.IDs, s.D)
	case in.X != nil && in.IDs == nil:
		wantLength("x", len(in.X), s.T*s.B*s.D)
	default:
		panic("cpu: a recurrent layer's input is either ids or rows; exactly one must be set")
	}
	r.checkState("state", state)
	r.checkState("state out", out)
	wantLength("y", len(y), s.T*s.B*s.H)
	r.layer.forward(w, in, state, y, out)
	r.workspace.resize(r.layer.bytes()) // the first makes room for its kind of input
	r.workspace.device.grown()
	r.ran, r.weights, r.input = true, w, in
}

// Backward overwrites the gradients; see compute.Recurrent. Each needs a Forward before it.
func (r *recurrent) Backward(dy []float32, dout compute.RecurrentState,
	dw compute.RecurrentWeights, dx []float32, dstate compute.RecurrentState) {
	s := r.shape
	if r.inference || !r.ran {
		panic(fmt.Sprintf("cpu: Backward without a Forward before it (inference: %t)", r.inference))
	}
	r.ran = false
	wantLength("dy", len(dy), s.T*s.B*s.H)
	r.checkWeights("gradient", dw)
	if dx != nil {
		wantLength("dx", len(dx), s.T*s.B*s.D)
		if r.input.IDs != nil {
			panic("cpu: dx of token ids")
		}
	}
	r.checkGradientState("dout", dout)
	r.checkGradientState("dstate", dstate)
	r.layer.backward(r.weights, r.input, dy, dout, dw, dx, dstate)
	r.workspace.device.grown()
}

// Close frees the workspace.
func (r *recurrent) Close() {
	r.workspace.release()
	r.layer.close()
	r.weights, r.input, r.ran = compute.RecurrentWeights{}, compute.RecurrentInput{}, false
}

// checkWeights panics unless every parameter has its shape.
func (r *recurrent) checkWeights(what string, w compute.RecurrentWeights) {
	rows := r.shape.Cell.Gates() * r.shape.H
	wantLengthOf(what, "IH", len(w.IH), rows*r.shape.D)
	wantLengthOf(what, "HH", len(w.HH), rows*r.shape.H)
	wantLengthOf(what, "BiasIH", len(w.BiasIH), rows)
	wantLengthOf(what, "BiasHH", len(w.BiasHH), rows)
}

// checkState panics unless a state has its shape.
func (r *recurrent) checkState(what string, s compute.RecurrentState) {
	wantLengthOf(what, "H", len(s.H), r.shape.B*r.shape.H)
	if r.shape.Cell.States() == 2 {
		wantLengthOf(what, "C", len(s.C), r.shape.B*r.shape.H)
	}
}

// checkGradientState does the same for a gradient, of which any part may be nil.
func (r *recurrent) checkGradientState(what string, s compute.RecurrentState) {
	if s.H != nil {
		wantLengthOf(what, "H", len(s.H), r.shape.B*r.shape.H)
	}
	if s.C != nil {
		wantLengthOf(what, "C", len(s.C), (r.shape.Cell.States()-1)*r.shape.B*r.shape.H)
	}
}
