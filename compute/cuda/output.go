//go:build cuda

package cuda

import (
	"unsafe"

	"rondo/compute"
)

// maxLogits bounds the logits that an output layer keeps at once, 256 MiB: more rows go through it
// in chunks. A chunk costs a pass over the weights and their gradient, which hundreds of rows pay
// for; every vocabulary has that many rows in a chunk.
const maxLogits = 1 << 26

// output is the last layer. Its sum goes to the host, too.
type output struct {
	device  *Device
	shape   compute.OutputShape
	few     fewTokens // how it is computed, if its zero value is not
	rows    int       // of logits at once
	targets *staged
	memory  unsafe.Pointer // of all that follows
	sum     unsafe.Pointer // float64
	losses  unsafe.Pointer // float64 of every row, or block of rows
	logits  unsafe.Pointer // [rows, V]; then their gradient
	parts   unsafe.Pointer // fewTokens's
	halves  outputHalves
	result  *result
}

// outputHalves are copies in bfloat16 of cuBLAS's operands: x: [rows, H], w: [V, H] and the
// gradient of the logits: [rows, V]. They are nil unless cuBLAS computes all products.
type outputHalves struct{ x, w, logits unsafe.Pointer }

// gradientsOut are the gradients of ForwardBackward.
type gradientsOut struct {
	scale      float32
	dx, dw, db []float32
}

// NewOutput makes the last layer's workspace.
func (d *Device) NewOutput(s compute.OutputShape) compute.Output {
	s.Check()
	return newOutput(d, s, outputRows(s), chooseFew(s, d.queue.info.SharedPerBlock))
}

// outputRows is how many rows' logits are in memory at once: chunks of about one size.
func outputRows(s compute.OutputShape) int {
	most := max(1, maxLogits/s.V)
	return blocksFor(s.N, blocksFor(s.N, most))
}

func newOutput(d *Device, s compute.OutputShape, rows int, few fewTokens) *output {
	o := &output{device: d, shape: s, few: few, rows: rows}
	defer orUndo(o.Close)
	o.memory = d.memory.cut(o.cuts())
	o.targets = d.memory.newStaged(4 * s.N)
	o.result = d.memory.newResult()
	return o
}

// cuts are the parts of its memory.
func (o *output) cuts() []part {
	cuts := []part{{&o.sum, 8}, {&o.losses, 8 * o.shape.N}}
	if o.few.fits() {
		return append(cuts, part{&o.parts, o.few.partBytes(o.shape)})
	}
	cuts = append(cuts, part{&o.logits, 4 * o.rows * o.shape.V})
	if s := o.shape; o.device.gemm.sharesHalves(o.rows, s.V, s.H) {
		cuts = append(cuts, part{&o.halves.x, 2 * o.rows * s.H}, part{&o.halves.w, 2 * s.V * s.H},
			part{&o.halves.logits, 2 * o.rows * s.V})
	}
	return cuts
}

// Forward computes the summed cross-entropy in nats; rows with a negative target do not count.
func (o *output) Forward(x, w, b []float32, targets []int32) {
	o.shape.CheckForward(x, w, b, targets)
	o.run(x, w, b, targets, nil)
}

// ForwardBackward also overwrites the gradients of scale times that sum.
func (o *output) ForwardBackward(x, w, b []float32, targets []int32, scale float32,
	dx, dw, db []float32) {
	o.shape.CheckForward(x, w, b, targets)
	o.shape.CheckBackward(b, dx, dw, db)
	o.run(x, w, b, targets, &gradientsOut{scale, dx, dw, db})
}

// run enqueues the loss, the gradients unless they are nil, and the loss's way to the host.
func (o *output) run(x, w, b []float32, targets []int32, to *gradientsOut) {
	ids := o.targets.put(func(host []byte) {
		o.shape.CheckTargets(targets) // on a Replay they may be others than at first
		copy(int32s(host), targets)
	})
	if o.few.fits() {
		o.runFew(x, w, b, ids, to)
	} else {
		o.runChunks(x, w, b, ids, to)
	}
}

// runChunks makes the logits of some rows at a time.
func (o *output) runChunks(x, w, b []float32, ids unsafe.Pointer, to *gradientsOut) {
	s, d, copies := o.shape, o.device, o.halves
	if copies.w != nil {
		d.gemm.round(operandBF16, at(w), copies.w, s.V*s.H)
	}
	for first := 0; first < s.N; first += o.rows {
		n := min(o.rows, s.N-first)
		rows := at(x[first*s.H:])
		if copies.x != nil {
			d.gemm.round(operandBF16, rows, copies.x, n*s.H)
		}
		d.gemm.productOf(d.gemm.forward(), halves{copies.x, copies.w}, false, true, n, s.V, s.H, 1,
			rows, at(w), 0, o.logits)
		kernel, scale, smoothing := "head_loss", float32(0), float32(0)
		if to != nil {
			kernel, scale, smoothing = "head_gradient", to.scale, s.Smoothing
		}
		l, cached := rowLaunch(n, s.V, d.queue.info.SharedPerBlock)
		if cached {
			kernel += "_cached"
		}
		d.queue.launch(kernel, l, int32(s.V), o.logits, b, unsafe.Add(ids, 4*first), scale,
			smoothing, unsafe.Add(o.losses, 8*first), copies.logits)
		if to == nil {
			continue
		}
		beta := float32(min(first, 1)) // the first chunk overwrites
		d.gemm.productOf(d.gemm.backward(), halves{copies.logits, copies.w}, false, false, n, s.H,
			s.V, 1, o.logits, at(w), 0, at(to.dx[first*s.H:]))
		d.gemm.productOf(d.gemm.backward(), halves{copies.logits, copies.x}, true, false, s.V, s.H,
			n, 1, o.logits, rows, beta, at(to.dw))
		if to.db != nil {
			columnSums(&d.memory, summed{out: at(to.db), add: first > 0}, o.logits, n, s.V)
		}
	}
	sumDoubles(&d.queue, o.sum, o.result, o.losses, s.N)
}

// Threads and shared memory of a row's block: kernels/head.cu.
const (
	rowBytes   = 2 * 32 * 4 // two numbers of every warp
	rowThreads = 512
	// longRow is the length of a row from which a multiprocessor keeps at most three: then their
	// blocks have twice as many threads.
	longRow = 1 << 14
)

// rowLaunch is a block for each of n rows of V logits. It has enough threads to load a row at once,
// but few idle ones. cached: the row is kept in shared memory, of which a block has at most shared
// bytes.
func rowLaunch(n, V, shared int) (l launch, cached bool) {
	threads := 32
	for threads < rowThreads && 8*threads < V {
		threads *= 2
	}
	if V > longRow {
		threads = 2 * rowThreads
	}
	l = across(n, threads)
	l.shared = rowBytes
	if cached = rowBytes+4*V <= shared; cached {
		l.shared += 4 * V
	}
	return l, cached
}

// Sum implements compute.Output.
func (o *output) Sum() float64 {
	return o.result.read()
}

// Close frees the workspace; it may be called more than once.
func (o *output) Close() {
	if o.targets != nil {
		o.targets.close()
	}
	if o.result != nil {
		o.result.close()
	}
	o.device.memory.release(o.memory)
	o.memory = nil
}
