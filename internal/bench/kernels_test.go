package bench

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"rondo/compute"
)

func TestKernels(t *testing.T) {
	oneHot := Shape{Cell: compute.LSTM, Hidden: 32, Layers: 1, Batch: 4, BPTT: 5, Vocab: 28}
	for _, s := range []Shape{tiny(), oneHot} {
		rows, err := Kernels(t.Context(), newDevice(t), s, time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		byName := map[string]KernelRow{}
		layers, whole := 0.0, 0.0 // seconds
		for _, r := range rows {
			byName[r.Part] = r
			switch r.Part {
			case PartRecurrentForward, PartRecurrentBackward, PartInputForward, PartInputBackward,
				PartWeightGradient, PartGates:
				layers += r.Seconds
			case PartStep:
			default:
				whole += r.Seconds
			}
			if r.Seconds == 0 && layers > 0 {
				continue // a difference that the machine's noise has swallowed
			}
			if r.Seconds < 0 || r.Share <= 0 || r.Share > 1 {
				t.Errorf("%v: %s took %v s, %v of the step", s, r.Part, r.Seconds, r.Share)
			}
			want := float64(s.Tokens()) / r.Seconds
			if math.Abs(r.TokensPerSecond-want) > 1e-6*want {
				t.Errorf("%v: %s at %v tokens/s, want %v", s, r.Part, r.TokensPerSecond, want)
			}
		}
		near := func(what string, got, want float64) {
			if math.Abs(got-want) > 1e-6*want {
				t.Errorf("%v: %s %v, want %v", s, what, got, want)
			}
		}
		near("seconds of the layers", byName[PartLayers].Seconds, layers)
		near("seconds of the step", byName[PartStep].Seconds, whole)
		near("operations of the output layer",
			byName[PartOutput].GFLOPS*byName[PartOutput].Seconds*1e9,
			float64(6*s.Hidden*s.Vocab*s.Tokens()))
		step := byName[PartStep]
		near("operations of the step", step.GFLOPS*step.Seconds*1e9,
			s.Flops()*float64(s.Tokens()))
		near("fraction", step.OfPeak, step.GFLOPS/5)
		if update := byName[PartUpdate]; update.GBPerSecond <= 0 || update.TriadGBPerSecond <= 0 {
			t.Errorf("%v: the update: %+v", s, update)
		}
		_, embeds := byName[PartEmbedding]
		if embeds != (s.Embed > 0) {
			t.Errorf("%v: an embedding is measured: %t", s, embeds)
		}
	}
}

func TestKernelsAreInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	_, err := Kernels(ctx, newDevice(t), tiny(), time.Hour)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// Everything is given back.
func TestKernelsFree(t *testing.T) {
	dev := newDevice(t)
	before, _ := dev.Bytes()
	if _, err := Kernels(t.Context(), dev, tiny(), time.Microsecond); err != nil {
		t.Fatal(err)
	}
	if after, peak := dev.Bytes(); after != before || peak <= before {
		t.Errorf("%d bytes are held afterwards, %d before, at most %d", after, before, peak)
	}
}

func TestAddScaled(t *testing.T) {
	for _, threads := range []int{1, 2, 3, 9} {
		y, x := []float32{1, 2, 3, 4, 5, 6, 7}, []float32{7, 6, 5, 4, 3, 2, 1}
		addScaled(threads, y, x, 2)
		if want := []float32{15, 14, 13, 12, 11, 10, 9}; !slices.Equal(y, want) {
			t.Errorf("%d threads: %v, want %v", threads, y, want)
		}
	}
}
