//go:build unix

package devicetest

import (
	"syscall"
	"testing"
	"unsafe"

	"rondo/compute"
)

// Protected is a stand-in for a device whose memory the host cannot touch, as a GPU's may not be:
// Alloc gives addresses that fault, and each call computes on another device's memory at the same
// offsets.
type Protected struct {
	compute.Device
	forbidden []float32
	real      []float32
	next      int
}

// NewProtected wraps a device. All its allocations together have at most floats floats.
func NewProtected(t testing.TB, dev compute.Device, floats int) *Protected {
	memory, err := syscall.Mmap(-1, 0, 4*floats, syscall.PROT_NONE,
		syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Munmap(memory); err != nil {
			t.Error(err)
		}
	})
	return &Protected{Device: dev, real: dev.Alloc(floats),
		forbidden: unsafe.Slice((*float32)(unsafe.Pointer(&memory[0])), floats)}
}

// at returns the real memory of a forbidden slice.
func (p *Protected) at(x []float32) []float32 {
	if x == nil {
		return nil
	}
	offset := (uintptr(unsafe.Pointer(unsafe.SliceData(x))) -
		uintptr(unsafe.Pointer(&p.forbidden[0]))) / 4
	return p.real[offset:][:len(x):len(x)]
}

// Alloc panics with a MemoryError when there is no more.
func (p *Protected) Alloc(n int) []float32 {
	if n > len(p.forbidden)-p.next {
		panic(&compute.MemoryError{What: "a protected tensor", Bytes: 4 * int64(n)})
	}
	x := p.forbidden[p.next:][:n:n]
	const aligned = 16
	p.next += (n + aligned - 1) / aligned * aligned
	return x
}

// The rest is a device's, on real memory.

// Free is compute.Device's.
func (p *Protected) Free([]float32) {}

// Upload is compute.Device's.
func (p *Protected) Upload(dst, src []float32) { p.Device.Upload(p.at(dst), src) }

// Download is compute.Device's.
func (p *Protected) Download(dst, src []float32) { p.Device.Download(dst, p.at(src)) }

// Zero is compute.Device's.
func (p *Protected) Zero(x []float32) { p.Device.Zero(p.at(x)) }

// AddBias is compute.Device's.
func (p *Protected) AddBias(x, b []float32) { p.Device.AddBias(p.at(x), p.at(b)) }

// Scale is compute.Device's.
func (p *Protected) Scale(x []float32, a float32) { p.Device.Scale(p.at(x), a) }

// Add is compute.Device's.
func (p *Protected) Add(y, x []float32) { p.Device.Add(p.at(y), p.at(x)) }

// SumSquares is compute.Device's.
func (p *Protected) SumSquares(x []float32) float64 {
	return p.Device.SumSquares(p.at(x))
}

// Gemm is compute.Device's.
func (p *Protected) Gemm(transA, transB bool, m, n, k int, alpha float32, a, b []float32,
	beta float32, c []float32) {
	p.Device.Gemm(transA, transB, m, n, k, alpha, p.at(a), p.at(b), beta, p.at(c))
}

// Embed is compute.Device's.
func (p *Protected) Embed(y, table []float32, ids []int32) {
	p.Device.Embed(p.at(y), p.at(table), ids)
}

// EmbedBackward is compute.Device's.
func (p *Protected) EmbedBackward(dtable, dy []float32, ids []int32) {
	p.Device.EmbedBackward(p.at(dtable), p.at(dy), ids)
}

// Dropout is compute.Device's.
func (p *Protected) Dropout(y, x []float32, steps int, q float32, keys []uint64) {
	p.Device.Dropout(p.at(y), p.at(x), steps, q, keys)
}

// CopyRows is compute.Device's.
func (p *Protected) CopyRows(dst, src compute.Columns, n, width int, ids []int32, add bool) {
	dst.X, src.X = p.at(dst.X), p.at(src.X)
	p.Device.CopyRows(dst, src, n, width, ids, add)
}

// Pool is compute.Device's.
func (p *Protected) Pool(by compute.Pooling, y, x []float32, steps int, lengths []int32) {
	p.Device.Pool(by, p.at(y), p.at(x), steps, lengths)
}

// PoolBackward is compute.Device's.
func (p *Protected) PoolBackward(by compute.Pooling, dx, dy, x, y []float32, steps int,
	lengths []int32) {
	p.Device.PoolBackward(by, p.at(dx), p.at(dy), p.at(x), p.at(y), steps, lengths)
}

// Tanh is compute.Device's.
func (p *Protected) Tanh(x []float32) { p.Device.Tanh(p.at(x)) }

// TanhBackward is compute.Device's.
func (p *Protected) TanhBackward(dy, y []float32) { p.Device.TanhBackward(p.at(dy), p.at(y)) }

// attention is in real memory.
func (p *Protected) attention(a compute.Attention) compute.Attention {
	for _, x := range []*[]float32{&a.Q, &a.K, &a.V, &a.Weights, &a.Y} {
		*x = p.at(*x)
	}
	return a
}

// Attend is compute.Device's.
func (p *Protected) Attend(a compute.Attention) { p.Device.Attend(p.attention(a)) }

// AttendBackward is compute.Device's.
func (p *Protected) AttendBackward(a compute.Attention, dy, dq, dk, dv []float32) {
	p.Device.AttendBackward(p.attention(a), p.at(dy), p.at(dq), p.at(dk), p.at(dv))
}

// norm is in real memory.
func (p *Protected) norm(n compute.LayerNorm) compute.LayerNorm {
	for _, x := range []*[]float32{&n.X, &n.Weight, &n.Bias, &n.Stats, &n.Y} {
		*x = p.at(*x)
	}
	return n
}

// LayerNorm is compute.Device's.
func (p *Protected) LayerNorm(n compute.LayerNorm) { p.Device.LayerNorm(p.norm(n)) }

// LayerNormBackward is compute.Device's.
func (p *Protected) LayerNormBackward(n compute.LayerNorm, dy, dx, dw, db []float32) {
	p.Device.LayerNormBackward(p.norm(n), p.at(dy), p.at(dx), p.at(dw), p.at(db))
}

// Update is compute.Device's.
func (p *Protected) Update(u compute.Update, params, grads, s1, s2 []float32) {
	p.Device.Update(u, p.at(params), p.at(grads), p.at(s1), p.at(s2))
}

// NewRecurrent is compute.Device's.
func (p *Protected) NewRecurrent(s compute.RecurrentShape, inference bool) compute.Recurrent {
	return protectedRecurrent{p.Device.NewRecurrent(s, inference), p}
}

// NewOutput is compute.Device's.
func (p *Protected) NewOutput(s compute.OutputShape) compute.Output {
	return protectedOutput{p.Device.NewOutput(s), p}
}

// NewClipper is compute.Device's.
func (p *Protected) NewClipper() compute.Clipper {
	return protectedClipper{p.Device.NewClipper(), p}
}

type protectedClipper struct {
	compute.Clipper
	p *Protected
}

func (c protectedClipper) Clip(g []float32, by *compute.Clip, loss *compute.Loss) {
	c.Clipper.Clip(c.p.at(g), by, loss)
}
func (c protectedClipper) Update(u *compute.Update, params, grads, s1, s2 []float32) {
	c.Clipper.Update(u, c.p.at(params), c.p.at(grads), c.p.at(s1), c.p.at(s2))
}

type protectedRecurrent struct {
	compute.Recurrent
	p *Protected
}

func (r protectedRecurrent) weights(w compute.RecurrentWeights) compute.RecurrentWeights {
	return compute.RecurrentWeights{IH: r.p.at(w.IH), HH: r.p.at(w.HH),
		BiasIH: r.p.at(w.BiasIH), BiasHH: r.p.at(w.BiasHH), Peephole: r.p.at(w.Peephole)}
}
func (r protectedRecurrent) state(s compute.RecurrentState) compute.RecurrentState {
	return compute.RecurrentState{H: r.p.at(s.H), C: r.p.at(s.C)}
}
func (r protectedRecurrent) Forward(w compute.RecurrentWeights, in compute.RecurrentInput,
	state compute.RecurrentState, y []float32, out compute.RecurrentState) {
	in.X = r.p.at(in.X)
	r.Recurrent.Forward(r.weights(w), in, r.state(state), r.p.at(y), r.state(out))
}
func (r protectedRecurrent) Backward(dy []float32, dout compute.RecurrentState,
	dw compute.RecurrentWeights, dx []float32, dstate compute.RecurrentState) {
	r.Recurrent.Backward(r.p.at(dy), r.state(dout), r.weights(dw), r.p.at(dx), r.state(dstate))
}

type protectedOutput struct {
	compute.Output
	p *Protected
}

func (o protectedOutput) Forward(x, w, b []float32, targets []int32) {
	o.Output.Forward(o.p.at(x), o.p.at(w), o.p.at(b), targets)
}
func (o protectedOutput) ForwardBackward(x, w, b []float32, targets []int32, scale float32,
	dx, dw, db []float32) {
	o.Output.ForwardBackward(o.p.at(x), o.p.at(w), o.p.at(b), targets, scale,
		o.p.at(dx), o.p.at(dw), o.p.at(db))
}
