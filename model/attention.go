package model

import (
	"math"

	"gorgonia.org/gorgonia"

	"rondo/compute"
)

// AttentionKind is how a Translator's decoder attends to the encoder's outputs.
type AttentionKind int

const (
	// AttentionNone does not.
	AttentionNone AttentionKind = iota
	// AttentionLuong is global attention with general scores, after the decoder's layers (Luong et
	// al. 2015, arXiv:1508.04025, equations 5 to 8): for the decoder's output h_t and the encoder's
	// outputs e_s, the context c_t is the sum of softmax_s(h_t · W_a e_s) e_s, and the output layer
	// reads tanh(W_c [c_t; h_t]).
	AttentionLuong
	// AttentionBahdanau is additive attention inside the recurrence (Bahdanau et al. 2015,
	// arXiv:1409.0473, as in Dive into Deep Learning): the last layer's state q before a step gives
	// the context, the sum of softmax_s(w · tanh(W_q q + W_k e_s)) e_s, which follows the first
	// layer's other input at that step.
	AttentionBahdanau
	// AttentionScaled is AttentionLuong with scores divided by sqrt(H), as in Vaswani et al. 2017,
	// arXiv:1706.03762, equation 1.
	AttentionScaled
)

// after reports whether attention follows the decoder's layers.
func (a AttentionKind) after() bool { return a == AttentionLuong || a == AttentionScaled }

// AttentionNames returns the names of all kinds of attention, in the order of their numbers.
func AttentionNames() []string {
	return []string{AttentionNone: "none", AttentionLuong: "luong",
		AttentionBahdanau: "bahdanau", AttentionScaled: "scaled"}
}

// ParseAttention returns the kind of attention with this name.
func ParseAttention(name string) (AttentionKind, error) {
	at, err := parseName("--attention", name, AttentionNames())
	return AttentionKind(at), err
}

// String is the name in --attention.
func (a AttentionKind) String() string { return nameOf("attention", int(a), AttentionNames()) }

// Names of the tensors of attention.
const (
	attentionOutput = "attention.output.weight" // W_c: [H, W+H]
	attentionKeys   = "attention.keys.weight"   // W_a or W_k: [H, W]
	attentionQuery  = "attention.query.weight"  // W_q: [H, H]
	attentionScore  = "attention.score.weight"  // w: [1, H]
)

// attentionTensors are the tensors' names, in the order of the layout.
func attentionTensors(kind AttentionKind) []string {
	switch {
	case kind.after():
		return []string{attentionOutput, attentionKeys}
	case kind == AttentionBahdanau:
		return []string{attentionQuery, attentionKeys, attentionScore}
	}
	return nil
}

// attentionShape is the shape of one of these tensors.
func (c TranslatorConfig) attentionShape(name string) []int {
	H, W := c.Hidden, c.encoder().width()
	return map[string][]int{attentionOutput: {H, W + H}, attentionKeys: {H, W},
		attentionQuery: {H, H}, attentionScore: {1, H}}[name]
}

// attention is AttentionLuong or AttentionScaled as an operator: y = tanh(W_c [c; x]) for the
// decoder's output x: [Td, B, H]. It reads the encoder's output, and overwrites its gradient,
// without a node: the encoder runs before, and backward after, in any case.
type attention struct {
	*parameters
	tape     *tape
	memory   *attentionMemory
	of       compute.Attention // V, K and Lengths are of the lanes' sources
	scale    float32           // of the keys, and so of the scores
	y, dx    *buffer           // [Td, B, H]
	dencoded []float32         // [Ts, B, W]
}

// attentionMemory is the working memory of attentions. Those that run in turn share it.
type attentionMemory struct {
	dev               compute.Device
	keys, dkeys       []float32 // [Ts, B, H]
	weights           []float32 // [B, Td, Ts]
	context, dcontext []float32 // [Td, B, W]
	joined            []float32 // [c; x], or its gradient: [Td, B, W+H]
	y                 []float32 // [Td, B, H]
}

// allocate makes room for these steps of B lanes.
func (m *attentionMemory) allocate(c TranslatorConfig, alloc func(n int) []float32, source, target,
	B int) {
	H, W := c.Hidden, c.encoder().width()
	m.keys = alloc(source * B * H)
	m.dkeys = alloc(source * B * H)
	m.weights = alloc(B * target * source)
	m.context = alloc(target * B * W)
	m.dcontext = alloc(target * B * W)
	m.joined = alloc(target * B * (W + H))
	m.y = alloc(target * B * H)
}

func (m *attentionMemory) close() {
	for _, x := range [][]float32{m.keys, m.dkeys, m.weights, m.context, m.dcontext, m.joined,
		m.y} {
		m.dev.Free(x)
	}
	*m = attentionMemory{dev: m.dev}
}

func newAttention(kind AttentionKind, encoder, decoder *stack, m *attentionMemory) *attention {
	T, S, B, H, W := decoder.T, encoder.T, decoder.B, decoder.Hidden, encoder.width()
	part := func(x []float32, n int) []float32 { return x[:n:n] }
	scale := 1.0
	if kind == AttentionScaled {
		scale /= math.Sqrt(float64(H))
	}
	return &attention{parameters: decoder.parameters, tape: decoder.tape, memory: m,
		scale: float32(scale), y: cut(m.y, T, B, H), dx: decoder.inputGradient(0, H),
		dencoded: encoder.inputGradient(0, W).flat,
		of: compute.Attention{T: T, S: S, B: B, H: H, W: W, Lengths: encoder.lengths,
			K: part(m.keys, S*B*H), V: encoder.outputOf(encoder.Layers - 1).flat,
			Weights: part(m.weights, B*T*S), Y: part(m.context, T*B*W)}}
}

// project computes the keys of the encoder's output.
func (a *attention) project() {
	of := a.of
	a.dev.Gemm(false, true, of.S*of.B, of.H, of.W, a.scale, of.V, a.view(attentionKeys, a.params),
		0, of.K)
}

// run computes y. The keys must be there.
func (a *attention) run(x []float32) []float32 {
	of, n, wide := a.of, a.of.T*a.of.B, a.of.W+a.of.H
	of.Q = x
	a.dev.Attend(of)
	joined := a.memory.joined[:n*wide]
	a.dev.CopyRows(a.part(0), packed(of.Y, of.W), n, of.W, nil, false)
	a.dev.CopyRows(a.part(of.W), packed(x, of.H), n, of.H, nil, false)
	a.dev.Gemm(false, true, n, of.H, wide, 1, joined, a.view(attentionOutput, a.params), 0,
		a.y.flat)
	a.dev.Tanh(a.y.flat)
	return a.y.flat
}

// part is the columns of joined rows from at on.
func (a *attention) part(at int) compute.Columns {
	wide := a.of.W + a.of.H
	return compute.Columns{X: a.memory.joined[:a.of.T*a.of.B*wide], Stride: wide, At: at}
}

// backward computes the gradients of x, the weights and the encoder's output. It overwrites dy.
func (a *attention) backward(x, dy []float32) {
	of, n, wide, steps := a.of, a.of.T*a.of.B, a.of.W+a.of.H, a.of.S*a.of.B
	joined, dcontext := a.memory.joined[:n*wide], a.memory.dcontext[:n*of.W]
	dkeys := a.memory.dkeys[:steps*of.H]
	a.dev.TanhBackward(dy, a.y.flat)
	a.dev.Gemm(true, false, of.H, wide, n, 1, dy, joined, 0, a.view(attentionOutput, a.grads))
	a.tape.finish(find(a.views, attentionOutput).end())
	a.dev.Gemm(false, false, n, wide, of.H, 1, dy, a.view(attentionOutput, a.params), 0, joined)
	a.dev.CopyRows(packed(dcontext, of.W), a.part(0), n, of.W, nil, false)
	of.Q = x
	a.dev.AttendBackward(of, dcontext, a.dx.flat, dkeys, a.dencoded)
	a.dev.CopyRows(packed(a.dx.flat, of.H), a.part(of.W), n, of.H, nil, true)
	a.dev.Gemm(true, false, of.H, of.W, steps, a.scale, dkeys, of.V, 0, a.view(attentionKeys,
		a.grads))
	a.tape.finish(find(a.views, attentionKeys).end())
	a.dev.Gemm(false, false, steps, of.W, of.H, a.scale, dkeys, a.view(attentionKeys, a.params), 1,
		a.dencoded)
}

// apply adds the operator to the graph of the decoder's output.
func (a *attention) apply(x *gorgonia.Node, weights *leaves) (*gorgonia.Node, error) {
	in, gradients := gorgonia.Nodes{x}, []*buffer{a.dx}
	for _, name := range attentionTensors(AttentionLuong) {
		v := find(a.views, name)
		in = append(in, weights.tensor(name))
		gradients = append(gradients, cut(v.of(a.grads), v.Shape...))
	}
	return applyTogether("attention", in, a.y, gradients, func(x []float32) {
		a.project()
		a.run(x)
	}, a.backward)
}
