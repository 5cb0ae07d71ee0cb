package cpu

import (
	"slices"
	"testing"

	"rondo/compute"
)

// A device that was made with three threads does with fewer what it does with all, to the bit, in
// the same workspaces.
func TestSetThreads(t *testing.T) {
	const T, B, D, H, V = 4, 40, 70, 70, 50
	d := newDevice(t, "", Config{Threads: 3})
	can := d.Threads() // 1 without cgo
	shape := compute.RecurrentShape{Cell: compute.LSTM, T: T, B: B, D: D, H: H}
	layer := d.NewRecurrent(shape, false)
	head := d.NewOutput(compute.OutputShape{N: T * B, H: H, V: V})
	defer layer.Close()
	defer head.Close()
	rng := newRandom(t)
	draw := func(n int) []float32 {
		x := d.Alloc(n)
		for i := range x {
			x[i] = rng.Float32() - 0.5
		}
		return x
	}
	weights := func(make func(int) []float32) compute.RecurrentWeights {
		return compute.RecurrentWeights{IH: make(4 * H * D), HH: make(4 * H * H),
			BiasIH: make(4 * H), BiasHH: make(4 * H)}
	}
	w, dw, x, y, dy := weights(draw), weights(d.Alloc), draw(T*B*D), d.Alloc(T*B*H), draw(T*B*H)
	state := func() compute.RecurrentState {
		return compute.RecurrentState{H: d.Alloc(B * H), C: d.Alloc(B * H)}
	}
	before, after, dx := state(), state(), d.Alloc(T*B*D)
	v, bias, targets := draw(V*H), draw(V), make([]int32, T*B)
	dv, dbias, dh, product := d.Alloc(V*H), d.Alloc(V), d.Alloc(T*B*H), d.Alloc(T*B*V)
	var want []float32
	for _, threads := range []int{3, 1, 2, 3} {
		if err := d.SetThreads(threads); err != nil || d.Threads() != min(threads, can) {
			t.Fatalf("%d threads, want %d of %d: %v", d.Threads(), threads, can, err)
		}
		layer.Forward(w, compute.RecurrentInput{X: x}, before, y, after)
		layer.Backward(dy, compute.RecurrentState{}, dw, dx, compute.RecurrentState{})
		head.ForwardBackward(y, v, bias, targets, 1, dh, dv, dbias)
		d.Gemm(false, true, T*B, V, H, 1, y, v, 0, product)
		got := slices.Concat(y, after.C, dw.IH, dw.HH, dw.BiasIH, dx, dh, dv, dbias, product,
			[]float32{float32(head.Sum())})
		if want == nil {
			want = got
		}
		if !slices.Equal(got, want) {
			t.Errorf("%d threads compute something else", threads)
		}
	}
	for _, threads := range []int{0, 4} {
		if d.SetThreads(threads) == nil {
			t.Errorf("%d threads were taken", threads)
		}
	}
}
