package compute

// skipping is a recurrent layer whose gates also read the layer's output d = RecurrentShape.Skip
// steps before (Lin et al. 1996, "Learning long-term dependencies in NARX recurrent neural
// networks"; Deep Learning, section 10.9.1). The input side reads [x[t], h[t-d]]: h[t-d] is known
// before the d steps from t on begin. So the layer is another one that runs a block of d steps at a
// time, whose input has H columns more. The backward pass runs all blocks but the last forward once
// more, and keeps only the outputs and the states between blocks.
type skipping struct {
	dev    Device
	shape  RecurrentShape
	layers [2]Recurrent // of a whole block, and of the last steps; nil: there are none
	flat   []float32

	weights RecurrentWeights // of the last Forward, and its input
	in      RecurrentInput

	outputs []float32        // [d+T, B, H]: the d outputs before the segment, and its own
	x       []float32        // a block's input, [d, B, D+H]
	states  []RecurrentState // before block k, at k modulo their number

	doutputs []float32 // gradient of outputs
	dx       []float32 // of x
	d        [2]RecurrentState
	partial  RecurrentWeights // gradients of a block
}

// Inputs is the number of columns of W_ih: D, and H with a Skip.
func (s RecurrentShape) Inputs() int {
	if s.Skip > 0 {
		return s.D + s.H
	}
	return s.D
}

// States is how many tensors of [B, H] a state has.
func (s RecurrentShape) States() int { return s.Cell.States() + max(0, s.Skip-1) }

// block is the layer that runs n steps with h[t-d] in its input.
func (s RecurrentShape) block(n int) RecurrentShape {
	s.T, s.D, s.Skip = n, s.Inputs(), 0
	return s
}

// blocks are the steps of a block, their number, and the steps of the last block.
func (s RecurrentShape) blocks() (steps, count, last int) {
	steps = min(s.Skip, s.T)
	count = (s.T + steps - 1) / steps
	return steps, count, s.T - (count-1)*steps
}

func newSkipping(dev Device, s RecurrentShape, inference bool) *skipping {
	r := &skipping{dev: dev, shape: s}
	made := false
	defer func() {
		if !made { // no memory for a part
			r.Close()
		}
	}()
	r.flat = dev.Alloc(r.cut(s, inference, nil))
	r.cut(s, inference, r.flat)
	steps, count, last := s.blocks()
	if last < steps {
		r.layers[1] = NewRecurrent(dev, s.block(last), inference)
	}
	if last == steps || count > 1 {
		r.layers[0] = NewRecurrent(dev, s.block(steps), inference)
	}
	made = true
	return r
}

// skippingSize is a device's memory for the workspace.
func skippingSize(on Sizer, s RecurrentShape, inference bool) Size {
	steps, _, last := s.blocks()
	size := on.TensorSize(new(skipping).cut(s, inference, nil)).
		And(RecurrentSize(on, s.block(steps), inference, false))
	if last < steps {
		size = size.And(RecurrentSize(on, s.block(last), inference, false))
	}
	return size
}

// cut cuts the memory into parts, and returns how many floats they take. Nil has no parts.
func (r *skipping) cut(s RecurrentShape, inference bool, flat []float32) int {
	rest := parts{flat: flat}
	take := rest.take
	steps, count, _ := s.blocks()
	block, states := s.block(steps), count+1
	if inference {
		states = 2
	}
	r.outputs, r.x = take((s.Skip+s.T)*s.B*s.H), take(steps*s.B*block.D)
	r.states = nil
	for range states {
		r.states = append(r.states, block.State(take))
	}
	if !inference {
		r.doutputs, r.dx = take((s.Skip+s.T)*s.B*s.H), take(steps*s.B*block.D)
		r.d[0], r.d[1], r.partial = block.State(take), block.State(take), block.Weights(take)
	}
	return rest.floats
}

// skipBlock is a range of a segment's steps with its layer.
type skipBlock struct {
	Recurrent
	from, steps int
	in          RecurrentInput
}

// block loads the input of block k.
func (r *skipping) block(k int) (b skipBlock) {
	s := r.shape
	steps, count, last := s.blocks()
	b = skipBlock{Recurrent: r.layers[0], from: k * steps, steps: steps}
	if k == count-1 && last < steps {
		b.Recurrent, b.steps = r.layers[1], last
	}
	rows, width := b.steps*s.B, s.Inputs()
	b.in.X = r.x[:rows*width]
	for _, length := range r.in.Lengths {
		b.in.Lengths = append(b.in.Lengths, int32(min(b.steps, max(0, int(length)-b.from))))
	}
	x := Columns{X: b.in.X, Stride: width}
	r.dev.CopyRows(x, whole(r.in.X[b.from*s.B*s.D:], s.D), rows, s.D, nil, false)
	x.At = s.D
	r.dev.CopyRows(x, whole(r.outputs[b.from*s.B*s.H:], s.H), rows, s.H, nil, false)
	return b
}

// part is the rows of block b of x: [T, B, H].
func (r *skipping) part(x []float32, b skipBlock) []float32 {
	n := r.shape.B * r.shape.H
	return x[b.from*n : (b.from+b.steps)*n]
}

// own are the rows of outputs, or their gradients, that are the segment's.
func (r *skipping) own(outputs []float32) []float32 {
	return outputs[r.shape.Skip*r.shape.B*r.shape.H:]
}

// past are the places in outputs of the rows of a state's Past and H, d outputs of each lane. Nil:
// they are the last ones.
func (r *skipping) past() (ids []int32) {
	if r.in.Lengths == nil {
		return nil
	}
	for j := range r.shape.Skip {
		for b, length := range r.in.Lengths {
			ids = append(ids, int32((int(length)+j)*r.shape.B+b))
		}
	}
	return ids
}

// Forward implements Recurrent.
func (r *skipping) Forward(w RecurrentWeights, in RecurrentInput, state RecurrentState,
	y []float32, out RecurrentState) {
	s := r.shape
	r.weights, r.in = w, in
	copyState(r.dev, s.H, r.states[0], state)
	before := r.outputs[:(s.Skip-1)*s.B*s.H]
	copyOrZero(r.dev, before, state.Past, s.H)
	copyMatrix(r.dev, r.outputs[len(before):s.Skip*s.B*s.H], r.states[0].H, s.H)
	_, count, _ := s.blocks()
	for k := range count {
		r.forward(k)
	}
	copyMatrix(r.dev, y, r.own(r.outputs), s.H)
	copyState(r.dev, s.H, out, r.states[count%len(r.states)])
	if rows := (s.Skip - 1) * s.B; rows > 0 {
		if ids := r.past(); ids != nil {
			r.dev.CopyRows(whole(out.Past, s.H), whole(r.outputs, s.H), rows, s.H, ids[:rows],
				false)
		} else {
			copyMatrix(r.dev, out.Past, r.outputs[s.T*s.B*s.H:][:rows*s.H], s.H)
		}
	}
}

// forward runs block k.
func (r *skipping) forward(k int) skipBlock {
	b, n := r.block(k), len(r.states)
	b.Forward(r.weights, b.in, r.states[k%n], r.part(r.own(r.outputs), b), r.states[(k+1)%n])
	return b
}

// Backward implements Recurrent.
func (r *skipping) Backward(dy []float32, dout RecurrentState, dw RecurrentWeights,
	dx []float32, dstate RecurrentState) {
	s := r.shape
	r.dev.Zero(r.doutputs)
	if rows := (s.Skip - 1) * s.B; dout.Past != nil && rows > 0 {
		ids := r.past()
		if ids == nil {
			copyMatrix(r.dev, r.doutputs[s.T*s.B*s.H:][:rows*s.H], dout.Past, s.H)
		} else {
			r.dev.EmbedBackward(r.doutputs, dout.Past, ids[:rows])
		}
	}
	r.dev.Add(r.own(r.doutputs), dy)
	d, next := r.d[0], r.d[1]
	copyState(r.dev, s.H, d, dout)
	_, count, _ := s.blocks()
	for k := count - 1; k >= 0; k-- {
		var b skipBlock
		if k == count-1 || k == count-2 && r.layers[1] != nil { // its layer's last
			b = r.block(k)
		} else {
			b = r.forward(k)
		}
		sum := dw
		if k < count-1 {
			sum = r.partial
		}
		xs := Columns{X: r.dx[:len(b.in.X)], Stride: s.Inputs()}
		b.Backward(r.part(r.own(r.doutputs), b), d, sum, xs.X, next)
		for i, x := range sum.all() {
			if k < count-1 {
				r.dev.Add(dw.all()[i], x)
			}
		}
		if dx != nil {
			r.dev.CopyRows(whole(dx[b.from*s.B*s.D:], s.D), xs, b.steps*s.B, s.D, nil, false)
		}
		xs.At = s.D
		r.dev.CopyRows(whole(r.part(r.doutputs, b), s.H), xs, b.steps*s.B, s.H, nil, true)
		d, next = next, d
	}
	r.gradientBefore(d, dstate)
}

// gradientBefore writes the gradient of the state before the segment; d has that through h[-1] and
// the cell state alone.
func (r *skipping) gradientBefore(d, dstate RecurrentState) {
	if dstate.H == nil {
		return
	}
	s := r.shape
	past := (s.Skip - 1) * s.B * s.H
	r.dev.Add(d.H, r.doutputs[past:s.Skip*s.B*s.H])
	copyState(r.dev, s.H, dstate, d)
	if past > 0 {
		copyMatrix(r.dev, dstate.Past, r.doutputs[:past], s.H)
	}
}

// Close implements Recurrent.
func (r *skipping) Close() {
	for i, layer := range r.layers {
		if layer != nil {
			layer.Close()
		}
		r.layers[i] = nil
	}
	r.dev.Free(r.flat)
	r.flat = nil
}
