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

// The parts depend on the shape and add up, however busy the machine is.
func TestKernels(t *testing.T) {
	oneHot := Shape{Cell: compute.LSTM, Hidden: 32, Layers: 1, Batch: 4, BPTT: 5, Vocab: 28}
	inLayers := []string{PartRecurrentForward, PartRecurrentBackward, PartInputForward,
		PartInputBackward, PartWeightGradient, PartGates}
	withoutInput := []string{PartRecurrentForward, PartRecurrentBackward, PartWeightGradient,
		PartGates}
	end := []string{PartOutput, PartClip, PartUpdate, PartStep}
	for _, c := range []struct {
		shape  Shape
		layers []string
		rest   []string
	}{
		{tiny(), inLayers, append([]string{PartLayers, PartEmbedding}, end...)},
		{oneHot, withoutInput, append([]string{PartLayers}, end...)},
	} {
		rows, err := NewMeter(1<<40).Kernels(t.Context(), newDevice(t), c.shape, time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		byName := map[string]KernelRow{}
		for _, r := range rows {
			names, byName[r.Part] = append(names, r.Part), r
			checkKernelRow(t, c.shape, r)
		}
		if want := slices.Concat(c.layers, c.rest); !slices.Equal(names, want) {
			t.Fatalf("%v: %q, want %q", c.shape, names, want)
		}
		sum := func(parts []string) (seconds, share float64) {
			for _, name := range parts {
				if r := byName[name]; r.Seconds.Known() {
					seconds += float64(r.Seconds)
					share += float64(r.Share)
				}
			}
			return seconds, share
		}
		near(t, "layers", byName[PartLayers].Seconds, first(sum(c.layers)))
		near(t, "step", byName[PartStep].Seconds, first(sum(c.rest[:len(c.rest)-1])))
		_, share := sum(c.rest[:len(c.rest)-1])
		near(t, "shares", Figure(share), 1)
		near(t, "operations of the output layer",
			byName[PartOutput].GFLOPS*byName[PartOutput].Seconds*1e9,
			float64(6*c.shape.Hidden*c.shape.Vocab*c.shape.Tokens()))
		step := byName[PartStep]
		near(t, "operations of the step", step.GFLOPS*step.Seconds*1e9,
			c.shape.Flops()*float64(c.shape.Tokens()))
		for _, name := range []string{PartClip, PartUpdate} {
			if r := byName[name]; r.GBPerSecond <= 0 || r.AddGBPerSecond <= 0 || !r.InCache {
				t.Errorf("%v: %+v", c.shape, r)
			}
		}
	}
}

func first(a, _ float64) float64 { return a }

func near(t *testing.T, what string, got Figure, want float64) {
	t.Helper()
	if math.Abs(float64(got)-want) > 1e-6*want {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// checkKernelRow fails for an impossible row. Only the gates may be hidden.
func checkKernelRow(t *testing.T, s Shape, r KernelRow) {
	t.Helper()
	if !r.Seconds.Known() {
		if r.Part != PartGates || r.Share.Known() || r.TokensPerSecond.Known() {
			t.Errorf("%v: %s is hidden: %+v", s, r.Part, r)
		}
		return
	}
	if r.Seconds <= 0 || r.Share <= 0 || r.Share > 1 || r.OfPeak < 0 || r.OfPeak > 1 {
		t.Errorf("%v: %s took %v s, %v of the step, at %v of the peak", s, r.Part, r.Seconds,
			r.Share, r.OfPeak)
	}
	near(t, r.Part+", tokens/s", r.TokensPerSecond, float64(s.Tokens())/float64(r.Seconds))
	if r.PeakGFLOPS != testPeak/1e9 {
		t.Errorf("%v: %s beside a peak of %v", s, r.Part, r.PeakGFLOPS)
	}
}

// No rate of the whole layer, the output layer and the products is above the peak, even if the
// measurement of the peak was disturbed.
func TestKernelsRaiseThePeak(t *testing.T) {
	rates := make([]float64, 100)
	dev := changingPeak{newDevice(t), 1, &rates} // sees no peak at all
	s := Shape{Cell: compute.LSTM, Hidden: 32, Layers: 1, Batch: 4, BPTT: 5, Vocab: 28}
	rows, err := NewMeter(0).Kernels(t.Context(), dev, s, time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		whole := r.Part == PartLayers || r.Part == PartOutput || r.Part == PartStep
		if r.PeakGFLOPS <= 0 || whole && (r.OfPeak <= 0 || r.OfPeak > 1) {
			t.Errorf("%s at %v of the peak, %v GFLOP/s", r.Part, r.OfPeak, r.PeakGFLOPS)
		}
		if r.InCache {
			t.Errorf("%s is in a cache that nobody knows", r.Part)
		}
	}
}

func TestKernelsAreInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	_, err := NewMeter(0).Kernels(ctx, newDevice(t), tiny(), time.Hour)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// Everything is given back.
func TestKernelsFree(t *testing.T) {
	dev := newDevice(t)
	if _, err := NewMeter(0).Kernels(t.Context(), dev, tiny(), time.Microsecond); err != nil {
		t.Fatal(err)
	}
	before, peak := dev.Bytes() // the products' memory is kept
	if _, err := NewMeter(0).Kernels(t.Context(), dev, tiny(), time.Microsecond); err != nil {
		t.Fatal(err)
	}
	if after, _ := dev.Bytes(); after != before || peak <= before {
		t.Errorf("%d bytes are held afterwards, %d before, at most %d", after, before, peak)
	}
}
