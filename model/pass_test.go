package model

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"rondo/compute"
	"rondo/compute/cpu"
	"rondo/compute/devicetest"
)

// exampleNetwork is a labeller or a translator.
type exampleNetwork interface {
	network
	Finishes() []int
}

// checkPassFinishes holds the gradients that a pass reports as finished against those of a pass
// without Finished. They are final, and reported at the ends that Finishes lists.
func checkPassFinishes(t *testing.T, n exampleNetwork, run func(Hooks) (float64, error)) {
	t.Helper()
	if _, err := run(Hooks{}); err != nil {
		t.Fatal(err)
	}
	want := download(n, n.Gradients())
	got := make([]float32, len(want))
	for range 2 {
		ends := []int{0}
		_, err := run(Hooks{Finished: func(end int) {
			part := n.Gradients()[ends[len(ends)-1]:end]
			copy(got[ends[len(ends)-1]:], part)
			for i := range part {
				part[i] *= 3 // padding stays zero
			}
			ends = append(ends, end)
		}})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want) {
			t.Error("the reported gradients are not the final ones")
		}
		if !slices.Equal(ends[1:], n.Finishes()) {
			t.Errorf("reported the ends %v, want %v", ends[1:], n.Finishes())
		}
	}
}

// checkPassHooks stages the gradients of a pass, queues work behind it, and ends it before its
// backward pass.
func checkPassHooks(
	t *testing.T, n exampleNetwork, run func(Hooks) (float64, error),
	staged func() []compute.Staged,
) {
	t.Helper()
	dev := n.Device().(*devicetest.Stager)
	loss, err := run(Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	want := download(n, n.Gradients())
	host := dev.AllocHost(len(want))
	defer dev.FreeHost(host)
	for _, behind := range []bool{false, true} {
		hooks, parts := Hooks{Stage: host}, len(n.Finishes())
		if behind {
			hooks.Behind = func(sum *compute.Loss) {
				if got := sum.Sum(); got != loss {
					t.Errorf("behind a pass the loss is %v, not %v", got, loss)
				}
				dev.Scale(n.Gradients(), 2)
			}
			parts = 1
			for i := range want {
				want[i] *= 2
			}
		}
		if _, err := run(hooks); err != nil {
			t.Fatal(err)
		}
		for _, part := range staged() {
			part.Wait()
		}
		if len(staged()) != parts || !slices.Equal(host, want) {
			t.Errorf("behind %t: %d parts, want %d, or other gradients", behind, len(staged()),
				parts)
		}
	}
	broken := errors.New("it broke")
	_, err = run(Hooks{BeforeBackward: func() error { return broken }})
	if !errors.Is(err, broken) {
		t.Errorf("a pass that was ended: %v", err)
	}
	if _, err := run(Hooks{Finished: func(int) {}}); err == nil {
		t.Error("gradients of a stager were reported as finished")
	}
}

// checkPassDerivative compares the gradient with a central difference of the loss in its own
// direction. run's Scale is 1.
func checkPassDerivative(t *testing.T, n exampleNetwork, run func(Hooks) (float64, error)) {
	t.Helper()
	const step = 1e-3
	loss := func() float64 {
		loss, err := run(Hooks{})
		if err != nil {
			t.Fatal(err)
		}
		return loss
	}
	loss()
	norm := math.Sqrt(n.Device().SumSquares(n.Gradients()))
	g, params := download(n, n.Gradients()), download(n, n.Params())
	at := func(h float64) float64 {
		moved := slices.Clone(params)
		for i := range moved {
			moved[i] += float32(h / norm * float64(g[i]))
		}
		n.Device().Upload(n.Params(), moved)
		return loss()
	}
	got := (at(step) - at(-step)) / (2 * step)
	if e := math.Abs(got-norm) / norm; e > 5e-3 {
		t.Errorf("the loss grows by %v, the gradient's norm is %v", got, norm)
	}
}

// checkLack lets the device run out of memory at each object of use in turn: there is an error of
// one line of at most so many bytes, and no memory leaks.
func checkLack(t *testing.T, most int, use func(compute.Device) ([]float32, error)) {
	t.Helper()
	base := newDevice(t).(*cpu.Device)
	if _, err := use(base); err != nil {
		t.Fatal(err)
	}
	own, _ := base.Bytes()
	for room := 0; ; room++ {
		_, err := use(&scarce{base, room})
		if err == nil {
			if room < 30 {
				t.Errorf("everything was made of %d objects", room)
			}
			return
		}
		if _, lack := errors.AsType[*compute.MemoryError](err); !lack || len(err.Error()) > most ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("room for %d: %v", room, err)
		}
		if now, _ := base.Bytes(); now != own {
			t.Errorf("room for %d: %d bytes are still held after %v", room, now-own, err)
		}
	}
}
