//go:build cuda

package cuda

import (
	"cmp"
	"errors"
	"fmt"
	"unsafe"

	"rondo/compute"
	"rondo/compute/cuda/driver"
)

// steps is the recurrence of every cell and shape: a step is the product of the state and W_hh, and
// a kernel that makes the gates of it. Cells that reset h before the product take two of each. The
// kernels are those of kernels/cells.cu and gates.cu.
type steps struct {
	device *Device
	compute.RecurrentShape
	wide   int // K*H
	memory unsafe.Pointer
	// rec: [B, K*H], the product of a step with W_hh. On the way back it is the product's gradient,
	// if that differs from act.
	rec unsafe.Pointer
	// dh, dc: [B, H], the gradient of the state before a step, for the step before it.
	dh, dc unsafe.Pointer
	// dn and drh: [B, H], the gradients of n and of W_hn's factor, if that is not h.
	dn, drh unsafe.Pointer
	held    held
	ended   ended
	periods []float32 // [H], of Clockwork's units; nil of other cells
}

// held is a copy of W_hh in 16 bits for a whole segment, for cuBLAS. Without it every step's
// product rounds W_hh. All of it is 16-bit; nil otherwise.
type held struct {
	hh unsafe.Pointer // [K*H, H]
	// x is W_hh's factor in a step: h, [B, H], or the gradient of rec, [B, K*H].
	x unsafe.Pointer
	// second is W_hn's factor, if not h: r ⊙ h, or the gradient of n; [B, H].
	second unsafe.Pointer
}

const (
	// cellBlock is the threads of a block of a step's kernel: few, so that a small step has blocks
	// for many multiprocessors. kernels/cells.cu has the same.
	cellBlock = 128
	// Rounding W_hh once pays from heldSteps steps on, with products of at least heldWork m*n*k.
	// Both are derived, not measured: rounding costs about as much as a step saves by reading half
	// the bytes, and below heldWork a step's time is in its launches.
	heldSteps = 4
	heldWork  = 1 << 26
)

func newSteps(d *Device, s compute.RecurrentShape, inference bool) loop {
	return makeSteps(d, s, inference, worthHolding(s))
}

func worthHolding(s compute.RecurrentShape) bool {
	work := int64(s.B) * int64(s.Cell.Gates()) * int64(s.H) * int64(s.H)
	return s.T >= heldSteps && work >= heldWork
}

// makeSteps makes a steps. hold: it keeps W_hh in 16 bits, if the products have such operands.
func makeSteps(d *Device, s compute.RecurrentShape, inference, hold bool) *steps {
	l := &steps{device: d, RecurrentShape: s, wide: s.Cell.Gates() * s.H}
	l.memory = d.memory.cut(l.parts(inference, hold))
	if s.Cell == compute.Clockwork {
		defer orUndo(l.close)
		l.periods = d.Alloc(s.H)
		d.Upload(l.periods, s.UnitPeriods())
	}
	if l.held.hh != nil && !l.tryHeld(inference) {
		l.held = held{} // the memory stays: this is rare
	}
	return l
}

func (l *steps) parts(inference, hold bool) []part {
	d, state := l.device, l.B*l.H
	parts := []part{{&l.rec, 4 * l.B * l.wide}}
	if !inference {
		for _, place := range []*unsafe.Pointer{&l.dh, &l.dc, &l.dn, &l.drh} {
			parts = append(parts, part{place, 4 * state})
		}
	}
	g := &d.gemm
	hold = hold && l.Cell.HiddenGates() > 0
	if o := g.forward(); !hold || o != operandBF16 && o != operandFP16 || !g.byLibrary(o) ||
		!inference && !g.byLibrary(g.backward()) {
		return parts
	}
	return append(parts, part{&l.held.hh, 2 * l.wide * l.H}, part{&l.held.x, 2 * l.B * l.wide},
		part{&l.held.second, 2 * state})
}

// rows is how many rows of W_hh multiply h itself.
func (l *steps) rows() int {
	if l.Cell.ResetsBefore() {
		return l.wide - l.H
	}
	return l.Cell.HiddenGates() * l.H
}

// tryHeld asks cuBLAS for every product of 16 bits that the steps will need, on arbitrary contents.
// Later a step has only the 16-bit copy and no other way to compute its product.
func (l *steps) tryHeld(inference bool) bool {
	g, h := &l.device.gemm, &l.held
	try := func(o operands, transposed bool, n, k int, x, to unsafe.Pointer) bool {
		p := l.heldProduct(transposed, n, k, x, 0, 0, to)
		return g.multiply(o, &p)
	}
	forward, backward, reset := g.forward(), g.backward(), l.Cell.ResetsBefore()
	done := try(forward, true, l.rows(), l.H, h.x, l.rec)
	if reset {
		done = done && try(forward, true, l.H, l.H, h.second, l.rec)
	}
	if !inference {
		done = done && try(backward, false, l.H, l.rows(), h.x, l.dh)
	}
	if reset && !inference {
		done = done && try(backward, false, l.H, l.H, h.second, l.drh)
	}
	return done
}

// heldProduct is times's product with the 16-bit copy.
func (l *steps) heldProduct(transposed bool, n, k int, x16 unsafe.Pointer, first int, beta float32,
	c unsafe.Pointer) driver.Product {
	return driver.Product{TransB: transposed, M: l.B, N: n, K: k, Alpha: 1, Beta: beta, A: x16,
		B: unsafe.Add(l.held.hh, 2*first*l.H), C: c}
}

// empty: no memory has to be zero.
func (l *steps) empty(bool) copied { return copied{} }

func (l *steps) close() {
	for _, memory := range []*unsafe.Pointer{&l.memory, &l.ended.memory} {
		if *memory != nil {
			l.device.memory.release(*memory)
			*memory = nil
		}
	}
	l.device.Free(l.periods)
	l.periods = nil
}

// hold rounds W_hh for a segment's products.
func (l *steps) hold(o operands, hh unsafe.Pointer) {
	if l.held.hh != nil {
		l.device.gemm.round(o, hh, l.held.hh, l.wide*l.H)
	}
}

// times computes c = x op(w) + beta c for the rows of W_hh from first on: x: [B, k], op(w): [k, n],
// which is transposed on the way forward. x16 is x in 16 bits, if W_hh is held.
func (l *steps) times(o operands, transposed bool, n, k int, x, x16, hh unsafe.Pointer, first int,
	beta float32, c unsafe.Pointer) {
	if l.held.hh == nil {
		l.device.gemm.product(o, false, transposed, l.B, n, k, 1, x, behind(hh, first*l.H), beta, c)
		return
	}
	p := l.heldProduct(transposed, n, k, x16, first, beta, c)
	if !l.device.gemm.multiply(o, &p) {
		l.device.queue.check(fmt.Sprintf("a step of %d x %d x %d", l.B, n, k),
			errors.New("cuBLAS refuses a product that it has made before"))
	}
}

// step runs a kernel over the units of a step. Its last parameters are B, H, more, the type that it
// rounds to, and whether a thread takes four units, which requires 16-byte alignment of all memory.
func (l *steps) step(kernel string, o operands, memory []unsafe.Pointer, more ...any) {
	fours, each := l.H%4 == 0, 1
	args := make([]any, 0, len(memory)+len(more)+4)
	for _, p := range memory {
		fours = fours && uintptr(p)%16 == 0
		args = append(args, p)
	}
	if fours {
		each = 4
	}
	args = append(append(append(args, int32(l.B), int32(l.H)), more...), int32(o), flag(fours))
	l.device.queue.launch(kernel, across(blocksFor(l.B*l.H/each, cellBlock), cellBlock), args...)
}

// memoryOf is the parameters of a kernel that are memory.
func memoryOf(all ...unsafe.Pointer) []unsafe.Pointer { return all }

// at is step t's part of a tape: the gates, and the states before and after it.
func (l *steps) at(t tape, step int) (now tape, after gradients) {
	n := l.B * l.H
	now = tape{act: behind(t.act, step*l.B*l.wide), h: behind(t.h, step*n)}
	after.h = behind(now.h, n)
	if t.cell != nil {
		now.cell = behind(t.cell, step*n)
		after.c = behind(now.cell, n)
	}
	if t.q != nil {
		now.q = behind(t.q, step*n)
	}
	return now, after
}

func (l *steps) forward(hh, biasHH unsafe.Pointer, t tape) {
	o, held := l.device.gemm.forward(), l.held
	l.hold(o, hh)
	if held.hh != nil {
		l.device.gemm.round(o, t.h, held.x, l.B*l.H)
	}
	rows := l.rows()
	for step := range l.T {
		now, after := l.at(t, step)
		if rows > 0 {
			l.times(o, true, rows, l.H, now.h, held.x, hh, 0, 0, l.rec)
		}
		switch l.Cell {
		case compute.LSTM, compute.LSTMCoupled, compute.LSTMNoForget:
			l.step("cell_lstm_forward", o, memoryOf(now.act, l.rec, biasHH, now.cell, after.c,
				after.h, held.x), int32(l.Cell))
		case compute.LSTMPeephole:
			l.step("cell_peephole_forward", o, memoryOf(now.act, l.rec, biasHH, t.peephole,
				now.cell, after.c, after.h, held.x))
		case compute.GRU:
			l.step("cell_gru_forward", o,
				memoryOf(now.act, l.rec, biasHH, now.h, now.q, after.h, held.x))
		case compute.GRUResetBefore, compute.MGU:
			gates := int32(l.Cell.Gates())
			l.step("cell_reset_forward", o,
				memoryOf(now.act, l.rec, biasHH, now.h, now.q, held.second), gates)
			l.times(o, true, l.H, l.H, now.q, held.second, hh, rows, 0, l.rec)
			l.step("cell_candidate_forward", o,
				memoryOf(now.act, l.rec, biasHH, now.h, after.h, held.x), gates)
		case compute.MinGRU:
			l.step("cell_min_forward", o, memoryOf(now.act, now.h, after.h))
		case compute.Leaky, compute.LeakyLearned:
			l.step("cell_leaky_forward", o, memoryOf(now.act, l.rec, biasHH, t.peephole, now.h,
				after.h, held.x), l.leak())
		case compute.Clockwork:
			l.step("cell_clockwork_forward", o, memoryOf(now.act, l.rec, biasHH, at(l.periods),
				now.h, now.cell, after.h, after.c, held.x))
		default:
			l.step("cell_rnn_forward", o, memoryOf(now.act, l.rec, biasHH, after.h, held.x),
				flag(l.Cell == compute.RNNReLU))
		}
		if t.lengths != nil {
			l.keepStates(o, t, step)
		}
	}
	if t.lengths != nil {
		l.makeEnded()
	}
}

func (l *steps) backward(hh, dy unsafe.Pointer, dout, dstate gradients, t tape) {
	l.hold(l.device.gemm.backward(), hh)
	later, to := dout, gradients{l.dh, l.dc}
	for step := l.T - 1; step >= 0; step-- {
		if step == 0 && dstate.h != nil {
			to.h = dstate.h
		}
		if step == 0 && dstate.c != nil {
			to.c = dstate.c
		}
		dy := behind(dy, step*l.B*l.H)
		if t.lengths != nil {
			dy, later = l.ended.h, l.splitGradients(dy, later, t, step)
		}
		l.backstep(hh, dy, later, to, t, step)
		if step > 0 || dstate.h != nil {
			l.through(hh, to.h, t, step)
		}
		if t.lengths != nil {
			l.keepGradients(to, t, step)
		}
		later = to
	}
	if l.Cell == compute.LSTMPeephole {
		sums := launch{grid: [3]int{blocksFor(l.H, columnWidth), l.Cell.Peepholes(), 1},
			block: [3]int{columnWidth * columnParts, 1, 1}, shared: columnSumBytes}
		l.device.queue.launch("cell_peephole_sums", sums, t.dpeephole, t.act, t.cell,
			int32(l.T*l.B), int32(l.B), int32(l.H))
	}
}

// backstep computes the gradients of step's sums from its gates. later is the gradient of the state
// after the step, without dy. to.c receives the gradient of the cell before the step. For cells
// whose h' has a part of h, to.h receives the part of h's gradient that does not pass through W_hh.
func (l *steps) backstep(hh, dy unsafe.Pointer, later, to gradients, t tape, step int) {
	now, after := l.at(t, step)
	o, held := l.device.gemm.backward(), l.held
	switch l.Cell {
	case compute.LSTM, compute.LSTMCoupled, compute.LSTMNoForget:
		l.step("cell_lstm_backward", o, memoryOf(now.act, now.cell, after.c, dy, later.h, later.c,
			to.c, held.x), int32(l.Cell))
	case compute.LSTMPeephole:
		l.step("cell_peephole_backward", o, memoryOf(now.act, t.peephole, now.cell, after.c, dy,
			later.h, later.c, to.c, held.x))
	case compute.GRU:
		l.step("cell_gru_backward", o,
			memoryOf(now.act, now.q, l.rec, held.x, now.h, dy, later.h, to.h))
	case compute.GRUResetBefore, compute.MGU:
		gates, dz := int32(l.Cell.Gates()), behind(l.rec, l.B*l.H) // MGU's drec is half of rec
		l.step("cell_candidate_backward", o,
			memoryOf(now.act, dz, l.dn, held.second, now.h, dy, later.h, to.h), gates)
		l.times(o, false, l.H, l.H, l.dn, held.second, hh, l.rows(), 0, l.drh)
		l.step("cell_reset_backward", o,
			memoryOf(now.act, dz, l.rec, held.x, l.drh, now.h, to.h), gates)
	case compute.MinGRU:
		l.step("cell_min_backward", o, memoryOf(now.act, now.h, dy, later.h, to.h))
	case compute.Leaky, compute.LeakyLearned:
		l.step("cell_leaky_backward", o, memoryOf(now.act, t.peephole, now.h, now.q, dy, later.h,
			to.h, held.x), l.leak())
	case compute.Clockwork:
		l.step("cell_clockwork_backward", o, memoryOf(now.act, now.cell, dy, later.h, to.h, to.c,
			held.x))
	default:
		l.step("cell_rnn_backward", o, memoryOf(now.act, after.h, dy, later.h, held.x),
			flag(l.Cell == compute.RNNReLU))
	}
}

// leak is the share of a leaky cell that does not learn it.
func (l *steps) leak() float32 { return cmp.Or(l.Leak, compute.DefaultLeak) }

// through adds to dh, the gradient of the state before a step, the part that passes through W_hh.
func (l *steps) through(hh, dh unsafe.Pointer, t tape, step int) {
	now, _ := l.at(t, step)
	from, width, beta := now.act, l.rows(), float32(0)
	switch {
	case l.Cell == compute.GRU || l.Cell.ResetsBefore():
		from, beta = l.rec, 1
	case l.Cell.Leaks() || l.Cell == compute.Clockwork:
		beta = 1
	}
	if width == 0 {
		return // to.h has all of it
	}
	l.times(l.device.gemm.backward(), false, l.H, width, from, l.held.x, hh, 0, beta, dh)
}
