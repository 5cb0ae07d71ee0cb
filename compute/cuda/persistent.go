//go:build cuda

package cuda

import (
	"unsafe"

	"rondo/compute"
	"rondo/compute/cuda/driver"
)

// persistent is the recurrence in one launch a pass, of kernels/persistent*.cu: W_hh stays on chip
// for all steps. Its blocks hand each other the states, or the gradients, of every step through an
// exchange in global memory that must be zero before the launch; see kernels/persistent.cuh.
type persistent struct {
	device *Device
	compute.RecurrentShape
	inference   bool
	there, back *persistentPlan // the forward and the backward pass; nil where steps has it
	steps       loop            // a product a step; nil while it is not needed
}

// newPersistent returns nil where neither pass of a shape fits, where a product a step is thought
// faster, and where there is no memory for the exchange, which steps does without. GPUs below 8.0
// have no such tensor instructions as the kernels use.
func newPersistent(d *Device, s compute.RecurrentShape, inference bool) loop {
	l, need := d.layOutPersistent(s, inference)
	if l == nil || d.growScratch(need) != nil { // now, for nothing is allocated later
		return nil
	}
	if l.there != nil && !l.resident(l.there, d.forward(), false) {
		l.there = nil
	}
	if l.back != nil && !l.resident(l.back, d.backward(), true) {
		l.back = nil
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

// layOutPersistent is newPersistent without memory, and what it needs of the scratch.
func (d *Device) layOutPersistent(s compute.RecurrentShape, inference bool) (l *persistent,
	need int) {
	if d.major() < 8 && d.forward() != operandFP32 {
		return nil, 0
	}
	l = &persistent{device: d, RecurrentShape: s, inference: inference}
	if p, ok := planPersistent(s, d.forward(), d.multiprocessors(), d.sharedPerBlock(),
		false); ok {
		l.there, need = &p, p.exchange(s.T)
	}
	if !inference {
		if p, ok := planPersistent(s, d.backward(), d.multiprocessors(), d.sharedPerBlock(),
			true); ok {
			l.back, need = &p, max(need, l.carryBytes()+p.exchange(s.T))
		}
	}
	if l.there == nil && l.back == nil {
		return nil, 0
	}
	return l, need
}

// whole says whether no pass needs steps.
func (l *persistent) whole(inference bool) bool {
	return l.there != nil && (l.back != nil || inference)
}

// carryBytes is the room for what of the gradient of h (GRU) or c (LSTM) a step hands to the one
// before it, besides what goes through W_hh: [B, H], rounded up.
func (l *persistent) carryBytes() int { return alignedBytes(4 * l.B * l.H) }

func (l *persistent) close() {
	if l.steps != nil {
		l.steps.close()
	}
}

// empty is the exchange of a pass, with nothing in it yet.
func (l *persistent) empty(p *persistentPlan, exchange unsafe.Pointer) {
	l.device.check("emptying the exchange of a recurrent layer",
		l.device.stream.Zero(exchange, int64(p.exchange(l.T))))
}

// launch returns false where the driver finds that the blocks cannot all be resident at once, which
// would have them wait for each other for ever: nothing was launched.
func (l *persistent) launch(p *persistentPlan, o operands, backward bool, args ...any) bool {
	name := persistentKernel(p, o, backward)
	err := l.device.tryLaunch(name, launch{
		grid: [3]int{p.slices, p.groups, 1}, block: [3]int{persistentThreads, 1, 1},
		shared: p.shared, cooperative: true}, args...)
	if driver.TooManyBlocks(err) {
		return false
	}
	if err != nil {
		l.device.refused("kernel "+name, 0, err)
	}
	return true
}

// resident says whether a multiprocessor can have a block of a plan. A compiler of another version
// may have taken more registers than a block can have.
func (l *persistent) resident(p *persistentPlan, o operands, backward bool) bool {
	k := l.device.kernel(persistentKernel(p, o, backward))
	blocks, err := k.Resident(persistentThreads, p.shared)
	l.device.check("asking for the blocks of a recurrent kernel", err)
	return blocks*l.device.multiprocessors() >= p.slices*p.groups
}

func (l *persistent) forward(hh, biasHH unsafe.Pointer, t tape) {
	p := l.there
	if p == nil || t.lengths != nil {
		l.byProducts().forward(hh, biasHH, t)
		return
	}
	exchange := l.device.scratch(p.exchange(l.T))
	l.empty(p, exchange)
	launched := l.launch(p, l.device.forward(), false, hh, biasHH, t.act, t.cell, t.q, t.h,
		exchange, l.device.watchAt(), int32(l.Cell), int32(l.T), int32(l.B), int32(l.H),
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
	carry := l.device.scratch(l.carryBytes() + p.exchange(l.T))
	exchange := unsafe.Add(carry, l.carryBytes())
	l.empty(p, exchange)
	launched := l.launch(p, l.device.backward(), true, hh, dy, dout.h, dout.c, dstate.h,
		dstate.c, t.act, t.cell, t.q, t.h, carry, exchange, l.device.watchAt(), int32(l.Cell),
		int32(l.T), int32(l.B), int32(l.H), int32(p.passes))
	if !launched {
		l.back = nil
		l.backward(hh, dy, dout, dstate, t)
	}
}
