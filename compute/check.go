package compute

import "fmt"

// Checks that every device makes. A wrong shape is a broken invariant: each of these panics, naming
// the actual and the required value. They read lengths and host memory, not device memory.

// CheckSame panics unless two lengths agree.
func CheckSame(what string, a, b int) {
	if a != b {
		panic(fmt.Sprintf("compute: %s: lengths %d and %d differ", what, a, b))
	}
}

// CheckLength panics unless a slice has the length of its shape.
func CheckLength(what string, got, want int) {
	if got != want {
		panic(fmt.Sprintf("compute: %s has %d elements, its shape has %d", what, got, want))
	}
}

// checkPart is CheckLength; it builds the part's name only to panic.
func checkPart(what, part string, got, want int) {
	if got != want {
		CheckLength(what+" "+part, got, want)
	}
}

// CheckIDs panics unless every id is in [0, limit).
func CheckIDs(what string, ids []int32, limit int) {
	for i, id := range ids {
		if uint(id) >= uint(limit) {
			panic(fmt.Sprintf("compute: %s: id %d at %d is not in [0, %d)", what, id, i, limit))
		}
	}
}

// CheckBelow panics unless every id is below the limit; ids may be negative.
func CheckBelow(what string, ids []int32, limit int) {
	for i, id := range ids {
		if int(id) >= limit {
			panic(fmt.Sprintf("compute: %s: id %d at %d is not below %d", what, id, i, limit))
		}
	}
}

// CheckTable panics unless rows are n rows of a table's width. It returns the width, and the number
// of the table's rows. n is at least 1.
func CheckTable(what string, table, rows []float32, n int) (width, all int) {
	width = len(rows) / n
	if width == 0 || len(rows) != n*width || len(table)%width != 0 {
		panic(fmt.Sprintf("compute: %s: %d elements are not rows of a table of %d, for %d ids",
			what, len(rows), len(table), n))
	}
	return width, len(table) / width
}

// CheckGemm panics unless the operands of Gemm have their shapes.
func CheckGemm(m, n, k int, a, b, c []float32) {
	CheckLength("Gemm's a", len(a), m*k)
	CheckLength("Gemm's b", len(b), k*n)
	CheckLength("Gemm's c", len(c), m*n)
}

// CheckBias panics unless AddBias's x is rows of b's length.
func CheckBias(x, b []float32) {
	if len(b) == 0 || len(x)%len(b) != 0 {
		panic(fmt.Sprintf("compute: AddBias of %d elements to rows in %d", len(b), len(x)))
	}
}

// CheckDropout panics unless Dropout's y and x have a row for each step and key, and p is a
// probability. It returns the number of rows.
func CheckDropout(y, x []float32, steps int, p float32, keys []uint64) (rows int) {
	CheckSame("Dropout", len(y), len(x))
	if !(p >= 0 && p <= 1) {
		panic(fmt.Sprintf("compute: Dropout with probability %v, not in [0, 1]", p))
	}
	rows = steps * len(keys)
	if rows < 1 || len(x)%rows != 0 {
		panic(fmt.Sprintf("compute: Dropout of %d elements in %d steps of %d lanes", len(x), steps,
			len(keys)))
	}
	return rows
}

// CheckCopyRows panics unless CopyRows' dst and src have n rows, of width columns each, and there
// is an id for each if there are any.
func CheckCopyRows(dst, src Columns, n, width int, ids []int32) {
	dst.check("dst", n, width)
	if ids == nil {
		src.check("src", n, width)
		return
	}
	src.check("src", 0, width)
	CheckLength("CopyRows' ids", len(ids), n)
}

// check panics unless there are rows rows, with width columns from At on.
func (c Columns) check(what string, rows, width int) {
	if c.Stride < 1 || len(c.X)%c.Stride != 0 || c.At < 0 || width < 0 || c.At+width > c.Stride ||
		rows < 0 || rows > c.Rows() {
		panic(fmt.Sprintf("compute: CopyRows: %d rows of columns [%d, %d) of %s, which has %d "+
			"elements in rows of %d", rows, c.At, c.At+width, what, len(c.X), c.Stride))
	}
}

// CheckPool panics unless Pool's y has a row for each length, and x one for each step of it.
func CheckPool(p Pooling, y, x []float32, steps int, lengths []int32) {
	if p != MeanPool && p != MaxPool {
		panic(fmt.Sprintf("compute: pooling %d is not one of 0..1", int(p)))
	}
	if steps < 1 || len(lengths) < 1 || len(y)%len(lengths) != 0 {
		panic(fmt.Sprintf("compute: Pool of %d steps to %d elements in %d rows", steps, len(y),
			len(lengths)))
	}
	CheckLength("Pool's x", len(x), steps*len(y))
}

// CheckPoolBackward is CheckPool of PoolBackward's arguments.
func CheckPoolBackward(p Pooling, dx, dy, x, y []float32, steps int, lengths []int32) {
	CheckPool(p, dy, dx, steps, lengths)
	if p == MaxPool {
		CheckSame("PoolBackward's x", len(dx), len(x))
		CheckSame("PoolBackward's y", len(dy), len(y))
	}
}

// Check panics unless the tensors have their shapes. It does not read the lengths.
func (a Attention) Check() {
	if a.T < 1 || a.S < 1 || a.B < 1 || a.H < 1 || a.W < 1 {
		panic(fmt.Sprintf("compute: attention of T %d, S %d, B %d, H %d and W %d", a.T, a.S, a.B,
			a.H, a.W))
	}
	CheckLength("attention's Q", len(a.Q), a.T*a.B*a.H)
	CheckLength("attention's K", len(a.K), a.S*a.B*a.H)
	CheckLength("attention's V", len(a.V), a.S*a.B*a.W)
	CheckLength("attention's lengths", len(a.Lengths), a.B)
	CheckLength("attention's weights", len(a.Weights), a.B*a.T*a.S)
	CheckLength("attention's Y", len(a.Y), a.T*a.B*a.W)
}

// CheckBackward is Check, and that the gradients have the shapes of their tensors.
func (a Attention) CheckBackward(dy, dq, dk, dv []float32) {
	a.Check()
	CheckSame("attention's dy", len(a.Y), len(dy))
	CheckSame("attention's dq", len(a.Q), len(dq))
	CheckSame("attention's dk", len(a.K), len(dk))
	CheckSame("attention's dv", len(a.V), len(dv))
}

// Check panics unless the tensors have their shapes.
func (n LayerNorm) Check() {
	width := len(n.Weight)
	if width == 0 || len(n.X)%width != 0 {
		panic(fmt.Sprintf("compute: layer normalisation of %d elements in rows of %d", len(n.X),
			width))
	}
	CheckSame("a layer normalisation's bias", width, len(n.Bias))
	CheckSame("a layer normalisation's y", len(n.X), len(n.Y))
	if n.Stats != nil {
		CheckLength("a layer normalisation's stats", len(n.Stats), 2*n.Rows())
	}
}

// Rows is N.
func (n LayerNorm) Rows() int { return len(n.X) / len(n.Weight) }

// CheckBackward is Check; it also panics if there are no stats, or if a gradient lacks the shape of
// its tensor.
func (n LayerNorm) CheckBackward(dy, dx, dw, db []float32) {
	n.Check()
	CheckLength("a layer normalisation's stats", len(n.Stats), 2*n.Rows())
	CheckSame("a layer normalisation's dy", len(n.Y), len(dy))
	CheckSame("a layer normalisation's dx", len(n.X), len(dx))
	CheckSame("a layer normalisation's dw", len(n.Weight), len(dw))
	CheckSame("a layer normalisation's db", len(n.Bias), len(db))
}

// CheckLengths panics unless every row's length is in [0, steps].
func CheckLengths(lengths []int32, steps int) {
	for b, length := range lengths {
		if length < 0 || int(length) > steps {
			panic(fmt.Sprintf("compute: row %d has length %d, not in [0, %d]", b, length, steps))
		}
	}
}

// Check panics unless the limit is valid.
func (c *Clip) Check() {
	if !(c.Limit >= 0) {
		panic(fmt.Sprintf("compute: Clip to a limit of %v", c.Limit))
	}
}

// Check panics unless the slices of an update, with its optimizer's slots, have one length.
func (u Update) Check(params, grads, s1, s2 []float32) {
	slots := u.Optimizer.Slots()
	CheckSame("Update's gradients", len(params), len(grads))
	if slots >= 1 {
		CheckSame("Update's first slot", len(params), len(s1))
	}
	if slots >= 2 {
		CheckSame("Update's second slot", len(params), len(s2))
		if u.Step < 1 {
			panic(fmt.Sprintf("compute: Update %d of Adam; the first is 1", u.Step))
		}
	}
}

// Check panics unless a layer can have the shape.
func (s RecurrentShape) Check() {
	s.Cell.Gates() // panics on an unknown cell
	if s.T < 1 || s.B < 1 || s.D < 1 || s.H < 1 || !(s.Leak >= 0 && s.Leak <= 1) {
		panic(fmt.Sprintf("compute: recurrent layer of shape %+v", s))
	}
	if s.Skip > 0 || s.Transition > 0 {
		panic(fmt.Sprintf("compute: no kernel has a transition of %d layers and a skip of %d steps",
			s.Transition, s.Skip))
	}
}

// CheckForward panics unless the arguments of Forward have the layer's shape.
func (s RecurrentShape) CheckForward(w RecurrentWeights, in RecurrentInput, state RecurrentState,
	y []float32, out RecurrentState) {
	s.checkWeights("weight", w)
	switch {
	case in.IDs != nil && in.X == nil:
		CheckLength("ids", len(in.IDs), s.T*s.B)
	case in.X != nil && in.IDs == nil:
		CheckLength("x", len(in.X), s.T*s.B*s.D)
	default:
		panic("compute: a recurrent layer's input is either ids or rows; exactly one must be set")
	}
	if in.Lengths != nil {
		CheckLength("lengths", len(in.Lengths), s.B)
	}
	s.checkState("state", state)
	s.checkState("state out", out)
	CheckLength("y", len(y), s.T*s.B*s.H)
}

// CheckBackward panics unless the arguments of Backward have the layer's shape; in is Forward's.
func (s RecurrentShape) CheckBackward(in RecurrentInput, dy []float32, dout RecurrentState,
	dw RecurrentWeights, dx []float32, dstate RecurrentState) {
	CheckLength("dy", len(dy), s.T*s.B*s.H)
	s.checkWeights("gradient", dw)
	if dx != nil {
		CheckLength("dx", len(dx), s.T*s.B*s.D)
		if in.IDs != nil {
			panic("compute: dx of token ids")
		}
	}
	s.checkGradientState("dout", dout)
	s.checkGradientState("dstate", dstate)
}

// checkWeights panics unless every parameter has its shape.
func (s RecurrentShape) checkWeights(what string, w RecurrentWeights) {
	rows := s.Cell.Gates() * s.H
	checkPart(what, "IH", len(w.IH), rows*s.D)
	hidden := s.Cell.HiddenGates() * s.H
	checkPart(what, "HH", len(w.HH), hidden*s.H)
	checkPart(what, "BiasIH", len(w.BiasIH), rows)
	checkPart(what, "BiasHH", len(w.BiasHH), hidden)
	checkPart(what, "Peephole", len(w.Peephole), s.Cell.Peepholes()*s.H)
}

// checkState panics unless a state has its shape.
func (s RecurrentShape) checkState(what string, state RecurrentState) {
	checkPart(what, "H", len(state.H), s.B*s.H)
	if s.Cell.States() == 2 {
		checkPart(what, "C", len(state.C), s.B*s.H)
	}
}

// checkGradientState checks the gradient of a state; any part may be nil.
func (s RecurrentShape) checkGradientState(what string, state RecurrentState) {
	if state.H != nil {
		checkPart(what, "H", len(state.H), s.B*s.H)
	}
	if state.C != nil {
		checkPart(what, "C", len(state.C), (s.Cell.States()-1)*s.B*s.H)
	}
}

// Check panics unless an output layer can have the shape.
func (s OutputShape) Check() {
	if s.N < 1 || s.H < 1 || s.V < 1 || !(s.Smoothing >= 0 && s.Smoothing < 1) {
		panic(fmt.Sprintf("compute: output layer of shape %+v", s))
	}
}

// CheckForward panics unless the arguments of Forward have the layer's shape.
func (s OutputShape) CheckForward(x, w, b []float32, targets []int32) {
	CheckLength("output x", len(x), s.N*s.H)
	CheckLength("output w", len(w), s.V*s.H)
	if b != nil {
		CheckLength("output b", len(b), s.V)
	}
	CheckLength("targets", len(targets), s.N)
}

// CheckBackward panics unless the gradients have the shapes of their tensors.
func (s OutputShape) CheckBackward(b, dx, dw, db []float32) {
	CheckLength("output dx", len(dx), s.N*s.H)
	CheckLength("output dw", len(dw), s.V*s.H)
	CheckSame("output db", len(db), len(b))
}

// CheckTargets panics unless every target is below V.
func (s OutputShape) CheckTargets(targets []int32) { CheckBelow("target", targets, s.V) }
