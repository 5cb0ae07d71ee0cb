//go:build cuda

package cuda

import (
	"rondo/compute"
	"rondo/compute/cuda/driver"
)

var _ compute.Sizer = (*Device)(nil)

// NewSizer says what New's Device takes, if cuBLAS is there, and does not open the GPU.
func NewSizer(c Config) (compute.Sizer, error) {
	info, err := find(c.Index)
	d := newDevice(c, info)
	d.gemm.blas = new(driver.BLAS)
	return d, err
}

// TensorSize is of Alloc.
func (d *Device) TensorSize(n int) compute.Size { return compute.Size{Own: pages(4 * n)} }

// pages is what the driver takes for an allocation: a large one begins on a page.
func pages(bytes int) int64 {
	const page = 2 << 20
	if bytes < page/2 {
		return int64(bytes)
	}
	return int64(blocksFor(bytes, page)) * page
}

// RecurrentSize is of NewRecurrent and its calls.
func (d *Device) RecurrentSize(s compute.RecurrentShape, inference, ids bool) compute.Size {
	r := layOut(d, s, inference)
	n, rows, wide := s.T*s.B, r.steps*s.B, r.wide
	size := compute.Size{Own: pages(partsBytes(r.parts()))}
	switch {
	case ids && inference:
		size.Own += int64(4 * n) // the tokens
	case ids: // these, their order, and sums of frequent ones
		size = size.And(compute.Size{Own: int64(4 * (2*n + s.D + 1)),
			Shared: int64(4 * (n / tokenChunk) * wide)})
	default:
		size = size.And(d.gemm.size(d.gemm.forward(), rows, wide, s.D))
		if r.sharesHalves() {
			size.Own += pages(partsBytes(r.halves.parts(s)))
		}
	}
	if ids && s.D <= 2*rows { // as gather has it
		size = size.And(compute.Size{Shared: int64(4 * s.D * wide)})
	}
	if !inference {
		size = size.And(d.gemm.size(d.gemm.backward(), wide, s.H, n))
	}
	atOnce := r.atOnce()
	l := layOutPersistent(d, atOnce, inference)
	if l != nil {
		size.Own += pages(partsBytes(l.parts()))
	}
	if l == nil || !l.whole(inference) {
		l := &steps{device: d, RecurrentShape: atOnce, wide: wide}
		size.Own += pages(partsBytes(l.parts(inference, worthHolding(atOnce)))) +
			pages(4*len(s.UnitPeriods()))
		size = size.And(d.gemm.size(d.gemm.forward(), s.B, wide, s.H))
	}
	return size
}

// OutputSize is of NewOutput and its calls.
func (d *Device) OutputSize(s compute.OutputShape) compute.Size {
	o := &output{device: d, shape: s, rows: outputRows(s)}
	o.few = chooseFew(s, d.queue.info.SharedPerBlock)
	size := compute.Size{Own: pages(partsBytes(o.cuts())) + int64(4*s.N)} // and the targets
	if o.few.fits() {
		return size
	}
	return size.And(d.gemm.size(d.gemm.backward(), o.rows, s.H, s.V))
}

// GemmSize is of Gemm.
func (d *Device) GemmSize(m, n, k int) compute.Size {
	return d.gemm.size(d.gemm.backward(), m, n, k)
}

// size is of a product and of those of its gradients, which are as large in another order.
func (g *gemm) size(o operands, m, n, k int) (size compute.Size) {
	for range 3 {
		how := chooseMethod(o, m, n, k, g.byLibrary(o), g.queue.info.Major >= 8)
		size = size.And(compute.Size{Shared: int64(how.scratch(o, m, n, k))})
		m, n, k = n, k, m
	}
	return size
}
