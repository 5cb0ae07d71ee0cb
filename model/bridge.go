package model

import "rondo/compute"

// bridgeWeight stacks one [H, N] matrix per layer and state. With S states, layer k's hidden state
// uses rows [kSH, (kS+1)H), and its cell state, if it has one, the next H.
const bridgeWeight = "bridge.weight"

// bridged reports whether the encoder's directions differ in width. Their final states then cannot
// be added as they are: the decoder's layer k starts from e + Z_k g for the final states e: [B, H]
// and g: [B, N] of the two directions. Z_k: [H, N] is learned, as Bahdanau et al. 2015
// (arXiv:1409.0473, appendix A.2.2) learn a matrix for their decoder's first state.
func (c TranslatorConfig) bridged() bool {
	return c.Bidirectional && c.HiddenBackward > 0 && c.HiddenBackward != c.Hidden
}

// bridgeSize is the memory of the gradients of the second direction's final states, in floats.
func (c TranslatorConfig) bridgeSize(B int) int {
	if !c.bridged() {
		return 0
	}
	return c.Layers * c.Cell.States() * B * c.HiddenBackward
}

// joint is where a final state of the encoder's second direction, [B, N], is added to that of the
// first one, [B, H], which takes the sum.
type joint struct {
	dev             compute.Device
	B               int
	first, second   []float32
	dfirst, dsecond []float32 // gradients, in the same memory if the widths are the same
	w, dw           []float32 // Z_k: [H, N]; nil: the widths are the same
}

func (j joint) run() {
	if j.w == nil {
		j.dev.Add(j.first, j.second)
		return
	}
	H, N := len(j.first)/j.B, len(j.second)/j.B
	j.dev.Gemm(false, true, j.B, H, N, 1, j.second, j.w, 1, j.first)
}

func (j joint) backward() {
	if j.w == nil {
		return
	}
	H, N := len(j.first)/j.B, len(j.second)/j.B
	j.dev.Gemm(true, false, H, N, j.B, 1, j.dfirst, j.second, 0, j.dw)
	j.dev.Gemm(false, false, j.B, N, H, 1, j.dfirst, j.w, 0, j.dsecond)
}

// makeJoints makes the joints of a bidirectional encoder. memory is of bridgeSize.
func (n *translation) makeJoints(memory []float32) {
	e, c := n.encoder, n.translator.config
	for k := range e.layers {
		sides := e.sides(k)
		if len(sides) < 2 {
			return
		}
		first, second := sides[0], sides[1]
		if c.bridged() {
			size := c.bridgeSize(e.B) / c.Layers
			second.dout = cutState(second.shape, memory[k*size:])
		}
		n.addJoint(first.out.H, second.out.H, first.dout.H, second.dout.H)
		if first.out.C != nil {
			n.addJoint(first.out.C, second.out.C, first.dout.C, second.dout.C)
		}
	}
}

func (n *translation) addJoint(first, second, dfirst, dsecond []float32) {
	j := joint{dev: n.encoder.dev, B: n.encoder.B, first: first, second: second, dfirst: dfirst,
		dsecond: dsecond}
	if n.translator.config.bridged() {
		view := find(n.encoder.views, bridgeWeight)
		size := len(first) / j.B * view.Shape[1]
		at := len(n.joints) * size
		j.w = view.of(n.encoder.params)[at : at+size : at+size]
		j.dw = view.of(n.encoder.grads)[at : at+size : at+size]
	}
	n.joints = append(n.joints, j)
}

// joinBackward computes the gradients of the second direction's final states, which have the first
// one's unless there is a bridge.
func (n *translation) joinBackward() {
	for _, j := range n.joints {
		j.backward()
	}
	if n.translator.config.bridged() {
		n.finish(find(n.encoder.views, bridgeWeight).end())
	}
}
