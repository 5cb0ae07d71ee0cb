//go:build unix

package model

import (
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"unsafe"

	"rondo/compute"
)

// protected is a device whose memory the host cannot touch, as a GPU's may not be: Alloc gives
// addresses that fault, and each call computes on real memory at the same offsets.
type protected struct {
	compute.Device
	forbidden []float32
	real      []float32
	next      int
}

// protectedSize is how many floats a protected device has, in all.
const protectedSize = 1 << 20

func newProtected(t *testing.T) *protected {
	memory, err := syscall.Mmap(-1, 0, 4*protectedSize, syscall.PROT_NONE,
		syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Munmap(memory); err != nil {
			t.Error(err)
		}
	})
	dev := newDevice(t)
	return &protected{Device: dev, real: dev.Alloc(protectedSize),
		forbidden: unsafe.Slice((*float32)(unsafe.Pointer(&memory[0])), protectedSize)}
}

// at returns the real memory of a forbidden slice.
func (p *protected) at(x []float32) []float32 {
	if x == nil {
		return nil
	}
	offset := (uintptr(unsafe.Pointer(unsafe.SliceData(x))) -
		uintptr(unsafe.Pointer(&p.forbidden[0]))) / 4
	return p.real[offset:][:len(x):len(x)]
}

func (p *protected) Alloc(n int) []float32 {
	x := p.forbidden[p.next:][:n:n]
	p.next += roundUp(n)
	return x
}
func (p *protected) Free([]float32)               {}
func (p *protected) Upload(dst, src []float32)    { p.Device.Upload(p.at(dst), src) }
func (p *protected) Download(dst, src []float32)  { p.Device.Download(dst, p.at(src)) }
func (p *protected) Zero(x []float32)             { p.Device.Zero(p.at(x)) }
func (p *protected) AddBias(x, b []float32)       { p.Device.AddBias(p.at(x), p.at(b)) }
func (p *protected) Scale(x []float32, a float32) { p.Device.Scale(p.at(x), a) }
func (p *protected) Gemm(transA, transB bool, m, n, k int, alpha float32, a, b []float32,
	beta float32, c []float32) {
	p.Device.Gemm(transA, transB, m, n, k, alpha, p.at(a), p.at(b), beta, p.at(c))
}
func (p *protected) Embed(y, table []float32, ids []int32) {
	p.Device.Embed(p.at(y), p.at(table), ids)
}
func (p *protected) EmbedBackward(dtable, dy []float32, ids []int32) {
	p.Device.EmbedBackward(p.at(dtable), p.at(dy), ids)
}
func (p *protected) Dropout(y, x []float32, steps int, q float32, keys []uint64) {
	p.Device.Dropout(p.at(y), p.at(x), steps, q, keys)
}
func (p *protected) Update(u compute.Update, params, grads, s1, s2 []float32) {
	p.Device.Update(u, p.at(params), p.at(grads), p.at(s1), p.at(s2))
}
func (p *protected) NewRecurrent(s compute.RecurrentShape, inference bool) compute.Recurrent {
	return protectedRecurrent{p.Device.NewRecurrent(s, inference), p}
}
func (p *protected) NewOutput(s compute.OutputShape) compute.Output {
	return protectedOutput{p.Device.NewOutput(s), p}
}

type protectedRecurrent struct {
	compute.Recurrent
	p *protected
}

func (r protectedRecurrent) weights(w compute.RecurrentWeights) compute.RecurrentWeights {
	return compute.RecurrentWeights{IH: r.p.at(w.IH), HH: r.p.at(w.HH),
		BiasIH: r.p.at(w.BiasIH), BiasHH: r.p.at(w.BiasHH)}
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
	p *protected
}

func (o protectedOutput) Forward(x, w, b []float32, targets []int32) {
	o.Output.Forward(o.p.at(x), o.p.at(w), o.p.at(b), targets)
}
func (o protectedOutput) ForwardBackward(x, w, b []float32, targets []int32, scale float32,
	dx, dw, db []float32) {
	o.Output.ForwardBackward(o.p.at(x), o.p.at(w), o.p.at(b), targets, scale,
		o.p.at(dx), o.p.at(dw), o.p.at(db))
}

// TestDeviceMemoryIsTheDevices trains, evaluates, generates and moves states on a device whose
// memory faults when the host touches it. The results are those of one whose memory does not.
func TestDeviceMemoryIsTheDevices(t *testing.T) {
	for name, cfg := range shapes() {
		t.Run(name, func(t *testing.T) {
			want, err := exercise(t, cfg, newDevice(t))
			if err != nil {
				t.Fatal(err)
			}
			got, err := exercise(t, cfg, newProtected(t))
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, want) {
				t.Error("the results differ")
			}
		})
	}
}

// exercise uses everything that a model offers and returns all numbers that come of it.
func exercise(t *testing.T, cfg Config, dev compute.Device) (results []float32, err error) {
	const T, B = 3, 2
	m, err := New(cfg, dev)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	s, err := m.NewSegment(T, B)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	rng := rand.New(rand.NewPCG(1, 2))
	state := make([]float32, B*cfg.StateSize())
	for range 3 {
		in := randomInput(rng, T, B, cfg.Vocab)
		results = append(results, float32(run(t, s, in)))
		dev.Update(compute.Update{LR: 0.5}, m.Params(), m.Gradients(), nil, nil)
		results = append(results, download(m, m.Gradients())...)
		sum, _, err := s.Evaluate(in.Inputs, in.Targets)
		if err != nil {
			return nil, err
		}
		results = append(results, float32(sum))
		if err := s.State(state); err != nil {
			return nil, err
		}
		results = append(results, state...)
		slices.Reverse(state)
		if err := s.SetState(state); err != nil {
			return nil, err
		}
	}
	s.ZeroState()
	g, err := m.NewGenerator()
	if err != nil {
		return nil, err
	}
	defer g.Close()
	text, err := g.Generate(t.Context(), []int32{1, 2}, 5, Sampling{Temperature: 1, TopK: 4})
	for _, id := range text {
		results = append(results, float32(id))
	}
	return results, err
}
