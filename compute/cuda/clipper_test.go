//go:build cuda

package cuda

import (
	"math"
	"math/rand/v2"
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
		if !d.queue.owed {
			t.Fatal("nobody would wait for the Replay")
		}
		// The softmax of zeros.
		if got, want := o.Sum(), 2*math.Log(4); math.Abs(got-want) > 1e-6 || d.queue.owed {
			t.Errorf("the loss is %v, want %v; to be waited for: %t", got, want, d.queue.owed)
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

// TestStepNodes counts what a GPU does one after another in a training step of the textbook's
// models: each kernel or copy of a graph takes a microsecond or two to start.
func TestStepNodes(t *testing.T) {
	for cell, most := range map[compute.Cell]int{compute.LSTM: 16, compute.GRU: 19} {
		d := newGPU(t, compute.BF16)
		s := compute.RecurrentShape{Cell: cell, T: 35, B: 32, D: 28, H: 256}
		p := newRecurrentProblem(s, false, rand.New(rand.NewPCG(23, 24)))
		p.withDout, p.withDx = false, false
		m := newLayerMemory(d, p)
		rows := s.T * s.B
		layer := d.NewRecurrent(s, false)
		last := d.NewOutput(compute.OutputShape{N: rows, H: s.H, V: s.D})
		w, b, dw, db := d.Alloc(s.D*s.H), d.Alloc(s.D), d.Alloc(s.D*s.H), d.Alloc(s.D)
		clip, by := d.NewClipper(), &compute.Clip{Limit: 1, Share: 1, LossLimit: 1e9}
		grads := d.Alloc(1000)
		made, err := d.Record(func() error {
			m.forward(layer)
			last.ForwardBackward(m.y, w, b, p.in.IDs, 1, m.dy, dw, db)
			m.backward(layer)
			clip.Clip(grads, by, &compute.Loss{Last: last})
			clip.Update(&compute.Update{LR: 1}, grads, grads, nil, nil)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		nodes := made.(*recording).graph.Nodes
		t.Logf("%v: %d nodes", cell, nodes)
		if nodes > most {
			t.Errorf("%v: a step has %d nodes, want %d at most", cell, nodes, most)
		}
		made.Close()
		for _, c := range []interface{ Close() }{clip, last, layer} {
			c.Close()
		}
		m.close()
	}
}
