//go:build cuda

package cuda

import (
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"rondo/compute"
)

// mostRegisters is how many a multiprocessor's blocks share.
const mostRegisters = 64 << 10

// TestKernelUse compiles every module with the driver's compiler, which is not the one that the
// kernels are checked with, and logs the seconds and what each kernel takes. No kernel has local
// memory, and each can be launched with the largest block that it is declared for.
func TestKernelUse(t *testing.T) {
	d := newGPU(t, compute.FP32)
	for i := range d.queue.kernels.modules {
		m := &d.queue.kernels.modules[i]
		began := time.Now()
		loaded, err := d.queue.context.Load(m.PTX)
		if err != nil {
			t.Fatalf("%s: %v", m.Name, err)
		}
		m.loaded = loaded
		t.Logf("%s compiled in %.2f s", m.Name, time.Since(began).Seconds())
	}
	for _, name := range slices.Sorted(maps.Keys(d.queue.kernels.of)) {
		k := d.queue.kernel(name)
		use, err := k.Use()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		resident, err := k.Resident(use.Threads, 0)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		t.Logf("%-28s %3d registers, %4d bytes of local memory, %d blocks of %d threads a "+
			"multiprocessor", name, use.Registers, use.Local, resident, use.Threads)
		if use.Local > 0 {
			t.Errorf("%s has %d bytes of local memory a thread", name, use.Local)
		}
		if resident < 1 || use.Registers*use.Threads > mostRegisters {
			t.Errorf("%s with %d registers: no block of %d threads can start", name,
				use.Registers, use.Threads)
		}
		if strings.HasPrefix(name, "persistent_") && use.Threads != persistentThreads {
			t.Errorf("%s is for %d threads, and launched with %d", name, use.Threads,
				persistentThreads)
		}
	}
}

// TestActivations checks the errors that cells.cuh states: those of the GPU's approximations here,
// and on the emulated driver the largest that these may have.
func TestActivations(t *testing.T) {
	d := newGPU(t, compute.FP32)
	const n = 1 << 16
	xs := []float32{0, float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN())}
	for i := len(xs); i < n; i++ { // from 2^-20 to 2^7, of both signs
		x := math.Exp2(27*float64(i)/n - 20)
		xs = append(xs, float32(math.Copysign(x, float64(i%2)-0.5)))
	}
	sums, got := d.Alloc(4*n), make([]float32, 4*n)
	zeros, states := d.Alloc(4*n), d.Alloc(2*n)
	for gate := range 4 {
		d.Upload(sums[gate*n:(gate+1)*n], xs)
	}
	d.queue.launch("cell_lstm_forward", across(blocksFor(n, cellBlock), cellBlock), sums, zeros,
		zeros, zeros, states[:n], states[n:], []float32(nil), int32(1), int32(n),
		int32(compute.LSTM), int32(0), flag(false))
	d.Download(got, sums)
	const input, candidate = 0, 2   // LSTM's gates i, of sigmoid, and g, of tanh
	var sigmoidOff, tanhOff float64 // absolute, relative
	for i, x := range xs {
		x := float64(x)
		sigmoid, tanh := float64(got[input*n+i]), float64(got[candidate*n+i])
		if math.IsNaN(x) {
			if !math.IsNaN(sigmoid) || !math.IsNaN(tanh) {
				t.Errorf("of NaN: sigmoid %v, tanh %v", sigmoid, tanh)
			}
			continue
		}
		off := math.Abs(sigmoid - 1/(1+math.Exp(-x)))
		sigmoidOff = max(sigmoidOff, off) // NaN, if one is
		off = math.Abs(tanh - math.Tanh(x))
		if x != 0 {
			off /= math.Abs(math.Tanh(x))
		}
		tanhOff = max(tanhOff, off)
	}
	t.Logf("largest errors: sigmoid %.2g, tanh %.2g of its value", sigmoidOff, tanhOff)
	if !(sigmoidOff <= 3e-7 && tanhOff <= 6e-7) {
		t.Error("that is more than 3e-7, or 6e-7")
	}
}
