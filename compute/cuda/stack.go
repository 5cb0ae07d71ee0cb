//go:build cuda

package cuda

import (
	"fmt"
	"unsafe"

	"rondo/compute"
)

var _ compute.Stacker = (*Device)(nil)

// stack is recurrent layers on one another. In a wave each has a lane, in which it does what of a
// chunk waits for another layer's; what is of all steps at once is done before and after that in
// the Device's stream: the first layer's input side, and all gradients of weights.
type stack struct {
	device      *Device
	layers      []*recurrent
	dropout     float32
	there, back wave
	// carries are, of each layer, the gradient of the state between two chunks, and that between
	// the two before: [2][States][B, H].
	carries []unsafe.Pointer
}

// NewStack makes layers that compute beside each other in at least one pass, or returns nil.
func (d *Device) NewStack(shapes []compute.RecurrentShape, dropout float32) compute.Stack {
	compute.CheckStack(shapes, dropout)
	if d.oneByOne || d.major() < 8 && d.forward() != operandFP32 {
		return nil // the latter as newPersistent
	}
	plan := func(o operands, backward bool) wave {
		return planWave(shapes, o, d.multiprocessors(), d.sharedPerBlock(), backward)
	}
	there, back := plan(d.forward(), false), plan(d.backward(), true)
	if there.steps == 0 && back.steps == 0 {
		return nil
	}
	if s := d.newStack(shapes, dropout, there, back); s != nil {
		return s
	}
	return nil
}

// newStack makes layers that compute in these waves, or returns nil where there is memory for the
// layers, but not for what they need to be beside each other.
func (d *Device) newStack(shapes []compute.RecurrentShape, dropout float32,
	there, back wave) *stack {
	s := &stack{device: d, dropout: dropout, there: there, back: back}
	made := false
	defer func() {
		if !made { // no memory for a part
			s.Close()
		}
	}()
	for _, shape := range shapes {
		s.layers = append(s.layers, d.newRecurrent(shape, false, s.newLoop))
	}
	if lack := s.makeRoom(); lack != nil {
		return nil
	}
	made = true
	return s
}

// newLoop is a layer's recurrence over the whole segment: nil where both passes are waves.
func (s *stack) newLoop(d *Device, shape compute.RecurrentShape, _ bool) loop {
	switch {
	case s.back.steps == 0: // the way there needs no memory that the way back does not
		return newLoop(d, shape, false)
	case s.there.steps == 0:
		return newLoop(d, shape, true)
	}
	return nil
}

// makeRoom makes the lanes and the carries.
func (s *stack) makeRoom() *compute.MemoryError {
	scratch := 0
	for l := range s.layers {
		if s.there.steps > 0 {
			scratch = max(scratch, s.there.plans[l].exchange(s.there.steps))
		}
		if s.back.steps > 0 {
			scratch = max(scratch, s.part(l, s.back.steps).carryBytes()+
				s.back.plans[l].exchange(s.back.steps))
			bytes := 4 * 2 * s.carried(l)
			carry, lack := s.device.tryTake(fmt.Sprintf("a carry of %d bytes", bytes),
				int64(bytes), false)
			if lack != nil {
				return lack
			}
			s.carries = append(s.carries, carry)
		}
	}
	return s.device.makeLanes(len(s.layers), scratch)
}

// part is the recurrence of a layer over so many steps; its plans are to be set.
func (s *stack) part(l, steps int) *persistent {
	shape := s.layers[l].shape
	shape.T = steps
	return &persistent{device: s.device, RecurrentShape: shape}
}

// carried is how many floats a layer hands from chunk to chunk.
func (s *stack) carried(l int) int {
	shape := s.layers[l].shape
	return alignedFloats(shape.Cell.States() * shape.B * shape.H)
}

// carry is where the gradient of the state before a chunk is.
func (s *stack) carry(l, chunk int) gradients {
	shape := s.layers[l].shape
	g := gradients{h: behind(s.carries[l], chunk%2*s.carried(l))}
	if shape.Cell == compute.LSTM {
		g.c = behind(g.h, shape.B*shape.H)
	}
	return g
}

// from is a layer's tape from a step on.
func (s *stack) from(l, step int) tape {
	r := s.layers[l]
	return r.tape.from(step, r.shape.B*r.wide, r.shape.B*r.shape.H)
}

// drop is dropout of so many steps of x, what layer l puts out or its gradient, from a step on.
func (s *stack) drop(l int, x []float32, first, steps int, keys []uint64) {
	if s.dropout > 0 {
		shape := s.layers[l].shape
		row := shape.B * shape.H
		x = x[first*row : (first+steps)*row]
		s.device.dropoutFrom(x, x, steps, s.dropout, keys, first*shape.H)
	}
}

// input is what layer l reads.
func input(l int, in compute.RecurrentInput, layers []compute.StackLayer) compute.RecurrentInput {
	if l > 0 {
		return compute.RecurrentInput{X: layers[l-1].Y}
	}
	return in
}

// Forward computes all layers' Y and Out.
func (s *stack) Forward(in compute.RecurrentInput, layers []compute.StackLayer) {
	compute.CheckStackLayers(len(s.layers), layers)
	if s.there.steps > 0 {
		s.forwardWave(in, layers)
		return
	}
	for l, r := range s.layers {
		a := &layers[l]
		r.Forward(a.Weights, input(l, in, layers), a.State, a.Y, a.Out)
		if l < len(layers)-1 {
			s.drop(l, a.Y, 0, r.shape.T, a.Keys)
		}
	}
}

func (s *stack) forwardWave(in compute.RecurrentInput, layers []compute.StackLayer) {
	biases := make([]unsafe.Pointer, len(layers))
	for l, r := range s.layers {
		a, in := &layers[l], input(l, in, layers)
		r.shape.CheckForward(a.Weights, in, a.State, a.Y, a.Out)
		biases[l] = r.begin(a.Weights, in, a.State)
	}
	T, chunk := s.layers[0].shape.T, s.there.steps
	s.layers[0].inputSums(s.layers[0].tape, 0, T)
	lanes := s.device.forkLanes(len(layers))
	for first := 0; first < T; first += chunk {
		for l := range layers {
			s.device.on(lanes[l], func() {
				if l > 0 {
					s.device.await(lanes[l-1])
				}
				s.forwardChunk(l, first, min(chunk, T-first), biases[l], layers)
				s.device.markLane(lanes[l])
			})
		}
	}
	for l, r := range s.layers {
		s.device.await(lanes[len(lanes)-1-l])
		r.ran = true
	}
}

// forwardChunk computes so many steps of a layer.
func (s *stack) forwardChunk(l, first, steps int, bias unsafe.Pointer,
	layers []compute.StackLayer) {
	r, a, t := s.layers[l], &layers[l], s.from(l, first)
	if l > 0 {
		r.inputSums(t, first, steps)
	}
	loop := s.part(l, steps)
	loop.there = &s.there.plans[l]
	loop.forward(at(a.Weights.HH), bias, t)
	var last gradients
	if first+steps == r.shape.T {
		last = gradients{at(a.Out.H), at(a.Out.C)}
	}
	r.results(t, steps, at(a.Y[first*r.shape.B*r.shape.H:]), last)
	if l < len(layers)-1 {
		s.drop(l, a.Y, first, steps, a.Keys)
	}
}

// Backward computes all gradients; see compute.Stack.
func (s *stack) Backward(dy []float32, layers []compute.StackLayer, done func(layer int)) {
	compute.CheckStackLayers(len(s.layers), layers)
	if s.back.steps > 0 {
		s.backwardWave(dy, layers, done)
		return
	}
	for l := len(layers) - 1; l >= 0; l-- {
		r, a := s.layers[l], &layers[l]
		r.Backward(dy, a.DOut, a.Gradients, a.DX, a.DState)
		done(l)
		if l > 0 {
			s.drop(l-1, a.DX, 0, r.shape.T, layers[l-1].Keys)
		}
		dy = a.DX
	}
}

func (s *stack) backwardWave(dy []float32, layers []compute.StackLayer, done func(layer int)) {
	top, d := len(layers)-1, s.device
	from := make([][]float32, len(layers)) // the gradient of each layer's Y
	for l, r := range s.layers {
		from[l] = dy
		if l < top {
			from[l] = layers[l+1].DX
		}
		a := &layers[l]
		r.beginBackward(from[l], a.DOut, a.Gradients, a.DX, a.DState)
	}
	lanes := d.forkLanes(len(layers))
	for chunk := (s.layers[0].shape.T - 1) / s.back.steps; chunk >= 0; chunk-- {
		for l := top; l >= 0; l-- {
			d.on(lanes[l], func() {
				if l < top {
					d.await(lanes[l+1])
				}
				s.backwardChunk(l, chunk, from[l], layers)
				d.markLane(lanes[l])
			})
		}
	}
	for l := top; l >= 0; l-- {
		d.await(lanes[l])
		dx := layers[l].DX
		if l > 0 { // it is there
			dx = nil
		}
		s.layers[l].endBackward(layers[l].Gradients, dx)
		done(l)
	}
}

// backwardChunk takes a chunk of a layer to the gradients of its sums and, for the layer below, of
// what that has put out.
func (s *stack) backwardChunk(l, chunk int, dy []float32, layers []compute.StackLayer) {
	r, a, first := s.layers[l], &layers[l], chunk*s.back.steps
	steps, t, n := min(s.back.steps, r.shape.T-first), s.from(l, first), r.shape.B*r.shape.H
	dout, dstate := gradients{at(a.DOut.H), at(a.DOut.C)}, gradients{at(a.DState.H), at(a.DState.C)}
	if first+steps < r.shape.T {
		dout = s.carry(l, chunk+1)
	}
	if chunk > 0 {
		dstate = s.carry(l, chunk)
	}
	loop := s.part(l, steps)
	loop.back = &s.back.plans[l]
	loop.backward(at(r.weights.HH), at(dy[first*n:]), dout, dstate, t)
	if l > 0 {
		r.inputGradient(t, steps, at(a.DX[first*n:]))
		s.drop(l-1, a.DX, first, steps, layers[l-1].Keys)
	}
}

// Close frees the workspace.
func (s *stack) Close() {
	for _, r := range s.layers {
		r.Close()
	}
	for _, p := range s.carries {
		s.device.release(p)
	}
	s.layers, s.carries = nil, nil
}
