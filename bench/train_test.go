package bench

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"rondo/compute"
	"rondo/compute/cpu"
	"rondo/train"
)

// knownPeak is a device with a known peak, above the rate that it reaches.
type knownPeak struct{ *cpu.Device }

const testPeak = 1e15

func (knownPeak) Peak(time.Duration) float64 { return testPeak }

func newDevice(t *testing.T) Device {
	t.Helper()
	dev, err := cpu.New(cpu.Config{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(dev.Close)
	return knownPeak{dev}
}

func tiny() Shape {
	return Shape{Cell: compute.GRU, Hidden: 8, Layers: 2, Batch: 3, BPTT: 4, Vocab: 7, Embed: 5}
}

func TestTrain(t *testing.T) {
	w := Windows{Length: time.Millisecond, Count: 3}
	row, err := NewMeter(0).Train(t.Context(), newDevice(t), tiny(), w)
	if err != nil {
		t.Fatal(err)
	}
	if len(row.Windows) != 3 || slices.Min(row.Windows) <= 0 {
		t.Errorf("windows %v", row.Windows)
	}
	if row.BestTokensPerSecond != slices.Max(row.Windows) ||
		!slices.Contains(row.Windows, row.TokensPerSecond) {
		t.Errorf("median %v and best %v of %v", row.TokensPerSecond, row.BestTokensPerSecond,
			row.Windows)
	}
	if want := row.TokensPerSecond * tiny().Flops() / 1e9; math.Abs(row.GFLOPS-want) > 1e-9*want {
		t.Errorf("%v GFLOP/s, want %v", row.GFLOPS, want)
	}
	if row.PeakGFLOPS != testPeak/1e9 || row.OfPeak != row.GFLOPS/row.PeakGFLOPS {
		t.Errorf("%v of the peak %v", row.OfPeak, row.PeakGFLOPS)
	}
	const parameters = 7*5 + (24*5 + 24*8 + 48) + (24*8 + 24*8 + 48) + 8*7 + 7
	if row.ParameterBytes != 4*parameters {
		t.Errorf("%d bytes of parameters, want %d", row.ParameterBytes, 4*parameters)
	}
	if row.PeakBytes < 2*row.ParameterBytes { // and their gradients
		t.Errorf("%d bytes held, of parameters %d", row.PeakBytes, row.ParameterBytes)
	}
	want := Case{Cell: "gru", Hidden: 8, Layers: 2, Batch: 3, BPTT: 4, Vocab: 7, Embed: 5,
		Precision: "fp32", Threads: 1}
	if row.Case != want {
		t.Errorf("%+v", row.Case)
	}
}

func TestTrainIsInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	_, err := NewMeter(0).Train(ctx, newDevice(t), tiny(), Windows{Length: time.Hour, Count: 1})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestRefuses(t *testing.T) {
	dev, good := newDevice(t), Windows{Length: time.Second, Count: 1}
	bad := tiny()
	bad.Vocab = 0
	if _, err := NewMeter(0).Train(t.Context(), dev, bad, good); err == nil ||
		!strings.HasPrefix(err.Error(), "--vocab 0") {
		t.Errorf("%v", err)
	}
	if _, err := NewMeter(0).Kernels(t.Context(), dev, bad, time.Second); err == nil ||
		!strings.HasPrefix(err.Error(), "--vocab 0") {
		t.Errorf("%v", err)
	}
	for want, w := range map[string]Windows{
		"--seconds 0:":   {Length: 0, Count: 1},
		"--seconds -1:":  {Length: -time.Second, Count: 1},
		"--seconds 7200": {Length: 2 * time.Hour, Count: 1},
		"--windows 0":    {Length: time.Second},
		"--windows 1001": {Length: time.Second, Count: 1001},
	} {
		if _, err := NewMeter(0).Train(t.Context(), dev, tiny(), w); err == nil ||
			!strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}

// Steps of 2 s in windows of 3 s: each has two, the first warms up, and it ends once.
func TestStopwatch(t *testing.T) {
	now := time.Unix(0, 0)
	ended := 0
	w := newStopwatch(6, Windows{Length: 3 * time.Second, Count: 2},
		func() time.Time { return now }, func(err error) {
			if !errors.Is(err, errEnough) {
				t.Error(err)
			}
			ended++
		})
	pace := []time.Duration{10, 1, 1, 2, 2, 3} // seconds of each step
	for i, seconds := range pace {
		if ended > 0 {
			t.Fatalf("ended before step %d", i)
		}
		now = now.Add(seconds * time.Second)
		w.Step(train.StepReport{})
	}
	if want := []float64{3 * 6 / 4.0, 2 * 6 / 5.0}; !slices.Equal(w.rates, want) || ended != 1 {
		t.Errorf("%v, ended %d times; want %v", w.rates, ended, want)
	}
}

// A lane's targets are its inputs one step later, for any choice of lanes.
func TestBatches(t *testing.T) {
	s := tiny()
	b := newBatches(s)
	all, targets := make([]int32, s.Tokens()), make([]int32, s.Tokens())
	if err := b.Fill(t.Context(), 3, 0, s.Batch, all, targets); err != nil {
		t.Fatal(err)
	}
	for at := range (s.BPTT - 1) * s.Batch {
		if targets[at] != all[at+s.Batch] {
			t.Errorf("target %d is %d, and the next input %d", at, targets[at], all[at+s.Batch])
		}
	}
	one, next := make([]int32, s.BPTT), make([]int32, s.BPTT)
	if err := b.Fill(t.Context(), 3+heldBatches, 1, 1, one, next); err != nil {
		t.Fatal(err)
	}
	for step := range s.BPTT {
		if one[step] != all[step*s.Batch+1] || next[step] != targets[step*s.Batch+1] {
			t.Errorf("step %d of lane 1 differs", step)
		}
	}
	if least, most := slices.Min(all), slices.Max(all); least < 0 || int(most) >= s.Vocab {
		t.Errorf("tokens %d to %d of %d", least, most, s.Vocab)
	}
}

// The same steps with less memory: only a part of the segment is held.
func TestTrainRecomputes(t *testing.T) {
	w := Windows{Length: time.Millisecond, Count: 1}
	s := tiny()
	s.BPTT = 64
	var held [2]int64
	for i, recompute := range []int{0, 4} {
		s.Recompute = recompute
		row, err := NewMeter(0).Train(t.Context(), newDevice(t), s, w)
		if err != nil {
			t.Fatal(err)
		}
		if held[i] = row.PeakBytes; row.Recompute != recompute {
			t.Errorf("%+v", row.Case)
		}
	}
	if held[1] >= held[0] {
		t.Errorf("%d bytes with --recompute 4, and %d without", held[1], held[0])
	}
}

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{{[]float64{3}, 3}, {[]float64{2, 1}, 1.5}, {[]float64{9, 1, 2}, 2}} {
		if got := Median(c.values); got != c.want {
			t.Errorf("Median(%v) = %v; want %v", c.values, got, c.want)
		}
	}
}
