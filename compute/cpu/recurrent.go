package cpu

import (
	"fmt"

	"rondo/compute"
)

// recurrent is one layer. It checks shapes and keeps Forward's arguments for Backward; the build's
// layer does the arithmetic.
type recurrent struct {
	shape     compute.RecurrentShape
	inference bool
	layer     layer
	workspace workspace
	kind      input // that the workspace has room for

	ran     bool // Forward has run, and Backward has not since
	weights compute.RecurrentWeights
	input   compute.RecurrentInput
}

// NewRecurrent makes a layer's workspace, with what Backward needs unless inference is set.
func (d *Device) NewRecurrent(s compute.RecurrentShape, inference bool) compute.Recurrent {
	s.Check()
	l := d.backend.newLayer(s, inference)
	return &recurrent{shape: s, inference: inference, layer: l, kind: noInput,
		workspace: d.workspace(d.config.layerBytes(s, inference, noInput))}
}

// Forward computes y: [T, B, H] and the state after the segment.
func (r *recurrent) Forward(w compute.RecurrentWeights, in compute.RecurrentInput,
	state compute.RecurrentState, y []float32, out compute.RecurrentState) {
	s := r.shape
	s.CheckForward(w, in, state, y, out)
	compute.CheckIDs("one-hot input", in.IDs, s.D)
	compute.CheckLengths(in.Lengths, s.T)
	r.layer.forward(w, in, state, y, out)
	d := r.workspace.device
	if kind := inputOf(in.IDs != nil); kind != r.kind { // the kernels have made room for it
		r.kind = kind
		r.workspace.resize(d.config.layerBytes(s, r.inference, kind))
	}
	d.grown()
	r.ran, r.weights, r.input = true, w, in
}

// Backward overwrites the gradients; see compute.Recurrent. Each needs a Forward before it.
func (r *recurrent) Backward(dy []float32, dout compute.RecurrentState,
	dw compute.RecurrentWeights, dx []float32, dstate compute.RecurrentState) {
	r.BackwardReporting(dy, dout, dw, dx, dstate, nil)
}

// BackwardReporting is Backward that reports gradients to finished, unless that is nil; see
// compute.ProgressReporter.
func (r *recurrent) BackwardReporting(dy []float32, dout compute.RecurrentState,
	dw compute.RecurrentWeights, dx []float32, dstate compute.RecurrentState,
	finished func(tensors, rows int)) {
	s := r.shape
	if r.inference || !r.ran {
		panic(fmt.Sprintf("cpu: Backward without a Forward before it (inference: %t)", r.inference))
	}
	r.ran = false
	s.CheckBackward(r.input, dy, dout, dw, dx, dstate)
	r.layer.backward(r.weights, r.input, dy, dout, dw, dx, dstate, finished)
	r.workspace.device.grown()
}

// KeepWeights implements compute.WeightKeeper.
func (r *recurrent) KeepWeights() {
	if !r.inference {
		panic("cpu: a layer that is trained cannot keep its weights")
	}
	r.layer.keep()
}

// Close frees the workspace.
func (r *recurrent) Close() {
	r.workspace.release()
	r.layer.close()
	r.weights, r.input, r.ran = compute.RecurrentWeights{}, compute.RecurrentInput{}, false
}
