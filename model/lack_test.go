package model

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"rondo/compute"
	"rondo/compute/cpu"
)

// scarce is a device that can make only a limited number of objects.
type scarce struct {
	*cpu.Device
	left int
}

func (d *scarce) take(what string) {
	if d.left--; d.left < 0 {
		panic(&compute.MemoryError{What: what, Bytes: 1 << 40})
	}
}

func (d *scarce) Alloc(n int) []float32 {
	if n > 0 {
		d.take("a tensor")
	}
	return d.Device.Alloc(n)
}

func (d *scarce) NewRecurrent(s compute.RecurrentShape, inference bool) compute.Recurrent {
	d.take("a layer")
	return d.Device.NewRecurrent(s, inference)
}

func (d *scarce) NewOutput(s compute.OutputShape) compute.Output {
	d.take("an output")
	return d.Device.NewOutput(s)
}

func (d *scarce) Gemm(transA, transB bool, m, n, k int, alpha float32, a, b []float32,
	beta float32, c []float32) {
	d.take("a product")
	d.Device.Gemm(transA, transB, m, n, k, alpha, a, b, beta, c)
}

// use makes and runs everything that a model offers, once.
func use(cfg Config, dev compute.Device) (err error) {
	const T, B = 7, 3
	m, err := New(cfg, dev)
	if err != nil {
		return err
	}
	defer m.Close()
	s, err := m.NewSegment(T, B)
	if err != nil {
		return err
	}
	defer s.Close()
	in := randomInput(rand.New(rand.NewPCG(1, 2)), T, B, cfg.Vocab)
	if _, err := s.Run(in); err != nil {
		return err
	}
	if _, _, err := s.Evaluate(in.Inputs, in.Targets); err != nil {
		return err
	}
	g, err := m.NewGenerator(1)
	if err != nil {
		return err
	}
	defer g.Close()
	_, err = g.Generate(context.Background(), []int32{1, 2}, 3, Sampling{Greedy: true})
	return err
}

// TestLackOfMemory lets the device run out of memory at each object in turn. Each time there is an
// error of one line that names the object, and no memory leaks.
func TestLackOfMemory(t *testing.T) {
	cfg := shapes()["gru/3/tied-projected"]
	cfg.Recompute = 3
	base := newDeviceOf(t, compute.FP32).(*cpu.Device)
	if err := use(cfg, base); err != nil {
		t.Fatal(err)
	}
	own, _ := base.Bytes() // the device's own
	for room := 0; ; room++ {
		err := use(cfg, &scarce{base, room})
		if err == nil {
			if room < 30 {
				t.Errorf("all that there is was made of %d things", room)
			}
			return
		}
		_, lack := errors.AsType[*compute.MemoryError](err)
		if !lack || len(err.Error()) > 200 || strings.Contains(err.Error(), "\n") ||
			!strings.HasSuffix(err.Error(), ": 1099511627776 bytes or more") {
			t.Errorf("room for %d: %v", room, err)
		}
		if now, _ := base.Bytes(); now != own {
			t.Errorf("room for %d: %d bytes are still held after %v", room, now-own, err)
		}
	}
}

// TestTooLarge requests more memory than any machine has.
func TestTooLarge(t *testing.T) {
	dev := newDeviceOf(t, compute.FP32)
	if strings.Contains(dev.Name(), "pure Go") {
		t.Skip("Go ends a process that asks for more memory than there is")
	}
	_, err := New(Config{Cell: compute.LSTM, Vocab: 1 << 30, Embed: 65536, Hidden: 65536,
		Layers: 64}, dev)
	if err == nil || !strings.Contains(err.Error(), "vocabulary 1073741824, embedding 65536: no "+
		"memory for a tensor of ") {
		t.Errorf("a model of half a petabyte: %v", err)
	}
	if now, _ := dev.(*cpu.Device).Bytes(); now != 0 {
		t.Errorf("%d bytes are held", now)
	}
}
