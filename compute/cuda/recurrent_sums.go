//go:build cuda

package cuda

import (
	"unsafe"

	"rondo/compute"
)

// The parts of a layer that are neither its recurrence nor products: kernels/layer.cu.

const (
	tile      = 32 // rows and columns that a block transposes
	tileBytes = 4 * tile * (tile + 1)
	tileRows  = 8 // of its threads
	// tokenChunk is how many rows of a frequent token one thread sums before their sum is added.
	tokenChunk = 16
)

// copied is n floats of device memory and where they go; zeros go there if from is nil.
type copied struct {
	to, from unsafe.Pointer
	n        int
}

// copy makes up to four copies in one launch; those of nothing are left out.
func (r *recurrent) copy(all []copied) {
	var four [4]copied
	count, longest := 0, 0
	for _, c := range all {
		if c.n > 0 {
			four[count] = c
			count, longest = count+1, max(longest, c.n)
		}
	}
	if count == 0 {
		return
	}
	l := r.device.queue.over(longest)
	l.grid[1] = count
	r.device.queue.launch("layer_copy", l, four[0].to, four[0].from, int64(four[0].n), four[1].to,
		four[1].from, int64(four[1].n), four[2].to, four[2].from, int64(four[2].n), four[3].to,
		four[3].from, int64(four[3].n))
}

// columns copies a block of columns of a matrix to one of another.
func (r *recurrent) columns(to unsafe.Pointer, toPitch int, from unsafe.Pointer, fromPitch int,
	rows, columns int) {
	r.device.queue.launch("layer_columns", r.device.queue.parted(rows, 1), to, int32(toPitch), from,
		int32(fromPitch), int32(rows), int32(columns))
}

// stageTokens checks the ids of a segment, which on a Replay may be others, and sends them.
func (r *recurrent) stageTokens(ids []int32) {
	if r.tokens == nil {
		r.tokens = r.device.memory.newStaged(4 * len(ids))
	}
	r.tokensAt = r.tokens.put(func(host []byte) {
		compute.CheckIDs("one-hot input", ids, r.shape.D)
		copy(int32s(host), ids)
	})
}

// stageLengths checks the lengths of rows, which on a Replay may be others, and sends them.
func (r *recurrent) stageLengths(lengths []int32) {
	if r.lengths == nil {
		r.lengths = r.device.memory.newStaged(4 * len(lengths))
	}
	r.tape.lengths = r.lengths.put(func(host []byte) {
		compute.CheckLengths(lengths, r.shape.T)
		copy(int32s(host), lengths)
	})
}

// gather sets rows of act to the columns of W_ih that their tokens pick, plus b_ih. Columns are
// read where they lie if there are few rows for the vocabulary; otherwise W_ih is transposed first.
func (r *recurrent) gather(w compute.RecurrentWeights, ids unsafe.Pointer, rows int) {
	D, d, act := r.shape.D, r.device, r.tape.act
	each := across(rows, flatThreads)
	each.grid[1] = blocksFor(r.wide, flatWork)
	if D > 2*rows {
		d.queue.launch("layer_pick", each, act, at(w.IH), at(w.BiasIH), ids, int32(r.wide),
			int32(D))
		return
	}
	table := d.memory.scratch(4 * D * r.wide) // [D, K*H]
	d.queue.launch("layer_table", r.tiles(), table, at(w.IH), at(w.BiasIH), int32(r.wide), int32(D))
	d.queue.launch("layer_gather", each, act, table, ids, int32(r.wide))
}

// tiles is a block for every tile of a [K*H, D] matrix.
func (r *recurrent) tiles() launch {
	return launch{grid: [3]int{blocksFor(r.shape.D, tile), blocksFor(r.wide, tile), 1},
		block: [3]int{tile, tileRows, 1}, shared: tileBytes}
}

// tokenGradient sets the gradient of one-hot weights: in the column of a token the sum of the rows
// of act where it is the input, in a fixed order. It sets what biases has, too, if one pass can.
func (r *recurrent) tokenGradient(dw []float32, biases summed) (biasesToo bool) {
	ids, d := r.input.IDs, r.device
	D, n := r.shape.D, len(ids)
	if r.order == nil {
		r.order = d.memory.newStaged(4 * (D + 1 + n))
	}
	starts := r.order.put(func(host []byte) {
		all := int32s(host)
		sortTokens(all[:D+1], all[D+1:D+1+n], ids)
	})
	order := behind(starts, D+1)
	chunks := n / tokenChunk
	var partial unsafe.Pointer // [chunks, K*H]
	if chunks > 0 {
		partial = d.memory.scratch(4 * chunks * r.wide)
		each := across(chunks, flatThreads)
		each.grid[1] = blocksFor(r.wide, flatThreads)
		d.queue.launch("layer_token_chunks", each, partial, r.tape.act, r.tokensAt, order,
			int32(tokenChunk), int32(r.wide))
	}
	l := r.tiles()
	l.block[1] = tile
	biasesToo = l.grid[0] == 1
	if !biasesToo {
		biases = summed{}
	}
	d.queue.launch("layer_tokens", l, at(dw), r.tape.act, partial, starts, order, int32(tokenChunk),
		int32(r.wide), int32(D), biases.out, biases.also, int32(biases.same))
	return biasesToo
}

// sortTokens sets order to the rows of ids by token, ascending for each: those of token d are
// order[starts[d]:starts[d+1]].
func sortTokens(starts, order, ids []int32) {
	clear(starts)
	for _, id := range ids {
		starts[id+1]++
	}
	for d := range len(starts) - 1 {
		starts[d+1] += starts[d]
	}
	for i, id := range ids {
		order[starts[id]] = int32(i)
		starts[id]++
	}
	copy(starts[1:], starts[:len(starts)-1]) // each is where the next began
	starts[0] = 0
}

// layerHalves are copies in bfloat16 of what several products of cuBLAS multiply: x: [T, B, D], w,
// which is W_ih: [K*H, D], and act: [T, B, K*H]. They are nil until Forward's product shares them,
// and where cuBLAS does not make all products.
type layerHalves struct{ memory, x, w, act unsafe.Pointer }

func (h *layerHalves) parts(s compute.RecurrentShape) []part {
	rows, wide := s.T*s.B, s.Cell.Gates()*s.H
	return []part{{&h.x, 2 * rows * s.D}, {&h.w, 2 * wide * s.D}, {&h.act, 2 * rows * wide}}
}

// sharesHalves says whether the products of a dense layer, but for the recurrence, share copies.
func (r *recurrent) sharesHalves() bool {
	s := r.shape
	return !r.inference && r.device.gemm.sharesHalves(s.T*s.B, r.wide, s.D)
}

// roundInput rounds x and W_ih for this segment's products that share them.
func (r *recurrent) roundInput(x, w unsafe.Pointer) halves {
	if !r.sharesHalves() {
		return halves{}
	}
	h, g, s := &r.halves, &r.device.gemm, r.shape
	if h.memory == nil {
		h.memory = r.device.memory.cut(h.parts(s))
	}
	g.round(operandBF16, x, h.x, s.T*s.B*s.D)
	g.round(operandBF16, w, h.w, r.wide*s.D)
	return halves{h.x, h.w}
}

// roundGradient rounds act, the gradient of the sums, for the products that share it.
func (r *recurrent) roundGradient() layerHalves {
	if r.input.IDs != nil || !r.sharesHalves() {
		return layerHalves{}
	}
	r.device.gemm.round(operandBF16, r.tape.act, r.halves.act, r.shape.T*r.shape.B*r.wide)
	return r.halves
}

// gradients are those of the weights, the biases and, unless dx is nil, the input. It uses the tape
// up.
func (r *recurrent) gradients(dw compute.RecurrentWeights, dx []float32, copies layerHalves) {
	r.inputGradients(dw, copies)
	if s, g := r.shape, &r.device.gemm; dx != nil {
		g.productOf(g.backward(), halves{copies.act, copies.w}, false, false, s.T*s.B, s.D, r.wide,
			1, r.tape.act, at(r.weights.IH), 0, at(dx))
	}
	r.hiddenGradient(dw.HH, copies)
}

// inputGradients are those of W_ih and of both biases, which are the sums of the rows of act, but
// for GRU's b_hn: its are those of q.
func (r *recurrent) inputGradients(dw compute.RecurrentWeights, copies layerHalves) {
	s, d := r.shape, r.device
	rows := s.T * s.B
	biases := summed{out: at(dw.BiasIH), also: at(dw.BiasHH), same: r.wide}
	if s.Cell.HiddenGates() == 0 {
		biases.also, biases.same = nil, 0
	}
	if s.Cell == compute.GRU {
		biases.same = 2 * s.H
		columnSums(&d.memory, summed{out: at(dw.BiasHH[biases.same:])}, r.tape.q, rows, s.H)
	}
	if s.Cell == compute.LeakyLearned {
		columnSums(&d.memory, summed{out: at(dw.Peephole)}, r.tape.q, rows, s.H)
	}
	ids := r.input.IDs != nil
	if !ids {
		d.gemm.productOf(d.gemm.backward(), halves{copies.act, copies.x}, true, false, r.wide, s.D,
			rows, 1, r.tape.act, at(r.input.X), 0, at(dw.IH))
	} else if r.tokenGradient(dw.IH, biases) {
		return
	}
	if ids && s.D <= rows { // W_ih's gradient is smaller than act, and has the same sums
		d.queue.launch("layer_row_sums", d.queue.overRows(r.wide), biases.out, biases.also,
			int32(biases.same), at(dw.IH), int32(r.wide), int32(s.D))
		return
	}
	columnSums(&d.memory, biases, r.tape.act, rows, r.wide)
}

// hiddenGradient is the product of the recurrent sums' gradients and what W_hh multiplied.
func (r *recurrent) hiddenGradient(dhh []float32, copies layerHalves) {
	s, d := r.shape, r.device
	rows := s.T * s.B
	if s.Cell.HiddenGates() == 0 {
		return
	}
	switch gru := s.Cell == compute.GRU; { // whose recurrent side has a gradient of its own for n
	case gru && copies.act != nil:
		d.queue.launch("layer_columns_bf16", d.queue.parted(rows, 1),
			unsafe.Add(copies.act, 2*2*s.H), int32(r.wide), r.tape.q, int32(s.H), int32(rows),
			int32(s.H))
	case gru:
		r.columns(behind(r.tape.act, 2*s.H), r.wide, r.tape.q, s.H, rows, s.H)
	}
	d.gemm.productOf(d.gemm.backward(), halves{a: copies.act}, true, false, r.wide, s.H, rows, 1,
		r.tape.act, r.tape.h, 0, at(dhh))
	if s.Cell.ResetsBefore() { // whose W_hn multiplied r ⊙ h: its rows once more
		n := r.wide - s.H
		r.columns(r.tape.h, s.H, behind(r.tape.act, n), r.wide, rows, s.H)
		d.gemm.product(d.gemm.backward(), true, false, s.H, s.H, rows, 1, r.tape.h, r.tape.q, 0,
			behind(at(dhh), n*s.H))
	}
}
