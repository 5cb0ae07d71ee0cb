package model

import (
	"fmt"

	"gorgonia.org/gorgonia"

	"rondo/compute"
)

// Names of the tensors of deep inputs and outputs, before a layer's number.
const (
	deepInput  = "deep_input"
	deepOutput = "deep_output"
)

// denseEnd names the last tensor of a deep input or output in the layout.
func denseEnd(name string) string { return name + ".0.bias" }

// deepInput is the shape of the deep input for so many rows.
func (c Config) deepInput(rows int) compute.PerceptronShape {
	return compute.PerceptronShape{N: rows, D: c.rowWidth(), H: c.Hidden, Layers: c.DeepInput}
}

// deepOutput is that of the deep output.
func (c Config) deepOutput(rows int) compute.PerceptronShape {
	return compute.PerceptronShape{N: rows, D: c.Hidden, H: c.Hidden, Layers: c.DeepOutput}
}

// deepSize is the memory of both. An inference has no workspaces for them.
func (c Config) deepSize(on compute.Sizer, rows int, inference bool) (size compute.Size) {
	for _, s := range []compute.PerceptronShape{c.deepInput(rows), c.deepOutput(rows)} {
		if s.Layers > 0 {
			part := compute.PerceptronSize(on, s)
			if inference {
				part.Own = 0
			}
			size = size.And(part)
		}
	}
	return size
}

// linears are the layers of a deep input or output, from the first to the last. of returns a
// tensor's memory.
func linears(views []View, name string, layers int, of func(View) []float32) (
	all []compute.Linear) {
	for i := range layers {
		all = append(all, compute.Linear{W: of(find(views, fmt.Sprintf("%s.%d.weight", name, i))),
			B: of(find(views, fmt.Sprintf("%s.%d.bias", name, i)))})
	}
	return all
}

// perceptron is a deep input or output as an operator. A nil perceptron passes its input on.
type perceptron struct {
	name   string
	dev    compute.Device
	kernel *compute.Perceptron
	w, dw  []compute.Linear
	y, dx  *buffer // [T, B, H], [T, B, D]
	done   func()  // called when dw has been queued
}

// newPerceptron makes the operator for rows of [T, B]. dx takes the gradient of its input.
func (s *stack) newPerceptron(name string, shape compute.PerceptronShape, dx *buffer) *perceptron {
	rows, kernel := dx.value.Shape(), compute.NewPerceptron(s.dev, shape)
	return &perceptron{name: name, dev: s.dev, kernel: kernel, dx: dx,
		w:    linears(s.views, name, shape.Layers, s.valueOf),
		dw:   linears(s.views, name, shape.Layers, s.gradientOf),
		y:    cut(kernel.Output(), rows[0], rows[1], shape.H),
		done: s.tape.finishing(find(s.views, denseEnd(name)))}
}

// run computes y.
func (d *perceptron) run(x []float32) []float32 {
	if d == nil {
		return x
	}
	return d.kernel.Forward(d.w, x)
}

// backward computes the gradients.
func (d *perceptron) backward(x, dy []float32) {
	for _, l := range d.dw {
		d.dev.Zero(l.W)
		d.dev.Zero(l.B)
	}
	d.kernel.Backward(d.w, d.dw, x, dy, d.dx.flat)
	d.done()
}

// apply adds the operator to the graph of x.
func (d *perceptron) apply(x *gorgonia.Node, weights *leaves) (*gorgonia.Node, error) {
	if d == nil {
		return x, nil
	}
	in, gradients := gorgonia.Nodes{x}, []*buffer{d.dx}
	for i, dw := range d.dw {
		weight := weights.tensor(fmt.Sprintf("%s.%d.weight", d.name, i))
		in = append(in, weight, weights.tensor(fmt.Sprintf("%s.%d.bias", d.name, i)))
		gradients = append(gradients, cut(dw.W, weight.Shape()...), cut(dw.B, len(dw.B)))
	}
	return applyTogether(d.name, in, d.y, gradients, func(x []float32) { d.run(x) }, d.backward)
}

// makeDeepOutput makes a deep output of this shape, whose input has the gradient dx, and returns
// memory for its own gradient. Without layers there is none, and the gradient is dx.
func (s *stack) makeDeepOutput(shape compute.PerceptronShape, dx *buffer) *buffer {
	if shape.Layers == 0 {
		return dx
	}
	rows := dx.value.Shape()
	s.deepOutput = s.newPerceptron(deepOutput, shape, dx)
	return cut(s.deepOutput.kernel.Gradient(), rows[0], rows[1], shape.H)
}

func (d *perceptron) close() {
	if d != nil {
		d.kernel.Close()
	}
}
