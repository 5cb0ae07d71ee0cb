package turing

import (
	"math"

	"rondo/task/memory"
)

// head is what a head of a step has computed, and its gradients. N: rows of the memory; M: its
// width; S: shifts.
type head[F memory.Float] struct {
	raw    []F // [M+3+S, and of a writing head 2 M more]: the controller's, before its functions
	key    []F // [M]
	shift  []F // [S]
	erase  []F // [M], of a writing head, as add
	add    []F // [M]
	beta   F   // strength of the key
	gate   F   // share of content in the weights
	gamma  F   // exponent
	cosine []F // [N]: of the key and the rows
	norms  []F // [N]: of the rows
	norm   F   // of the key

	content      []F // [N]: the softmax of beta cosine
	interpolated []F // [N]
	shifted      []F // [N]
	weights      []F // [N]
}

// scratch is what the backward pass of an address needs for a moment.
type scratch[F memory.Float] struct {
	shifted, interpolated, content, cosine, key, shift []F
}

func newScratch[F memory.Float](c Config) *scratch[F] {
	zeros, N, S := memory.Zeros[F], c.Rows, c.shifts()
	return &scratch[F]{zeros(N), zeros(N), zeros(N), zeros(N), zeros(c.Width), zeros(S)}
}

// tiny keeps the cosine of a row or key of zeros finite.
const tiny = 1e-8

func newHead[F memory.Float](c Config, writes bool) *head[F] {
	zeros, N := memory.Zeros[F], c.Rows
	h := &head[F]{key: zeros(c.Width), shift: zeros(c.shifts()), cosine: zeros(N), norms: zeros(N),
		content: zeros(N), interpolated: zeros(N), shifted: zeros(N), weights: zeros(N)}
	if writes {
		h.erase, h.add = zeros(c.Width), zeros(c.Width)
	}
	return h
}

// address computes the weights of a head on a memory [N, M] from its raw outputs and its weights
// of the step before: equations 5 to 9 of Graves et al. 2014.
func (h *head[F]) address(raw, mem, before []F) {
	M, S, N := len(h.key), len(h.shift), len(before)
	h.raw = raw
	for i := range h.key {
		h.key[i] = memory.Tanh(raw[i])
	}
	h.beta = memory.Softplus(raw[M])
	h.gate = memory.Sigmoid(raw[M+1])
	memory.Softmax(h.shift, raw[M+2:M+2+S])
	h.gamma = 1 + memory.Softplus(raw[M+2+S])

	h.norm = memory.Norm(h.key)
	clear(h.cosine)
	memory.Multiply(h.cosine, mem, h.key)
	for i := range h.cosine {
		h.norms[i] = memory.Norm(mem[i*M:][:M])
		h.cosine[i] /= h.norms[i]*h.norm + tiny
		h.content[i] = h.beta * h.cosine[i]
	}
	memory.Softmax(h.content, h.content)
	for i, w := range h.content {
		h.interpolated[i] = h.gate*w + (1-h.gate)*before[i]
	}
	clear(h.shifted)
	for j, s := range h.shift {
		k := turn(j-S/2, N)
		memory.AddScaled(h.shifted[k:], s, h.interpolated[:N-k])
		memory.AddScaled(h.shifted[:k], s, h.interpolated[N-k:])
	}
	sharpen(h.weights, h.shifted, h.gamma)
}

// turn is the row to which a shift by so many moves row 0, around the end.
func turn(by, rows int) int { return (by%rows + rows) % rows }

// sharpen sets w to the powers of v, divided by their sum.
func sharpen[F memory.Float](w, v []F, gamma F) {
	largest := v[0]
	for _, x := range v {
		largest = max(largest, x)
	}
	var sum F
	for i, x := range v {
		w[i] = 0
		if x > 0 {
			w[i] = memory.Exp(gamma * F(math.Log(float64(x/largest))))
		}
		sum += w[i]
	}
	for i := range w {
		w[i] /= sum
	}
}

// addressBackward adds to the gradients of the raw outputs, of the memory and of the weights of
// the step before, given that of the weights.
func (h *head[F]) addressBackward(s *scratch[F], dweights, mem, before, draw, dmem, dbefore []F) {
	M, S, N := len(h.key), len(h.shift), len(before)
	var dgamma, dgate, dbeta F
	inner, largest := memory.Dot(dweights, h.weights), F(0)
	for _, x := range h.shifted {
		largest = max(largest, x)
	}
	for i, w := range h.weights {
		s.shifted[i] = 0
		if x := h.shifted[i]; x > 0 && w > 0 {
			d := dweights[i] - inner
			dgamma += w * d * F(math.Log(float64(x/largest)))
			s.shifted[i] = h.gamma * (w / x) * d
		}
	}
	clear(s.interpolated)
	for j, share := range h.shift {
		k := turn(j-S/2, N)
		s.shift[j] = memory.Dot(h.interpolated[:N-k], s.shifted[k:]) +
			memory.Dot(h.interpolated[N-k:], s.shifted[:k])
		memory.AddScaled(s.interpolated[:N-k], share, s.shifted[k:])
		memory.AddScaled(s.interpolated[N-k:], share, s.shifted[:k])
	}
	for i, d := range s.interpolated {
		dgate += d * (h.content[i] - before[i])
		dbefore[i] += (1 - h.gate) * d
		s.content[i] = h.gate * d
	}
	clear(s.cosine)
	memory.SoftmaxBackward(s.cosine, h.content, s.content)
	clear(s.key)
	var dnorm F // of the key's norm
	for i, d := range s.cosine {
		dbeta += d * h.cosine[i]
		d *= h.beta
		length := h.norms[i]*h.norm + tiny
		row, drow := mem[i*M:][:M], dmem[i*M:][:M]
		memory.AddScaled(drow, d/length, h.key)
		memory.AddScaled(s.key, d/length, row)
		if d *= -h.cosine[i] / length; h.norms[i] > 0 { // of the length
			memory.AddScaled(drow, d*h.norm/h.norms[i], row)
			dnorm += d * h.norms[i]
		}
	}
	if h.norm > 0 {
		memory.AddScaled(s.key, dnorm/h.norm, h.key)
	}
	for i, k := range h.key {
		draw[i] += s.key[i] * (1 - k*k)
	}
	draw[M] += dbeta * memory.Sigmoid(h.raw[M])
	draw[M+1] += dgate * h.gate * (1 - h.gate)
	memory.SoftmaxBackward(draw[M+2:M+2+S], h.shift, s.shift)
	draw[M+2+S] += dgamma * memory.Sigmoid(h.raw[M+2+S])
}
