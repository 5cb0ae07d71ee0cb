//go:build cuda

package cuda

import (
	"fmt"
	"unsafe"

	"rondo/compute"
)

// limits are a compute.Clip as flat_judge reads it, with the part of the loss that is known.
type limits struct {
	limit, share, lossLimit, loss float64
	byValue                       int32
	_                             int32
}

// constants are a compute.Update as its kernel reads it.
type constants struct{ lr, momentum, beta1, beta2, rho, epsilon, decay, size, root float32 }

// Sizes of the kernels' arguments, and of the verdict that flat_judge writes, whose first value is
// the norm, a float64.
const (
	limitsBytes    = int(unsafe.Sizeof(limits{}))
	constantsBytes = int(unsafe.Sizeof(constants{}))
	verdictBytes   = 16
)

// clipper keeps a gradient's norm, and the decisions that follow from it, on the device.
type clipper struct {
	device  *Device
	limits  *staged
	update  *staged
	verdict unsafe.Pointer
	norm    *result
}

// NewClipper implements compute.Device.
func (d *Device) NewClipper() compute.Clipper {
	c := &clipper{device: d}
	defer orUndo(c.Close)
	c.limits, c.update = d.memory.newStaged(limitsBytes), d.memory.newStaged(constantsBytes)
	c.norm = d.memory.newResult()
	c.verdict = d.memory.malloc(verdictBytes)
	d.queue.check("making a clipper", d.queue.stream.Zero(c.verdict, verdictBytes))
	return c
}

// Clip enqueues a gradient's norm, the clipping, and a copy of the norm to the host.
func (c *clipper) Clip(g []float32, by *compute.Clip, loss *compute.Loss) {
	d, rest := c.device, unsafe.Pointer(nil)
	if loss != nil {
		if rest = lossOf(loss.Last); rest == nil {
			panic(fmt.Sprintf("cuda: Clip with the loss of a %T, which is not %s's", loss.Last,
				d.queue.name))
		}
	}
	from := c.limits.put(func(host []byte) {
		by.Check()
		to := (*limits)(unsafe.Pointer(unsafe.SliceData(host)))
		*to = limits{limit: by.Limit, share: by.Share, lossLimit: by.LossLimit,
			byValue: flag(by.ByValue)}
		if loss != nil {
			to.loss = loss.Known
		}
	})
	partial := d.memory.scratch(8 * squareBlocks(g))
	if len(g) > 0 {
		sumBlocks(&d.queue, partial, g)
	}
	d.queue.launch("flat_judge", across(1, flatThreads), int64(squareBlocks(g)), partial, from,
		rest, c.verdict, c.norm.place())
	if len(g) > 0 {
		d.queue.launch("flat_clip", d.queue.over(len(g)), int64(len(g)), g, c.verdict)
	}
}

// Update enqueues an update that does nothing where the norm is not finite.
func (c *clipper) Update(u *compute.Update, params, grads, s1, s2 []float32) {
	u.Check(params, grads, s1, s2)
	rule := u.Optimizer
	from := c.update.put(func(host []byte) {
		if u.Optimizer != rule {
			panic(fmt.Sprintf("cuda: Replay of an Update by optimizer %d, now %d", rule,
				u.Optimizer))
		}
		putUpdate(host, *u)
	})
	launchUpdate(&c.device.queue, rule, from, c.verdict, params, grads, s1, s2)
}

// Norm waits for the norm of the last Clip.
func (c *clipper) Norm() float64 {
	return c.norm.read()
}

// Close frees the clipper; it may be called more than once.
func (c *clipper) Close() {
	for _, s := range []*staged{c.limits, c.update} {
		if s != nil {
			s.close()
		}
	}
	if c.norm != nil {
		c.norm.close()
	}
	c.device.memory.release(c.verdict)
	c.verdict = nil
}

// Update applies the optimizer to all parameters in one pass.
func (d *Device) Update(u compute.Update, params, grads, s1, s2 []float32) {
	u.Check(params, grads, s1, s2)
	from := d.ferry.stage(constantsBytes, func(host []byte) { putUpdate(host, u) })
	launchUpdate(&d.queue, u.Optimizer, from, nil, params, grads, s1, s2)
}

// putUpdate writes the arguments of an update's kernel.
func putUpdate(host []byte, u compute.Update) {
	size, root := u.Correction()
	beta2, rho := u.Decays()
	*(*constants)(unsafe.Pointer(unsafe.SliceData(host))) = constants{u.LR, u.Momentum, u.Beta1,
		beta2, rho, u.Epsilon, u.WeightDecay, size, root}
}

// launchUpdate enqueues an update with constants of the device's memory, unless norm, which may be
// nil, is not finite.
func launchUpdate(q *queue, o compute.Optimizer, from, norm unsafe.Pointer,
	params, grads, s1, s2 []float32) {
	if len(params) > 0 {
		q.launch(updateKernel(o), q.over(len(params)), int64(len(params)), params, grads, s1, s2,
			from, norm)
	}
}

// updateKernel is the kernel of an optimizer.
func updateKernel(o compute.Optimizer) string {
	return [...]string{compute.SGD: "update_sgd", compute.Momentum: "update_momentum",
		compute.Nesterov: "update_nesterov", compute.Adam: "update_adam",
		compute.AdamW: "update_adamw", compute.RMSProp: "update_rmsprop",
		compute.Adagrad: "update_adagrad"}[o]
}
