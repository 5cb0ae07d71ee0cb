package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"rondo/bench"
	"rondo/compute"
)

// measurement is how fast this GPU trains, and how fast it could at the most.
type measurement struct {
	bench.TrainRow
	Shape string `json:"shape"` // as key writes it
	// UsedBytes is the decrease of the driver's free memory, from none of this process in use to
	// the end.
	UsedBytes int64 `json:"used_bytes"`
	// Floor is in tokens a second: of a step that takes no more than its products at the peak
	// that Gemm reached, or than Chain.
	Floor float64 `json:"floor"`
	// Chain is the lower bound, in seconds, that the steps' dependence on each other sets: T L
	// times a step, forward and backward, of the same layer with one lane, where only latency
	// counts.
	Chain float64 `json:"chain"`
}

// gpu is a device that is measured.
type gpu struct {
	compute.Recorder
	memory    func() (now, peak int64)
	used      func() (int64, error) // bytes that the driver has given, to anyone
	precision compute.Precision
	width     int // of the matrices that Peak multiplies
}

// peakWidth is large enough for a GPU to be as fast as it can be.
const peakWidth = 4096

func (g gpu) Threads() int                 { return 1 }
func (g gpu) Bytes() (now, peak int64)     { return g.memory() }
func (g gpu) Precision() compute.Precision { return g.precision }

// HostMemory tells bench that the device has its own memory.
func (g gpu) HostMemory() bool { return false }

// wait waits for the device.
func (g gpu) wait(x []float32) { g.SumSquares(x[:1]) }

// Peak is the rate of a product of large matrices, for there is no instruction to time alone.
func (g gpu) Peak(window time.Duration) float64 {
	n := g.width
	a, b, c := g.random(n*n), g.random(n*n), g.Alloc(n*n)
	defer func() {
		for _, x := range [][]float32{a, b, c} {
			g.Free(x)
		}
	}()
	product := func() { g.Gemm(false, true, n, n, n, 1, a, b, 0, c) }
	product()
	g.wait(c)
	began, times := time.Now(), 0
	for time.Since(began) < window {
		for range 4 {
			product()
		}
		g.wait(c)
		times += 4
	}
	wide := float64(n)
	return float64(times) * 2 * wide * wide * wide / time.Since(began).Seconds()
}

// random is device memory of numbers in [-0.1, 0.1).
func (g gpu) random(n int) []float32 {
	host, dice := make([]float32, n), rand.New(rand.NewPCG(1, 2))
	for i := range host {
		host[i] = 0.2*dice.Float32() - 0.1
	}
	x := g.Alloc(n)
	g.Upload(x, host)
	return x
}

// chain is the least time of a layer's step, forward and backward, in seconds. It is the difference
// between two lengths, so that the fixed cost of a segment does not count.
func (g gpu) chain(cell compute.Cell, hidden int) float64 {
	const short, long = 128, 512
	return (g.segment(cell, hidden, long) - g.segment(cell, hidden, short)) / (long - short)
}

// segment is the shortest time of a segment of one lane, there and back.
func (g gpu) segment(cell compute.Cell, hidden, steps int) float64 {
	const rounds = 20
	var held [][]float32
	random := func(n int) []float32 {
		held = append(held, g.random(n))
		return held[len(held)-1]
	}
	defer func() {
		for _, x := range held {
			g.Free(x)
		}
	}()
	s := compute.RecurrentShape{Cell: cell, T: steps, B: 1, D: hidden, H: hidden}
	w, dw, before, after := s.Weights(random), s.Weights(random), s.State(random), s.State(random)
	y, dy := random(steps*hidden), random(steps*hidden)
	layer := g.NewRecurrent(s, false)
	defer layer.Close()
	in := compute.RecurrentInput{X: random(steps * hidden)}
	least := math.Inf(1)
	for range rounds {
		began := time.Now()
		layer.Forward(w, in, before, y, after)
		layer.Backward(dy, compute.RecurrentState{}, dw, nil, compute.RecurrentState{})
		g.wait(y)
		least = min(least, time.Since(began).Seconds())
	}
	return least
}

// measure measures a shape.
func (g gpu) measure(ctx context.Context, s bench.Shape, w bench.Windows) (
	m measurement, err error) {
	defer compute.Catch(&err)
	meter := bench.NewMeter(0)
	if m.TrainRow, err = meter.Train(ctx, g, s, w); err != nil {
		return m, err
	}
	m.Shape = key(s)
	if m.UsedBytes, err = g.used(); err != nil {
		return m, err
	}
	m.Chain = float64(s.BPTT*s.Layers) * g.chain(s.Cell, s.Hidden)
	products := float64(s.Tokens()) * s.Flops() / (m.PeakGFLOPS * 1e9)
	m.Floor = float64(s.Tokens()) / max(products, m.Chain)
	return m, nil
}

// measureCommand measures shapes in every precision and prints a JSON object for each.
func measureCommand(ctx context.Context, arguments []string, out io.Writer) error {
	set := flag.NewFlagSet("gpu measure", flag.ContinueOnError)
	shapes := set.String("shapes", "lstm:256:1:32:35:28:0", "cell:H:L:B:T:V:E, by commas")
	precisions := set.String("precision", "fp32,tf32,bf16,fp16", "by commas")
	seconds := set.Float64("seconds", 1, "length of a window")
	windows := set.Int("windows", 3, "how many")
	width := set.Int("peak", peakWidth, "width of the matrices whose product is the peak")
	if err := set.Parse(arguments); err != nil {
		return err
	}
	w := bench.Windows{Length: time.Duration(*seconds * float64(time.Second)), Count: *windows}
	encoder := json.NewEncoder(out)
	for text := range strings.SplitSeq(*shapes, ",") {
		s, err := parseShape(text)
		if err != nil {
			return err
		}
		for name := range strings.SplitSeq(*precisions, ",") {
			p, err := compute.ParsePrecision(name)
			if err != nil {
				return fmt.Errorf("-precision %w", err)
			}
			g, err := openGPU(p)
			if err != nil {
				return err
			}
			g.width = *width
			m, err := g.measure(ctx, s, w)
			if err != nil {
				return err // the device may have failed, so that it is not closed
			}
			g.Close()
			if err := encoder.Encode(m); err != nil {
				return err
			}
		}
	}
	return nil
}

// parseShape is the inverse of key.
func parseShape(text string) (s bench.Shape, err error) {
	cell, sizes, _ := strings.Cut(text, ":")
	if s.Cell, err = compute.ParseCell(cell); err != nil {
		return s, fmt.Errorf("-shapes %w", err)
	}
	_, err = fmt.Sscanf(sizes, "%d:%d:%d:%d:%d:%d", &s.Hidden, &s.Layers, &s.Batch, &s.BPTT,
		&s.Vocab, &s.Embed)
	if err != nil || key(s) != text {
		return s, fmt.Errorf("-shapes: %q is not cell:H:L:B:T:V:E", text)
	}
	return s, s.Validate()
}
