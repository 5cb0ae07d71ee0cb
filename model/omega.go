package model

import (
	"math"

	"rondo/compute"
)

// omega is a layer of tanh units with the regulariser of Pascanu, Mikolov and Bengio (2013,
// arXiv:1211.5063, equations 9 and 10), which keeps the norm of a gradient on its way back:
//
//	δ[t] = dE/da[t]: [H], a: the input of tanh; u[t-1] = δ[t] W_hh; s[t] = 1 - h[t]²
//	Ω = Σ over t > 0 of (|u[t-1] ⊙ s[t-1]| / |δ[t]| - 1)²
//
// The backward pass adds the gradient of λ times Ω to that of W_hh, with δ and h as constants. Each
// lane has an Ω of its own; the pass's scale multiplies each, as it does each target's loss. Steps
// whose gradients are 0 do not count. The loss is without it.
type omega struct {
	compute.Recurrent
	dev    compute.Device
	shape  compute.RecurrentShape
	lambda float64
	scale  *float32 // of the pass

	recurrent        []float32    // W_hh
	host             [3][]float32 // h and dy, [T, B, H]; [B, H]
	delta, back      []float32    // [B, H], device memory
	deltas, products []float32    // [T*B, H]
	rows             [2][]float32 // of these, in host memory
}

// newOmega wraps the kernel of a layer, which it closes. scale is read in each pass.
func newOmega(dev compute.Device, s compute.RecurrentShape, kernel compute.Recurrent,
	lambda float64, scale *float32) *omega {
	n := s.T * s.B * s.H
	o := &omega{dev: dev, shape: s, lambda: lambda, scale: scale}
	defer func() {
		if o.Recurrent == nil { // no memory for it
			kernel.Close()
			o.free()
		}
	}()
	o.host = [3][]float32{make([]float32, n), make([]float32, n), make([]float32, s.B*s.H)}
	o.rows = [2][]float32{make([]float32, n), make([]float32, n)}
	o.delta, o.back = dev.Alloc(s.B*s.H), dev.Alloc(s.B*s.H)
	o.deltas, o.products = dev.Alloc(n), dev.Alloc(n)
	o.Recurrent = kernel
	return o
}

// omegaSize is the memory of an omega and its calls: the device's, and the host's, because such a
// device computes on a CPU.
func omegaSize(on compute.Sizer, s compute.RecurrentShape) compute.Size {
	state, all := on.TensorSize(s.B*s.H), on.TensorSize(s.T*s.B*s.H)
	size := on.GemmSize(s.B, s.H, s.H).And(on.GemmSize(s.H, s.H, s.T*s.B))
	for range 2 { // delta, back; deltas, products
		size = size.And(state).And(all)
	}
	for range 2 { // later, delta; h, dy and their rows
		size = size.And(state).And(all).And(all)
	}
	return size
}

// Forward implements compute.Recurrent. It keeps y, which dropout may change.
func (o *omega) Forward(w compute.RecurrentWeights, in compute.RecurrentInput,
	state compute.RecurrentState, y []float32, out compute.RecurrentState) {
	o.Recurrent.Forward(w, in, state, y, out)
	o.dev.Download(o.host[0], y)
	o.recurrent = w.HH
}

// Backward implements compute.Recurrent.
func (o *omega) Backward(dy []float32, dout compute.RecurrentState, dw compute.RecurrentWeights,
	dx []float32, dstate compute.RecurrentState) {
	s, h, own, later := o.shape, o.host[0], o.host[1], o.host[2]
	o.dev.Download(own, dy)
	if clear(later); dout.H != nil {
		o.dev.Download(later, dout.H)
	}
	o.Recurrent.Backward(dy, dout, dw, dx, dstate) // dx may be dy's memory
	n := s.B * s.H
	delta := make([]float32, n)
	clear(o.rows[0])
	clear(o.rows[1])
	for t := s.T - 1; t > 0; t-- {
		for i, x := range h[t*n:][:n] {
			delta[i] = (own[t*n+i] + later[i]) * (1 - x*x)
		}
		o.dev.Upload(o.delta, delta)
		o.dev.Gemm(false, false, s.B, s.H, s.H, 1, o.delta, o.recurrent, 0, o.back)
		o.dev.Download(later, o.back)
		for b := range s.B {
			at := b * s.H
			o.row(delta[at:][:s.H], later[at:][:s.H], h[(t-1)*n+at:][:s.H],
				o.rows[0][t*n+at:], o.rows[1][t*n+at:])
		}
	}
	o.dev.Upload(o.deltas, o.rows[0])
	o.dev.Upload(o.products, o.rows[1])
	o.dev.Gemm(true, false, s.H, s.H, s.T*s.B, 1, o.deltas, o.products, 1, dw.HH)
}

// row sets a step of a lane's part of the gradient by W_hh: two factors of an outer product. h is
// the state that u reaches.
func (o *omega) row(delta, u, h, left, right []float32) {
	before, after := 0.0, 0.0 // squared norms
	for i, d := range delta {
		slope := 1 - float64(h[i])*float64(h[i])
		v := float64(u[i]) * slope
		before, after = before+float64(d)*float64(d), after+v*v
		right[i] = float32(v * slope)
	}
	if before == 0 || after == 0 {
		clear(right[:len(delta)])
		return
	}
	before, after = math.Sqrt(before), math.Sqrt(after)
	factor := 2 * (after/before - 1) * o.lambda * float64(*o.scale)
	for i, d := range delta {
		left[i] = float32(factor * float64(d) / before)
		right[i] = float32(float64(right[i]) / after)
	}
}

// Close implements compute.Recurrent.
func (o *omega) Close() {
	o.Recurrent.Close()
	o.free()
}

func (o *omega) free() {
	for _, x := range [][]float32{o.delta, o.back, o.deltas, o.products} {
		o.dev.Free(x)
	}
}
