//go:build cuda

package cuda

import (
	"errors"
	"strings"
	"testing"

	"rondo/compute"
)

func TestMemory(t *testing.T) {
	d := newGPU(t, compute.FP32)
	for _, n := range []int{1, 15, 16, 17, 1<<20 + 3} {
		x := d.Alloc(n)
		if len(x) != n || uintptr(at(x))%64 != 0 {
			t.Errorf("Alloc(%d): %d elements at %p", n, len(x), at(x))
		}
		expect(t, "Alloc", d, x, make([]float32, n))
		d.Upload(x, numbers(n, 5))
		expect(t, "Upload", d, x, numbers(n, 5))
		d.Zero(x[n/2:])
		expect(t, "Zero, before", d, x[:n/2], numbers(n/2, 5))
		expect(t, "Zero", d, x[n/2:], make([]float32, n-n/2))
		d.Free(x)
	}
	empty := d.Alloc(0)
	d.Upload(empty, nil)
	d.Download(nil, empty)
	d.Zero(empty)
	d.Free(empty)
	x, workspace := d.Alloc(8), d.memory.malloc(32)
	host := make([]float32, 8)
	for want, f := range map[string]func(){
		"cuda: Alloc of -1 elements":            func() { d.Alloc(-1) },
		"Free of 8 elements at":                 func() { d.Free(host) },
		"Free of 7 elements at":                 func() { d.Free(x[1:]) },
		"which malloc did not give":             func() { d.memory.release(at(x)) },
		"Free of 6 elements at":                 func() { d.Free(floats(workspace, 6)) },
		"Upload: lengths 8 and 7 differ":        func() { d.Upload(x, host[:7]) },
		"Download: lengths 7 and 8 differ":      func() { d.Download(host[:7], x) },
		"a workspace of 0 bytes has no memory":  func() { d.memory.malloc(0) },
		"a workspace of -4 bytes has no memory": func() { d.memory.malloc(-4) },
	} {
		if text := panicOf(f); !strings.Contains(text, want) {
			t.Errorf("panic %q, want %q", text, want)
		}
	}
	d.Free(x)
	d.memory.release(workspace)
	d.memory.release(nil)
}

// TestOutOfMemory asks for more than there is; the device goes on afterwards.
func TestOutOfMemory(t *testing.T) {
	d := newGPU(t, compute.FP32)
	x := d.Alloc(10)
	d.Upload(x, numbers(10, 1))
	before, _ := d.Bytes()
	tensors, workspaces := d.memory.made()
	n := int(d.Info().Memory/4) + 1
	for name, f := range map[string]func(){
		"a tensor of ":    func() { d.Alloc(n) },
		"a workspace of ": func() { d.memory.malloc(4 * n) },
		"a scratch of ":   func() { d.memory.scratch(4 * n) },
	} {
		err := failureOf(f)
		lack, ok := errors.AsType[*compute.MemoryError](err)
		if !ok || lack.Bytes < int64(4*n) || lack.Total != d.Info().Memory || lack.Free < 1 ||
			lack.Free > lack.Total || !strings.HasPrefix(lack.What, name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if now, _ := d.Bytes(); now != before {
		t.Errorf("%d bytes, %d before what was refused", now, before)
	}
	if a, b := d.memory.made(); a != tensors || b != workspaces {
		t.Errorf("%d tensors and %d workspaces; %d and %d before", a, b, tensors, workspaces)
	}
	scale(d, x, 1)
	expect(t, "afterwards", d, x, numbers(10, 1))
}

func TestBytes(t *testing.T) {
	d := newGPU(t, compute.FP32)
	tensors, workspaces := d.memory.made()
	before, _ := d.Bytes()
	x, y := d.Alloc(100), d.Alloc(1)
	p, words, sum := d.memory.malloc(1000), d.memory.newStaged(60), d.memory.newResult()
	if now, peak := d.Bytes(); now != before+400+4+1000+60 || peak != now {
		t.Errorf("%d bytes, %d at most, %d before", now, peak, before)
	}
	if a, b := d.memory.made(); a != tensors+2 || b != workspaces+5 {
		t.Errorf("%d tensors and %d workspaces; %d and %d before", a, b, tensors, workspaces)
	}
	_, peak := d.Bytes()
	d.Free(x)
	d.Free(y)
	d.memory.release(p)
	for range 2 {
		words.close()
		sum.close()
	}
	if now, after := d.Bytes(); now != before || after != peak {
		t.Errorf("%d bytes, %d before; %d at most, then %d", now, before, peak, after)
	}
	if a, b := d.memory.made(); a != tensors || b != workspaces {
		t.Errorf("%d tensors and %d workspaces left; %d and %d before", a, b, tensors, workspaces)
	}
	if text := panicOf(func() { words.put(nil) }); !strings.Contains(text, "has been closed") {
		t.Errorf("put after close: %q", text)
	}
}

// TestLeftOver closes a device to which nothing was given back.
func TestLeftOver(t *testing.T) {
	d := newGPU(t, compute.FP32)
	d.Alloc(1 << 20)
	scale(d, d.Alloc(1000), 2)
	d.memory.malloc(1 << 20)
	d.memory.scratch(1 << 20)
	words, sum := d.memory.newStaged(100), d.memory.newResult()
	words.put(func(host []byte) { clear(host) })
	recording, err := d.Record(func() error { words.put(func([]byte) {}); return nil })
	if err != nil {
		t.Fatal(err)
	}
	d.Close()
	d.Close() // does no harm
	if now, _ := d.Bytes(); now != 0 {
		t.Errorf("a closed device holds %d bytes", now)
	}
	if tensors, workspaces := d.memory.made(); tensors != 0 || workspaces != 0 {
		t.Errorf("a closed device has %d tensors and %d workspaces", tensors, workspaces)
	}
	words.close() // after the device, as of a layer that is closed too late
	sum.close()
	recording.Close()
}

// TestScratch grows: what is under way still has the smaller one.
func TestScratch(t *testing.T) {
	d := newGPU(t, compute.FP32)
	before, _ := d.Bytes()
	out := d.Alloc(200)
	small := floats(d.memory.scratch(400), 100)
	d.Upload(small, numbers(100, 3))
	d.queue.check("copying", d.queue.stream.Copy(at(out), at(small), 400))
	large := d.memory.scratch(scratchStep + 1)
	if again := d.memory.scratch(scratchStep); again != large {
		t.Errorf("the scratch moved from %p to %p without need", large, again)
	}
	if now, _ := d.Bytes(); now != before+800+2*scratchStep {
		t.Errorf("%d bytes, %d before", now, before)
	}
	expect(t, "from the smaller", d, out[:100], numbers(100, 3))
}

// made counts what was made and not given back: tensors, and everything else, the host's pinned
// memory included. What the Device has for itself is in it.
func (m *memory) made() (tensors, workspaces int) {
	for _, b := range m.blocks {
		if b.tensor {
			tensors++
		}
	}
	return tensors, len(m.blocks) - tensors + len(m.slots)
}
