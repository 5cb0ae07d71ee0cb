//go:build cuda

package cuda

import (
	"fmt"
	"unsafe"

	"rondo/compute"
)

// tape is what a segment leaves for its way back, in device memory.
type tape struct {
	// act: [T, B, K*H]. Before forward x W_ihT + b_ih, or without b_ih where the bias that the loop
	// is given has it; after forward the gates' values; after backward the gradients of the input
	// side's sums. A row is K blocks of H in PyTorch's order of gates.
	act unsafe.Pointer
	// h and, of cells with two states, cell: [T+1, B, H], the state before step t at t. The layer
	// puts the first.
	h, cell unsafe.Pointer
	// peephole: [P, H], the weights; on the way back dpeephole receives their gradient. Nil for the
	// cells that have none.
	peephole, dpeephole unsafe.Pointer
	// q: [T, B, H]. GRU: W_hn h + b_hn after forward, its gradient after backward.
	// GRUResetBefore and MGU: r ⊙ h after forward. LeakyLearned: the terms of the leaks' gradient
	// after backward. Nil for the others.
	q unsafe.Pointer
	// lengths: [B], int32, the steps of each row; nil: all of the segment's. The tape begins at the
	// segment's step first.
	lengths unsafe.Pointer
	first   int
}

// gradients are those of a state, [B, H] each: nil where they are zero, or not wanted.
type gradients struct{ h, c unsafe.Pointer }

// loop is the recurrence of a layer over T steps.
type loop interface {
	// forward takes the tape from the input's side and the first state to the gates' values and all
	// states. hh: [K*H, H], bias: [K*H], b_hh or, but for GRU, b_ih + b_hh.
	forward(hh, bias unsafe.Pointer, t tape)
	// backward takes the tape to the gradients of the sums. dy: [T, B, H]; dout is the gradient of
	// the last state, dstate receives that of the first.
	backward(hh, dy unsafe.Pointer, dout, dstate gradients, t tape)
	// empty is the memory that the caller zeroes before that pass. A forward pass does not leave
	// it zero.
	empty(backward bool) copied
	close()
}

// newLoop is the recurrence in one kernel where a shape fits that, or a product at a time.
func newLoop(d *Device, s compute.RecurrentShape, inference bool) loop {
	if l := newPersistent(d, s, inference); l != nil {
		return l
	}
	return newSteps(d, s, inference)
}

// inferenceBytes bounds the gates that a layer for inference keeps: as many steps are computed at
// once as fit, and at least one.
const inferenceBytes = 32 << 20

// recurrent is one layer. It computes what is of all steps at once; its loop does the recurrence.
type recurrent struct {
	device    *Device
	shape     compute.RecurrentShape
	inference bool
	wide      int // K*H
	steps     int // that are computed at once: T, or a divisor of it for inference
	loop      loop
	memory    unsafe.Pointer // the tape's
	tape      tape
	biases    unsafe.Pointer // b_ih + b_hh: [K*H]; nil for GRU, and where there is no b_hh
	tokens    *staged        // token ids; nil before the first Forward with ids
	order     *staged        // the rows of every token; nil before the first Backward with ids
	lengths   *staged        // of the rows; nil before the first Forward with lengths
	tokensAt  unsafe.Pointer
	halves    layerHalves

	ran     bool // Forward has, and Backward has not since
	weights compute.RecurrentWeights
	input   compute.RecurrentInput
}

// NewRecurrent makes a layer's workspace, with what Backward needs unless inference is set.
func (d *Device) NewRecurrent(s compute.RecurrentShape, inference bool) compute.Recurrent {
	return newRecurrent(d, s, inference, newLoop)
}

// newRecurrent makes a layer over the recurrence that newLoop makes.
func newRecurrent(d *Device, s compute.RecurrentShape, inference bool,
	newLoop func(*Device, compute.RecurrentShape, bool) loop) *recurrent {
	r := layOut(d, s, inference)
	defer orUndo(r.Close)
	r.memory = d.memory.cut(r.parts())
	r.loop = newLoop(d, r.atOnce(), inference)
	return r
}

// layOut is a layer without its memory.
func layOut(d *Device, s compute.RecurrentShape, inference bool) *recurrent {
	wide := s.Cell.Gates() * s.H // panics on an unknown cell
	s.Check()
	r := &recurrent{device: d, shape: s, inference: inference, wide: wide, steps: s.T}
	if inference {
		r.steps = stepsAtOnce(s.T, 4*s.B*wide)
	}
	return r
}

// atOnce is the shape that the loop computes.
func (r *recurrent) atOnce() compute.RecurrentShape {
	s := r.shape
	s.T = r.steps
	return s
}

// stepsAtOnce is the largest divisor of T so many steps of which, of stepBytes each, fit in
// inferenceBytes; 1 if none does.
func stepsAtOnce(T, stepBytes int) int {
	for n := T; n > 1; n-- {
		if T%n == 0 && n*stepBytes <= inferenceBytes {
			return n
		}
	}
	return 1
}

// parts are those of the tape, and the biases.
func (r *recurrent) parts() []part {
	s := r.shape
	rows := r.steps * s.B
	states := 4 * (s.B + rows) * s.H
	parts := []part{{&r.tape.act, 4 * rows * r.wide}, {&r.tape.h, states}}
	if s.Cell.States() == 2 {
		parts = append(parts, part{&r.tape.cell, states})
	}
	if n := s.Cell.Kept(); n > 0 {
		parts = append(parts, part{&r.tape.q, 4 * n * rows * s.H})
	}
	if s.Cell != compute.GRU && s.Cell.HiddenGates() > 0 {
		parts = append(parts, part{&r.biases, 4 * r.wide})
	}
	return parts
}

// behind is device memory n floats on.
func behind(p unsafe.Pointer, n int) unsafe.Pointer { return unsafe.Add(p, 4*n) }

// Forward computes y: [T, B, H] and the state after the segment.
func (r *recurrent) Forward(w compute.RecurrentWeights, in compute.RecurrentInput,
	state compute.RecurrentState, y []float32, out compute.RecurrentState) {
	s := r.shape
	s.CheckForward(w, in, state, y, out)
	if in.IDs != nil {
		r.stageTokens(in.IDs)
	}
	r.tape.lengths = nil
	if in.Lengths != nil {
		r.stageLengths(in.Lengths)
	}
	n := s.B * s.H
	first := []copied{{r.tape.h, at(state.H), n}}
	if s.Cell.States() == 2 {
		first = append(first, copied{r.tape.cell, at(state.C), n})
	}
	r.copy(append(first, r.loop.empty(false)))
	bias := r.loopBias(w, in)
	r.tape.peephole = at(w.Peephole)
	for t := 0; t < s.T; t += r.steps {
		r.inputSums(w, in, t)
		r.tape.first = t
		r.loop.forward(at(w.HH), bias, r.tape)
		to, last := gradients{r.tape.h, r.tape.cell}, t+r.steps == s.T // where the next steps begin
		if last {
			to = gradients{at(out.H), at(out.C)}
		}
		r.copy(append(r.results(at(y[t*n:]), to), r.loop.empty(last)))
	}
	r.ran, r.weights, r.input = true, w, in
}

// results are the copies of what the loop has left: y and the last state.
func (r *recurrent) results(y unsafe.Pointer, last gradients) []copied {
	n := r.shape.B * r.shape.H
	all := []copied{{y, behind(r.tape.h, n), r.steps * n},
		{last.h, behind(r.tape.h, r.steps*n), n}}
	if r.shape.Cell.States() == 2 {
		all = append(all, copied{last.c, behind(r.tape.cell, r.steps*n), n})
	}
	return all
}

// loopBias is what the loop adds to the sums. Where they are made of rows that is both biases: act
// then comes from the product alone, which need not read it. GRU has to have them apart, and a
// gather of token ids adds b_ih for nothing.
func (r *recurrent) loopBias(w compute.RecurrentWeights, in compute.RecurrentInput) unsafe.Pointer {
	if in.IDs != nil || r.biases == nil {
		return at(w.BiasHH)
	}
	r.device.queue.launch("layer_biases", across(blocksFor(r.wide, flatThreads), flatThreads),
		r.biases, w.BiasIH, w.BiasHH, int32(r.wide))
	return r.biases
}

// inputSums sets act to x W_ihT, and b_ih unless the loop adds it, for the steps from t on that are
// computed at once.
func (r *recurrent) inputSums(w compute.RecurrentWeights, in compute.RecurrentInput, t int) {
	s, d := r.shape, r.device
	rows := r.steps * s.B
	if in.IDs != nil {
		r.gather(w, behind(r.tokensAt, t*s.B), rows)
		return
	}
	beta := float32(0)
	if r.biases == nil {
		d.queue.launch("layer_fill", d.queue.overRows(rows), r.tape.act, w.BiasIH, int32(rows),
			int32(r.wide))
		beta = 1
	}
	x := at(in.X[t*s.B*s.D:])
	d.gemm.productOf(d.gemm.forward(), r.roundInput(x, at(w.IH)), false, true, rows, r.wide, s.D, 1,
		x, at(w.IH), beta, r.tape.act)
}

// Backward overwrites the gradients; see compute.Recurrent. Each needs a Forward before it.
func (r *recurrent) Backward(dy []float32, dout compute.RecurrentState,
	dw compute.RecurrentWeights, dx []float32, dstate compute.RecurrentState) {
	if r.inference || !r.ran {
		panic(fmt.Sprintf("cuda: Backward without a Forward before it (inference: %t)",
			r.inference))
	}
	r.ran = false
	r.shape.CheckBackward(r.input, dy, dout, dw, dx, dstate)

	r.tape.dpeephole = at(dw.Peephole)
	r.loop.backward(at(r.weights.HH), at(dy), gradients{at(dout.H), at(dout.C)},
		gradients{at(dstate.H), at(dstate.C)}, r.tape)
	r.gradients(dw, dx, r.roundGradient())
}

// Close frees the workspace.
func (r *recurrent) Close() {
	if r.loop != nil {
		r.loop.close()
		r.loop = nil
	}
	r.device.memory.release(r.memory)
	r.device.memory.release(r.halves.memory)
	r.memory, r.halves, r.tape, r.biases = nil, layerHalves{}, tape{}, nil
	for _, s := range []**staged{&r.tokens, &r.order, &r.lengths} {
		if *s != nil {
			(*s).close()
			*s = nil
		}
	}
	r.weights, r.input, r.ran = compute.RecurrentWeights{}, compute.RecurrentInput{}, false
}
