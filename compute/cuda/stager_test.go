//go:build cuda

package cuda

import (
	"testing"

	"rondo/compute"
)

// TestFinishAside waits, as before anything is freed, for copies aside, too.
func TestFinishAside(t *testing.T) {
	d := newGPU(t, compute.FP32)
	x, host := d.Alloc(1000), d.AllocHost(1000)
	d.Upload(x, numbers(1000, 1))
	d.StartDownload(host, x)
	d.queue.finish("freeing")
	wantSame(t, "the copy", host, numbers(1000, 1))
}

// TestCloseAside closes a device while a copy aside is under way and another is recorded. A second
// Device has the same context, in which a copy to memory that is no longer there would be a fault.
func TestCloseAside(t *testing.T) {
	a, b := newGPU(t, compute.FP32), newGPU(t, compute.FP32)
	y := b.Alloc(100)
	b.Upload(y, numbers(100, 7))
	x, host := a.Alloc(1000), a.AllocHost(1000)
	r, err := a.Record(func() error { a.StartDownload(host, x); return nil })
	if err != nil {
		t.Fatal(err)
	}
	r.Replay()
	a.StartDownload(host, x)
	a.Close()
	if s := a.queue.copyStream; s.stream != nil || s.fork != nil || len(s.events) > 0 {
		t.Errorf("left over: %+v", s)
	}
	if tensors, workspaces := a.memory.made(); tensors != 0 || workspaces != 0 {
		t.Errorf("left over: %d tensors and %d workspaces", tensors, workspaces)
	}
	scale(b, y, 1)
	expect(t, "the other device's", b, y, numbers(100, 7))
}
