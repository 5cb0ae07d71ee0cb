package compute

import "slices"

// NewRecurrent makes a layer's workspace, of the device or, if the shape is Composed, of its
// operations.
func NewRecurrent(dev Device, s RecurrentShape, inference bool) Recurrent {
	switch {
	case s.Skip > 0:
		return newSkipping(dev, s, inference)
	case s.Transition > 0:
		return newTransition(dev, s, inference)
	case s.Cell == Clockwork:
		return newClockwork(dev, s, inference)
	}
	return dev.NewRecurrent(s, inference)
}

// Composed reports whether a device has no kernel for the whole layer. Its layer is then no
// ProgressReporter.
func (s RecurrentShape) Composed() bool {
	return s.Skip > 0 || s.Transition > 0 || s.Cell == Clockwork
}

// RecurrentSize is a device's memory for NewRecurrent's workspace: see Sizer.RecurrentSize.
func RecurrentSize(on Sizer, s RecurrentShape, inference, ids bool) Size {
	switch {
	case s.Skip > 0:
		return skippingSize(on, s, inference)
	case s.Transition > 0:
	case s.Cell == Clockwork:
		return on.RecurrentSize(s, inference, ids).And(on.TensorSize(s.H * s.H))
	default:
		return on.RecurrentSize(s, inference, ids)
	}
	return RecurrentSize(on, s.step(), inference, ids).And(PerceptronSize(on, s.perceptron())).
		And(on.TensorSize(new(transition).cut(s, inference, nil)))
}

// step is one step of the layer without its perceptron.
func (s RecurrentShape) step() RecurrentShape {
	s.T, s.Transition = 1, 0
	return s
}

// perceptron is that of one step.
func (s RecurrentShape) perceptron() PerceptronShape {
	return PerceptronShape{N: s.B, D: s.H, H: s.H, Layers: s.Transition}
}

// transition is a recurrent layer whose hidden state goes through a perceptron at each step, before
// the next step and the layer above read it (a deep transition: Pascanu et al. 2014,
// arXiv:1312.6026). It is made of a layer of one step and a device's other operations, and runs
// step by step. Its backward pass runs each step forward once more, so that it keeps the
// states alone.
type transition struct {
	dev        Device
	shape      RecurrentShape
	step       Recurrent
	perceptron *Perceptron
	flat       []float32
	weights    RecurrentWeights // of the last Forward, and its input
	in         RecurrentInput

	states  []RecurrentState // before step t, at t modulo their number
	cell    RecurrentState   // the cell's output at a step, before the perceptron; C is unused
	kept    RecurrentState   // the state that rows keep from their length on; C is unused
	d       [2]RecurrentState
	live    []float32 // gradient of the perceptron's output, and then of its input: [B, H]
	partial RecurrentWeights
}

func newTransition(dev Device, s RecurrentShape, inference bool) *transition {
	r := &transition{dev: dev, shape: s}
	made := false
	defer func() {
		if !made { // no memory for a part
			r.Close()
		}
	}()
	r.flat = dev.Alloc(r.cut(s, inference, nil))
	r.cut(s, inference, r.flat)
	r.perceptron = NewPerceptron(dev, s.perceptron())
	r.step = NewRecurrent(dev, s.step(), inference)
	made = true
	return r
}

// cut cuts the memory into parts, and returns how many floats they take. Nil has no parts.
func (r *transition) cut(s RecurrentShape, inference bool, flat []float32) int {
	rest := parts{flat: flat}
	take := rest.take
	states := s.T + 1
	if inference {
		states = 2
	}
	r.states = nil
	for range states {
		r.states = append(r.states, s.State(take))
	}
	r.cell.H, r.kept.H = take(s.B*s.H), take(s.B*s.H)
	if !inference {
		r.d[0], r.d[1], r.live = s.State(take), s.State(take), take(s.B*s.H)
		r.partial = s.step().Weights(take)
	}
	return rest.floats
}

// at is the state before step t.
func (r *transition) at(t int) RecurrentState { return r.states[t%len(r.states)] }

// input is step t's input. Its length is 1 in rows that have the step, and 0 in others.
func (r *transition) input(t int) (in RecurrentInput) {
	s := r.shape
	if r.in.IDs != nil {
		in.IDs = r.in.IDs[t*s.B : (t+1)*s.B]
	} else {
		in.X = rowsOf(r.in.X, t, s.B*s.D)
	}
	for _, length := range r.in.Lengths {
		in.Lengths = append(in.Lengths, int32(min(1, max(0, int(length)-t))))
	}
	return in
}

// rows returns the rows that have a step as ids of a copy, and those that have none. Nil: all have.
func rows(lengths []int32) (live, ended []int32) {
	for b, length := range lengths {
		live, ended = append(live, int32(b)), append(ended, int32(b))
		if length > 0 {
			ended[b] = -1
		} else {
			live[b] = -1
		}
	}
	return live, ended
}

// forward runs step t.
func (r *transition) forward(t int) {
	H, B, in, after := r.shape.H, r.shape.B, r.input(t), r.at(t+1)
	r.step.Forward(r.weights, in, r.at(t), r.cell.H, RecurrentState{H: r.kept.H, C: after.C})
	y := r.perceptron.Forward(r.weights.Transition, r.cell.H)
	live, ended := rows(in.Lengths)
	r.dev.CopyRows(whole(after.H, H), whole(y, H), B, H, live, false)
	if ended != nil {
		r.dev.CopyRows(whole(after.H, H), whole(r.kept.H, H), B, H, ended, true)
	}
}

// Forward implements Recurrent.
func (r *transition) Forward(w RecurrentWeights, in RecurrentInput, state RecurrentState,
	y []float32, out RecurrentState) {
	r.weights, r.in = w, in
	copyState(r.dev, r.shape.H, r.at(0), state)
	for t := range r.shape.T {
		r.forward(t)
		copyMatrix(r.dev, rowsOf(y, t, r.shape.B*r.shape.H), r.at(t+1).H, r.shape.H)
	}
	copyState(r.dev, r.shape.H, out, r.at(r.shape.T))
}

// copyState copies a state without its Past. What src lacks is zero.
func copyState(dev Device, width int, dst, src RecurrentState) {
	copyOrZero(dev, dst.H, src.H, width)
	copyOrZero(dev, dst.C, src.C, width)
}

// copyOrZero copies a matrix of this width; a nil src is zero.
func copyOrZero(dev Device, dst, src []float32, width int) {
	switch {
	case len(dst) == 0:
	case src == nil:
		dev.Zero(dst)
	default:
		copyMatrix(dev, dst, src, width)
	}
}

// Backward implements Recurrent.
func (r *transition) Backward(dy []float32, dout RecurrentState, dw RecurrentWeights,
	dx []float32, dstate RecurrentState) {
	s := r.shape
	for _, x := range dw.all() {
		r.dev.Zero(x)
	}
	d, next := r.d[0], r.d[1]
	copyState(r.dev, r.shape.H, d, dout)
	for t := s.T - 1; t >= 0; t-- {
		r.forward(t)
		r.dev.Add(d.H, rowsOf(dy, t, s.B*s.H))
		live, ended := rows(r.input(t).Lengths)
		r.dev.CopyRows(whole(r.live, s.H), whole(d.H, s.H), s.B, s.H, live, false)
		if ended == nil {
			r.dev.Zero(r.kept.H)
		} else {
			r.dev.CopyRows(whole(r.kept.H, s.H), whole(d.H, s.H), s.B, s.H, ended, false)
		}
		r.perceptron.Backward(r.weights.Transition, dw.Transition, r.cell.H, r.live, r.live)
		var dxt []float32
		if dx != nil {
			dxt = rowsOf(dx, t, s.B*s.D)
		}
		r.step.Backward(r.live, RecurrentState{H: r.kept.H, C: d.C}, r.partial, dxt, next)
		for i, x := range r.partial.all() {
			r.dev.Add(dw.all()[i], x)
		}
		d, next = next, d
	}
	if dstate.H != nil {
		copyState(r.dev, r.shape.H, dstate, d)
	}
}

// Close implements Recurrent.
func (r *transition) Close() {
	if r.step != nil {
		r.step.Close()
	}
	if r.perceptron != nil {
		r.perceptron.Close()
	}
	r.dev.Free(r.flat)
	r.step, r.perceptron, r.flat = nil, nil, nil
}

// all are the tensors, those of the perceptron last.
func (w RecurrentWeights) all() [][]float32 {
	tensors := [][]float32{w.IH, w.HH, w.BiasIH, w.BiasHH, w.Peephole}
	tensors = slices.DeleteFunc(tensors, func(x []float32) bool { return x == nil })
	for _, l := range w.Transition {
		tensors = append(tensors, l.W, l.B)
	}
	return tensors
}
