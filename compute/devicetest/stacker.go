package devicetest

import "rondo/compute"

// Stacker is a stand-in for a device that computes layers beside each other: another device, which
// computes them one after the other.
type Stacker struct {
	compute.Device
	// Made and Open count the stacks that were made, and those that have not been closed.
	Made, Open int
}

// NewStack is compute.Stacker's.
func (s *Stacker) NewStack(shapes []compute.RecurrentShape, dropout float32) compute.Stack {
	s.Made++
	s.Open++
	return &countedStack{newLayered(s.Device, shapes, dropout), s}
}

type countedStack struct {
	*layered
	by *Stacker
}

func (s *countedStack) Close() {
	s.by.Open--
	s.layered.Close()
}

// layered is a stack by a device's single layers.
type layered struct {
	dev     compute.Device
	shapes  []compute.RecurrentShape
	layers  []compute.Recurrent
	dropout float32
}

func newLayered(dev compute.Device, shapes []compute.RecurrentShape, dropout float32) *layered {
	compute.CheckStack(shapes, dropout)
	s := &layered{dev: dev, shapes: shapes, dropout: dropout}
	for _, shape := range shapes {
		s.layers = append(s.layers, dev.NewRecurrent(shape, false))
	}
	return s
}

// Forward is compute.Stack's.
func (s *layered) Forward(in compute.RecurrentInput, layers []compute.StackLayer) {
	compute.CheckStackLayers(len(s.layers), layers)
	for l, a := range layers {
		s.layers[l].Forward(a.Weights, in, a.State, a.Y, a.Out)
		s.drop(l, a.Y, layers)
		in = compute.RecurrentInput{X: a.Y}
	}
}

// Backward is compute.Stack's.
func (s *layered) Backward(dy []float32, layers []compute.StackLayer, done func(layer int)) {
	compute.CheckStackLayers(len(s.layers), layers)
	for l := len(layers) - 1; l >= 0; l-- {
		s.drop(l, dy, layers)
		a := layers[l]
		s.layers[l].Backward(dy, a.DOut, a.Gradients, a.DX, a.DState)
		done(l)
		dy = a.DX
	}
}

// drop is dropout of x, of the place of layer l's Y.
func (s *layered) drop(l int, x []float32, layers []compute.StackLayer) {
	if s.dropout > 0 && l < len(layers)-1 {
		s.dev.Dropout(x, x, s.shapes[l].T, s.dropout, layers[l].Keys)
	}
}

// Close is compute.Stack's.
func (s *layered) Close() {
	for _, l := range s.layers {
		l.Close()
	}
}
