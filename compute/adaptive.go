package compute

import (
	"fmt"
	"strconv"
	"strings"
)

// Adaptive is an output layer for a large vocabulary whose tokens are in the order of falling
// frequency (Grave et al. 2017, arXiv:1609.04309; torch.nn.AdaptiveLogSoftmaxWithLoss). Its head is
// a softmax over the first n tokens and one more symbol for each tail. A tail is a softmax over
// rarer tokens, behind a projection to a smaller width:
//
//	p(v) = softmax(x W^T + b)[v]                                      a token of the head
//	p(v) = softmax(x W^T + b)[n+i] softmax(x P_i^T W_i^T)[v-first_i]  a token of tail i
//
// W: [n+K, H], b: [n+K], P_i: [H_i, H], W_i: [V_i, H_i]. As an Output, its w has all of these
// matrices. It is made of a device's other operations. If the device's Output is a RowLimiter, a
// tail is computed only for the rows whose targets are in it; else for all rows.
type Adaptive struct {
	Output  // the head
	dev     Device
	n, h    int // N, H
	head    Tensor
	common  int // n: tokens in the head
	tails   []*adaptiveTail
	targets []int32   // [N]: the head's
	x, dx   []float32 // [N, H]: a tail's rows and their gradient; nil: all rows are computed
}

// RowLimiter is an Output that can compute fewer rows than its shape has.
type RowLimiter interface {
	Output
	// LimitRows sets the number of rows of all further calls, from 1 to the shape's N.
	LimitRows(n int)
}

// adaptiveTail is a tail and its workspace.
type adaptiveTail struct {
	Output
	project, weight Tensor    // P and W, in Adaptive's w
	first           int       // its first token
	width           int       // H_i
	rows            []int32   // of x, whose targets are in the tail
	targets         []int32   // of rows; or of all rows, with -1 for those of other tails
	y, dy           []float32 // [N, H_i]
}

// maxCutoffs bounds an Adaptive's tails.
const maxCutoffs = 8

// ParseCutoffs parses where an Adaptive's tails begin, numbers of tokens that commas separate:
// "2000,10000". They ascend. "" is none.
func ParseCutoffs(text string) (cutoffs []int, err error) {
	if text == "" {
		return nil, nil
	}
	last := 0
	for field := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(field))
		if err != nil || n <= last || len(cutoffs) == maxCutoffs {
			return nil, fmt.Errorf("%s: give at most %d whole numbers that ascend, as 2000,10000",
				text, maxCutoffs)
		}
		cutoffs, last = append(cutoffs, n), n
	}
	return cutoffs, nil
}

// AdaptiveParts returns the shapes of an Adaptive's matrices, in the order of their gradients: for
// each tail from the last to the first W_i and P_i, then W. Tail i has the tokens from cutoffs[i]
// on, and the width H / 4^(i+1), at least 1.
func AdaptiveParts(cutoffs []int, H, V int) (parts []Tensor) {
	for i := len(cutoffs) - 1; i >= 0; i-- {
		end, width := V, max(1, H>>(2*(i+1)))
		if i+1 < len(cutoffs) {
			end = cutoffs[i+1]
		}
		parts = append(parts,
			Tensor{Name: fmt.Sprintf("tail.%d.1.weight", i), Shape: []int{end - cutoffs[i], width}},
			Tensor{Name: fmt.Sprintf("tail.%d.0.weight", i), Shape: []int{width, H}})
	}
	return append(parts, Tensor{Name: "weight", Shape: []int{cutoffs[0] + len(cutoffs), H}})
}

// NewAdaptive makes the layer's workspace for N rows. parts are AdaptiveParts with their places in
// w and dw.
func NewAdaptive(dev Device, N int, parts []Tensor) *Adaptive {
	last := len(parts) - 1
	a := &Adaptive{dev: dev, n: N, h: parts[last].Shape[1], head: parts[last],
		common: parts[last].Shape[0] - last/2, targets: make([]int32, N)}
	made := false
	defer func() {
		if !made { // no memory for a part
			a.Close()
		}
	}()
	a.Output = dev.NewOutput(OutputShape{N: N, H: a.h, V: a.head.Shape[0]})
	first := a.common
	for i := last - 2; i >= 0; i -= 2 {
		t := &adaptiveTail{weight: parts[i], project: parts[i+1], first: first,
			width: parts[i].Shape[1]}
		a.tails = append(a.tails, t)
		t.Output = dev.NewOutput(OutputShape{N: N, H: t.width, V: parts[i].Shape[0]})
		t.y, t.dy = dev.Alloc(N*t.width), dev.Alloc(N*t.width)
		first += parts[i].Shape[0]
	}
	if _, ok := a.Output.(RowLimiter); ok {
		a.x, a.dx = dev.Alloc(N*a.h), dev.Alloc(N*a.h)
	}
	made = true
	return a
}

// AdaptiveSize is at most a device's memory for NewAdaptive and its calls.
func AdaptiveSize(on Sizer, N int, parts []Tensor) (size Size) {
	H := parts[len(parts)-1].Shape[1]
	for i, p := range parts {
		rows, width := p.Shape[0], p.Shape[1]
		if i%2 == 0 { // the head, or a tail's W
			size = size.And(on.OutputSize(OutputShape{N: N, H: width, V: rows}))
			continue
		}
		size = size.And(on.TensorSize(N * rows)).And(on.TensorSize(N * rows)).
			And(on.GemmSize(N, rows, H)).And(on.GemmSize(rows, H, N)).And(on.GemmSize(N, H, rows))
	}
	return size.And(on.TensorSize(N * H)).And(on.TensorSize(N * H))
}

// First returns the head.
func (a *Adaptive) First() Output { return a.Output }

// Load notes the targets. A Recording needs it before each Replay.
func (a *Adaptive) Load(targets []int32) {
	CheckLength("targets", len(targets), a.n)
	for _, t := range a.tails {
		t.rows, t.targets = t.rows[:0], t.targets[:0]
	}
	for row, target := range targets {
		a.targets[row] = target
		for i, t := range a.tails {
			within := target - int32(t.first)
			mine := within >= 0 && within < int32(t.weight.Shape[0])
			if mine {
				a.targets[row] = int32(a.common + i)
				t.rows = append(t.rows, int32(row))
			}
			switch {
			case mine:
				t.targets = append(t.targets, within)
			case a.x == nil:
				t.targets = append(t.targets, -1)
			}
		}
	}
}

// Forward implements Output.
func (a *Adaptive) Forward(x, w, b []float32, targets []int32) {
	a.Load(targets)
	a.Output.Forward(x, a.head.of(w), b, a.targets)
	for _, t := range a.tails {
		if n := len(t.targets); n > 0 {
			a.project(t, x, w)
			t.Forward(t.y[:n*t.width], t.weight.of(w), nil, t.targets)
		}
	}
}

// ForwardBackward implements Output.
func (a *Adaptive) ForwardBackward(x, w, b []float32, targets []int32, scale float32,
	dx, dw, db []float32) {
	a.Load(targets)
	a.Output.ForwardBackward(x, a.head.of(w), b, a.targets, scale, dx, a.head.of(dw), db)
	for _, t := range a.tails {
		n, dp := len(t.targets), t.project.of(dw)
		if n == 0 {
			a.dev.Zero(dp)
			a.dev.Zero(t.weight.of(dw))
			continue
		}
		rows := a.project(t, x, w)
		dy := t.dy[:n*t.width]
		t.ForwardBackward(t.y[:n*t.width], t.weight.of(w), nil, t.targets, scale, dy,
			t.weight.of(dw), nil)
		a.dev.Gemm(true, false, t.width, a.h, n, 1, dy, rows, 0, dp)
		if a.x == nil {
			a.dev.Gemm(false, false, n, a.h, t.width, 1, dy, t.project.of(w), 1, dx)
			continue
		}
		some := a.dx[:n*a.h]
		a.dev.Gemm(false, false, n, a.h, t.width, 1, dy, t.project.of(w), 0, some)
		a.dev.EmbedBackward(dx, some, t.rows)
	}
}

// project computes a tail's y of its rows of x, and returns these rows.
func (a *Adaptive) project(t *adaptiveTail, x, w []float32) []float32 {
	n := len(t.targets)
	if a.x != nil {
		t.Output.(RowLimiter).LimitRows(n)
		some := a.x[:n*a.h]
		a.dev.CopyRows(whole(some, a.h), whole(x, a.h), n, a.h, t.rows, false)
		x = some
	}
	a.dev.Gemm(false, true, n, t.width, a.h, 1, x, t.project.of(w), 0, t.y[:n*t.width])
	return x
}

// Sum implements Output.
func (a *Adaptive) Sum() float64 {
	sum := a.Output.Sum()
	for _, t := range a.tails {
		if len(t.targets) > 0 {
			sum += t.Sum()
		}
	}
	return sum
}

// Close implements Output. It may be called more than once.
func (a *Adaptive) Close() {
	for _, t := range a.tails {
		if t.Output != nil {
			t.Output.Close()
		}
		a.dev.Free(t.y)
		a.dev.Free(t.dy)
	}
	if a.Output != nil {
		a.Output.Close()
	}
	a.dev.Free(a.x)
	a.dev.Free(a.dx)
	a.tails, a.Output, a.x, a.dx = nil, nil, nil, nil
}

// of returns a tensor's part of flat.
func (t Tensor) of(flat []float32) []float32 {
	return flat[t.Offset : t.Offset+t.Len : t.Offset+t.Len]
}
