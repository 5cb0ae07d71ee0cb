package cpu

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"rondo/compute"
)

// narrow copies to device memory; nil stays nil.
func narrow(d *Device, x []float64) []float32 {
	if x == nil {
		return nil
	}
	y := d.Alloc(len(x))
	for i, v := range x {
		y[i] = float32(v)
	}
	return y
}

// wide copies to float64.
func wide(x []float32) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}

// junk is device memory that holds NaN, for what a call must overwrite; nil when there is none.
func junk(d *Device, n int) []float32 {
	if n == 0 {
		return nil
	}
	x := d.Alloc(n)
	for i := range x {
		x[i] = float32(math.NaN())
	}
	return x
}

// TestStepAllocates says that a training step allocates nothing once it has run.
func TestStepAllocates(t *testing.T) {
	for _, p := range precisions {
		d := newDevice(t, "", Config{Threads: 2, Precision: p})
		for _, cell := range compute.Cells() {
			s := compute.RecurrentShape{Cell: cell, T: 3, B: 2, D: 7, H: 9}
			m := newStepModel(d, s, rand.New(rand.NewPCG(1, 2)))
			if n := testing.AllocsPerRun(20, func() { m.step() }); n != 0 {
				t.Errorf("%v in %s: %v allocations a step", cell, p, n)
			}
			m.close()
		}
	}
}

func TestFreeOfOtherMemory(t *testing.T) {
	d := newDevice(t, "", Config{Threads: 1})
	defer func() {
		if s, ok := recover().(string); !ok || !strings.Contains(s, "Alloc did not give") {
			t.Errorf("Free of other memory: %v", s)
		}
	}()
	d.Free(make([]float32, 4))
}

func TestConfig(t *testing.T) {
	for _, threads := range []int{-1, 0, maxThreads + 1} {
		if _, err := New(Config{Threads: threads}); err == nil {
			t.Errorf("%d threads: no error", threads)
		}
	}
	t.Setenv(isaEnvironment, "sse9")
	if _, err := New(Config{Threads: 1}); err == nil || !strings.Contains(err.Error(), "sse9") {
		t.Errorf("an unknown instruction set: %v", err)
	}
	for _, isa := range isaNames() {
		t.Setenv(isaEnvironment, isa)
		d, err := New(Config{Threads: 1})
		if err == nil {
			d.Close()
			continue
		}
		if _, advice, _ := strings.Cut(err.Error(), ": give "); strings.Contains(advice, isa) {
			t.Errorf("the advice for %s: %v", isa, err)
		}
	}
	t.Setenv(isaEnvironment, "")
	d, err := New(Config{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	pure := strings.Contains(d.Name(), "pure Go")
	if pure != strings.Contains(d.Name(), "slower") || pure != (d.Threads() == 1) ||
		pure == strings.HasSuffix(d.Name(), "; 2 threads)") {
		t.Errorf("name %q of %d threads", d.Name(), d.Threads())
	}
	if err := d.SetThreads(1); err != nil || strings.Contains(d.Name(), "threads") {
		t.Errorf("name %q of one thread (%v)", d.Name(), err)
	}
}

// TestBytes counts tensors and workspaces, and what they were at most.
func TestBytes(t *testing.T) {
	onDevices(t, func(t *testing.T, d *Device) {
		x := d.Alloc(100)
		d.Gemm(false, true, 10, 10, 10, 1, x, x, 0, d.Alloc(100))
		own := d.backend.bytes()
		if now, _ := d.Bytes(); now != 800+own || own == 0 && !strings.Contains(d.Name(), "pure") {
			t.Errorf("%d bytes with two tensors of 400 and a product's workspace of %d", now, own)
		}
		before, _ := d.Bytes()
		s := compute.RecurrentShape{Cell: compute.LSTM, T: 3, B: 2, D: 7, H: 9}
		m := newStepModel(d, s, rand.New(rand.NewPCG(1, 2)))
		tensors := int64(4 * (2*len(m.params) + 2*len(m.y) + 4*len(m.state.H)))
		m.step()
		during, peak := d.Bytes()
		if least := int64(4 * s.T * s.B * (4 + 2) * s.H); during-before-tensors < least {
			t.Errorf("%d bytes of workspaces, which hold gates and states of %d",
				during-before-tensors, least)
		}
		m.close()
		m.close() // counts nothing twice
		grown := d.backend.bytes() - own
		want := before + tensors + grown
		if now, after := d.Bytes(); now != want || after != peak || peak < during {
			t.Errorf("%d bytes, want %d; at most %d, then %d", now, want, peak, after)
		}
		d.Free(x)
		if now, _ := d.Bytes(); now != want-400 {
			t.Errorf("%d bytes, want %d less 400", now, want)
		}
		d.Close()
		if now, _ := d.Bytes(); now != 0 {
			t.Errorf("a closed device holds %d bytes", now)
		}
	})
}
