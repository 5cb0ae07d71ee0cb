//go:build cuda

package cuda

import (
	"unsafe"

	"rondo/compute"
	"rondo/compute/cuda/driver"
)

// persistent is the recurrence in one launch a pass, of kernels/persistent*.cu: W_hh stays on chip
// for all steps. Its blocks hand each other the states, or the gradients, of every step through an
// exchange in global memory that must be zero before the launch; see kernels/persistent.cuh. The
// layer's copies before a pass clear it.
type persistent struct {
	device *Device
	compute.RecurrentShape
	inference   bool
	there, back *persistentPlan // the forward and the backward pass; nil where steps has it
	steps       loop            // a product a step; nil while it is not needed
	memory      unsafe.Pointer  // of the fields below
	exchange    unsafe.Pointer  // of the pass that is next
	// carry: [B, H], the part of the gradient of h (GRU) or c (LSTM) that a step hands back without
	// W_hh.
	carry unsafe.Pointer
}

// newPersistent returns nil if neither pass of a shape fits, if a product a step is expected to be
// faster, or if there is no memory for the exchange, which steps does not need. GPUs below 8.0 lack
// the kernels' tensor instructions.
func newPersistent(d *Device, s compute.RecurrentShape, inference bool) loop {
	l := layOutPersistent(d, s, inference)
	if l == nil {
		return nil
	}
	var lack *compute.MemoryError
	if l.memory, lack = d.memory.tryCut(l.parts()); lack != nil {
		return nil
	}
	defer orUndo(l.close)
	if l.there != nil && !l.resident(l.there, d.gemm.forward(), false) {
		l.there = nil
	}
	if l.back != nil && !l.resident(l.back, d.gemm.backward(), true) {
		l.back = nil
	}
	if l.there == nil && l.back == nil {
		l.close()
		return nil
	}
	if !l.whole(inference) {
		l.byProducts()
	}
	return l
}

// byProducts is the recurrence by a product a step, which rows that end before the segment need,
// too.
func (l *persistent) byProducts() loop {
	if l.steps == nil {
		l.steps = newSteps(l.device, l.RecurrentShape, l.inference)
	}
	return l.steps
}

// layOutPersistent is newPersistent without memory.
func layOutPersistent(d *Device, s compute.RecurrentShape, inference bool) *persistent {
	g := &d.queue.info
	if g.Major < 8 && d.gemm.forward() != operandFP32 {
		return nil
	}
	l := &persistent{device: d, RecurrentShape: s, inference: inference}
	if p, ok := planPersistent(s, d.gemm.forward(), g.Multiprocessors, g.SharedPerBlock,
		false); ok {
		l.there = &p
	}
	if !inference {
		p, ok := planPersistent(s, d.gemm.backward(), g.Multiprocessors, g.SharedPerBlock, true)
		if ok {
			l.back = &p
		}
	}
	if l.there == nil && l.back == nil {
		return nil
	}
	return l
}

// parts are the parts of its memory.
func (l *persistent) parts() []part {
	room := max(l.empty(false).n, l.empty(true).n)
	return []part{{&l.exchange, 4 * room}, {&l.carry, 4 * l.B * l.H}}
}

// whole reports whether no pass needs steps.
func (l *persistent) whole(inference bool) bool {
	return l.there != nil && (l.back != nil || inference)
}

func (l *persistent) close() {
	if l.steps != nil {
		l.steps.close()
	}
	l.device.memory.release(l.memory)
	l.memory = nil
}

func (l *persistent) empty(backward bool) copied {
	p := l.there
	if backward {
		p = l.back
	}
	if p == nil {
		return copied{}
	}
	return copied{to: l.exchange, n: p.exchange(l.T) / 4}
}

// launch returns false where the driver finds that the blocks cannot all be resident at once, which
// would have them wait for each other for ever: nothing was launched.
func (l *persistent) launch(p *persistentPlan, o operands, backward bool, args ...any) bool {
	name := persistentKernel(p, o, backward)
	err := l.device.queue.tryLaunch(name, launch{
		grid: [3]int{p.slices, p.groups, 1}, block: [3]int{persistentThreads, 1, 1},
		shared: p.shared, cooperative: true}, args...)
	if driver.TooManyBlocks(err) {
		return false
	}
	if err != nil {
		l.device.queue.refused("kernel "+name, 0, err)
	}
	return true
}

// resident reports whether a block of a plan fits on a multiprocessor. A compiler of another
// version may have given it more registers than a block can have.
func (l *persistent) resident(p *persistentPlan, o operands, backward bool) bool {
	k := l.device.queue.kernel(persistentKernel(p, o, backward))
	blocks, err := k.Resident(persistentThreads, p.shared)
	l.device.queue.check("asking for the blocks of a recurrent kernel", err)
	return blocks*l.device.queue.info.Multiprocessors >= p.slices*p.groups
}

func (l *persistent) forward(hh, biasHH unsafe.Pointer, t tape) {
	p := l.there
	if p == nil || t.lengths != nil {
		l.byProducts().forward(hh, biasHH, t)
		return
	}
	launched := l.launch(p, l.device.gemm.forward(), false, hh, biasHH, t.act, t.cell, t.q, t.h,
		l.exchange, l.device.queue.watchAt(), int32(l.Cell), int32(l.T), int32(l.B), int32(l.H),
		int32(p.units), int32(p.passes))
	if !launched {
		l.there = nil
		l.forward(hh, biasHH, t)
	}
}

func (l *persistent) backward(hh, dy unsafe.Pointer, dout, dstate gradients, t tape) {
	p := l.back
	if p == nil || t.lengths != nil {
		l.byProducts().backward(hh, dy, dout, dstate, t)
		return
	}
	launched := l.launch(p, l.device.gemm.backward(), true, hh, dy, dout.h, dout.c, dstate.h,
		dstate.c, t.act, t.cell, t.q, t.h, l.carry, l.exchange, l.device.queue.watchAt(),
		int32(l.Cell), int32(l.T), int32(l.B), int32(l.H), int32(p.passes))
	if !launched {
		l.back = nil
		l.backward(hh, dy, dout, dstate, t)
	}
}
