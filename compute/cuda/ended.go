//go:build cuda

package cuda

import "unsafe"

// ended is the room of a backward pass over rows that end before the segment: gradients of the
// state after a step, [B, H] each. In h and c, which the step reads, a row that has ended is zero,
// so that its gates get no gradient. Its own gradients are in keptH and keptC.
type ended struct{ memory, h, c, keptH, keptC unsafe.Pointer }

// makeEnded makes the memory for the way back, if there will be one.
func (l *steps) makeEnded() {
	e := &l.ended
	if l.dh == nil || e.memory != nil { // inference, or made before
		return
	}
	state := 4 * l.B * l.H
	e.memory = l.device.memory.cut([]part{{&e.h, state}, {&e.c, state}, {&e.keptH, state},
		{&e.keptC, state}})
}

// onRows launches a kernel over the elements of a state, given the lengths and the step.
func (l *steps) onRows(kernel string, t tape, step int, memory ...any) {
	l.device.queue.launch(kernel, across(blocksFor(l.B*l.H, flatThreads), flatThreads),
		append([]any{t.lengths, int32(t.first + step), int32(l.B), int32(l.H)}, memory...)...)
}

// keepStates keeps the states of rows that have ended through a step.
func (l *steps) keepStates(o operands, t tape, step int) {
	before, after := l.at(t, step)
	l.onRows("layer_keep_ended", t, step, after.h, before.h, after.c, before.cell)
	if l.held.hh != nil {
		l.device.gemm.round(o, after.h, l.held.x, l.B*l.H)
	}
}

// splitGradients fills ended with the gradients of the state after a step. ended.h includes dy and
// replaces it; the returned gradients replace later.
func (l *steps) splitGradients(dy unsafe.Pointer, later gradients, t tape, step int) gradients {
	e := &l.ended
	l.onRows("layer_split_ended", t, step, e.h, e.keptH, dy, later.h)
	if l.Cell.States() == 1 {
		return gradients{}
	}
	l.onRows("layer_split_ended", t, step, e.c, e.keptC, later.c, unsafe.Pointer(nil))
	return gradients{c: e.c}
}

// keepGradients passes the gradients of rows that have ended on to the step before.
func (l *steps) keepGradients(to gradients, t tape, step int) {
	if l.Cell.States() == 1 {
		to.c = nil
	}
	l.onRows("layer_keep_ended", t, step, to.h, l.ended.keptH, to.c, l.ended.keptC)
}
