//go:build cuda

package cuda

import (
	"math"
	"testing"

	"rondo/compute"
)

// TestOneWait replays a loss, a clip and a copy aside: who has waited for one of them need not wait
// for the others, and who reads after another Replay waits again.
func TestOneWait(t *testing.T) {
	d := newGPU(t, compute.FP32)
	const n = 1000
	shape := compute.OutputShape{N: 2, H: 3, V: 4}
	x, w, g, host := d.Alloc(6), d.Alloc(12), d.Alloc(n), d.AllocHost(n)
	o, c := d.NewOutput(shape), d.NewClipper()
	defer o.Close()
	defer c.Close()
	loss, by := &compute.Loss{Last: o}, &compute.Clip{Limit: 1, Share: 1, LossLimit: 10}
	var wait func()
	r, err := d.Record(func() error {
		o.Forward(x, w, nil, []int32{1, 2})
		c.Clip(g, by, loss)
		wait = d.StartDownload(host, g)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for i := 1; i <= 3; i++ {
		d.Upload(g, append(make([]float32, n-1), float32(i+1)))
		r.Replay()
		if !d.owed {
			t.Fatal("nobody would wait for the Replay")
		}
		// The softmax of zeros.
		if got, want := o.Sum(), 2*math.Log(4); math.Abs(got-want) > 1e-6 || d.owed {
			t.Errorf("the loss is %v, want %v; to be waited for: %t", got, want, d.owed)
		}
		if got := c.Norm(); got != float64(i+1) {
			t.Errorf("the norm is %v, want %d", got, i+1)
		}
		wait()
		if host[n-1] != float32(i+1)*float32(1/float64(i+1)) {
			t.Errorf("%d: the copy has %v", i, host[n-1])
		}
	}
}

// TestClipOfAnother wants to be told that a loss is not this device's.
func TestClipOfAnother(t *testing.T) {
	d, host := newGPU(t, compute.FP32), newCPU(t, compute.FP32)
	o, c := host.NewOutput(compute.OutputShape{N: 1, H: 1, V: 1}), d.NewClipper()
	defer o.Close()
	defer c.Close()
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	c.Clip(d.Alloc(1), &compute.Clip{Share: 1}, &compute.Loss{Last: o})
}
