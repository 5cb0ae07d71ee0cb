package cpu

import "rondo/compute"

// layer is a recurrent layer's arithmetic, on arguments of checked shapes.
type layer interface {
	forward(w compute.RecurrentWeights, in compute.RecurrentInput, state compute.RecurrentState,
		y []float32, out compute.RecurrentState)
	// backward calls finished, unless it is nil, as compute.ProgressReporter says.
	backward(w compute.RecurrentWeights, in compute.RecurrentInput, dy []float32,
		dout compute.RecurrentState, dw compute.RecurrentWeights, dx []float32,
		dstate compute.RecurrentState, finished func(tensors, rows int))
	keep() // all further passes have the same weights
	close()
}

// head is an output layer's arithmetic, on arguments of checked shapes.
type head interface {
	forward(x, w, b []float32, targets []int32) float64
	forwardBackward(x, w, b []float32, targets []int32, scale float32,
		dx, dw, db []float32) float64
	close()
}

// backend is a build's arithmetic, on arguments of checked shapes.
type backend interface {
	name() string
	close()                     // stops the threads
	threads() int               // per call
	setThreads(count int) error // at most as many as it was made with
	bytes() int64               // of workspaces outside of layers
	// multiply runs products only, on all threads, and returns its number of operations, a multiple
	// of rounds.
	multiply(rounds int) float64
	newLayer(s compute.RecurrentShape, inference bool) layer
	newHead(s compute.OutputShape, rows int) head
	// gemm does not read c when beta is zero.
	gemm(transA, transB bool, m, n, k int, alpha float32, a, b []float32, beta float32,
		c []float32)
	add(y, x []float32)
	addBias(x, b []float32)
	embed(y, table []float32, ids []int32)
	embedBackward(dtable, dy []float32, ids []int32)
	scale(x []float32, a float32)
	clamp(x []float32, limit float32)
	sumSquares(x []float32) float64
	// dropout's x is [T, len(keys), h].
	dropout(y, x []float32, h int, p float32, keys []uint64)
	copyRows(dst, src compute.Columns, n, width int, ids []int32, add bool)
	pool(p compute.Pooling, y, x []float32, lengths []int32)
	poolBackward(p compute.Pooling, dx, dy, x, y []float32, lengths []int32)
	tanh(x []float32)
	tanhBackward(dy, y []float32)
	// attend and layerNorm are the forward pass, or with dy the backward pass.
	attend(a compute.Attention, dy, dq, dk, dv []float32)
	layerNorm(n compute.LayerNorm, dy, dx, dw, db []float32)
	update(u compute.Update, c correction, params, grads, s1, s2 []float32)
}
