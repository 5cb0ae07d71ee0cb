package model

import (
	"fmt"
	"slices"
	"strings"

	"rondo/compute"
)

// Alignment is the alignment of every view in floats: 64 bytes, a cache line.
const Alignment = 16

// View is a tensor's place in the flat parameters and in the flat gradients.
type View struct {
	compute.Tensor
	role role
}

// of returns the view's part of flat.
func (v View) of(flat []float32) []float32 {
	return flat[v.Offset : v.Offset+v.Len : v.Offset+v.Len]
}

// end is the offset of the next view.
func (v View) end() int { return v.Offset + roundUp(v.Len) }

// role is a tensor's purpose. It selects the initial distribution.
type role int

const (
	roleInput         role = iota // [K*H, D]
	roleRecurrent                 // [K*H, H]
	roleInputBias                 // [K*H]
	roleRecurrentBias             // [K*H]
	rolePeephole                  // [P*H], or the logits of leaks
	roleOutput                    // [V, H]
	roleOutputBias                // [V]
	roleProjection                // a linear layer's without bias
	roleEmbedding                 // [V, E]
	roleNormWeight                // [W]
	roleNormBias                  // [W]
	roleDenseBias                 // of a deep input, transition or output
)

// Names of the tensors outside recurrent layers.
const (
	outputWeight     = "output.weight"
	outputBias       = "output.bias"
	projectionWeight = "projection.weight"
	embeddingWeight  = "embedding.weight"
)

// layouter places views one after the other.
type layouter struct {
	views []View
	next  int // the offset of the next view
}

func (l *layouter) add(role role, name string, shape ...int) {
	n := 1
	for _, d := range shape {
		n *= d
	}
	l.views = append(l.views,
		View{compute.Tensor{Name: name, Shape: shape, Offset: l.next, Len: n}, role})
	l.next += roundUp(n)
}

// layer adds a recurrent layer's tensors. name(what) returns the name of each.
func (l *layouter) layer(s compute.RecurrentShape, name func(what string) string) {
	rows := s.Cell.Gates() * s.H
	l.add(roleInput, name("weight_ih"), rows, s.Inputs())
	hidden := s.Cell.HiddenGates() * s.H
	if hidden > 0 {
		l.add(roleRecurrent, name("weight_hh"), hidden, s.H)
	}
	l.add(roleInputBias, name("bias_ih"), rows)
	if hidden > 0 {
		l.add(roleRecurrentBias, name("bias_hh"), hidden)
	}
	if n := s.Cell.Peepholes(); n > 0 {
		l.add(rolePeephole, name(s.Cell.Elementwise()), n*s.H)
	}
	for i := range s.Transition {
		l.add(roleProjection, name(fmt.Sprintf("transition.%d.weight", i)), s.H, s.H)
		l.add(roleDenseBias, name(fmt.Sprintf("transition.%d.bias", i)), s.H)
	}
}

// perceptron adds the tensors of a perceptron of so many layers, the last one's first.
func (l *layouter) perceptron(name string, layers, inputs, width int) {
	for i := layers - 1; i >= 0; i-- {
		D := width
		if i == 0 {
			D = inputs
		}
		l.add(roleProjection, fmt.Sprintf("%s.%d.weight", name, i), width, D)
		l.add(roleDenseBias, fmt.Sprintf("%s.%d.bias", name, i), width)
	}
}

// Layout returns each tensor's place in the flat parameters: the output layer first, then the
// recurrent layers from the last to the first, and the embedding last. The backward pass finishes
// gradients in this order, so the finished part is always a prefix. Every view is padded to 64
// bytes with floats that stay zero. c must be valid.
//
//	output.tail.{i}.1.weight [V_i, H_i] for i from the last tail to 0; with Cutoffs, whose K tails
//	output.tail.{i}.0.weight [H_i, H]   have V_i tokens each: see compute.AdaptiveParts
//	output.weight      [V, H]     absent when tied; with Cutoffs [Cutoffs[0]+K, H]
//	output.bias        [V]        with Cutoffs [Cutoffs[0]+K]
//	projection.weight  [E, H]     when tied and E != H
//	deep_output.{i}.weight [H, H] for i from the last to 0; with DeepOutput
//	deep_output.{i}.bias   [H]
//	norm.{k}.weight    [H]        for k = L-1 … 0, before the layer's others; with LayerNorm
//	norm.{k}.bias      [H]
//	rnn.weight_ih_l{k} [K*H, D]   for k = L-1 … 0; D is H, and for k = 0 E, F, or one-hot V; with
//	                              SkipThroughTime H columns more
//	rnn.weight_hh_l{k} [K*H, H]
//	rnn.bias_ih_l{k}   [K*H]
//	rnn.bias_hh_l{k}   [K*H]      this and weight_hh are absent if the gates read the input alone
//	rnn.weight_peephole_l{k} [P*H], of cells that have peepholes; PyTorch has no name for it
//	rnn.weight_leak_l{k} [H], of cells that learn their leak
//	rnn.transition.{i}.weight_l{k} [H, H] for i from 0 on; with DeepTransition
//	rnn.transition.{i}.bias_l{k}   [H]
//	deep_input.{i}.weight  [H, H] for i from the last to 0, the first layer's [H, E or F]
//	deep_input.{i}.bias    [H]
//	embedding.weight   [V, E]     absent when one-hot; the output layer's too when tied
func Layout(c Config) []View {
	var l layouter
	layoutOutput(c, &l)
	if c.projects() {
		l.add(roleProjection, projectionWeight, c.Embed, c.Hidden)
	}
	l.perceptron(deepOutput, c.DeepOutput, c.Hidden, c.Hidden)
	stackConfig{Config: c}.layout(&l)
	return l.views
}

// LayerLayout returns the places of one recurrent layer's tensors (weight_ih, weight_hh, bias_ih,
// bias_hh, the elementwise weights if it has them, and those of a deep transition) in the weight
// vector of a Layer. T and B of s do not matter.
func LayerLayout(s compute.RecurrentShape) []View {
	var l layouter
	l.layer(s, func(what string) string { return what })
	return l.views
}

// Finishes returns the ends, in floats, of the gradient prefixes that a backward pass finishes in
// turn.
//
// After a recurrent layer's recurrence its weight gradients are one product each over all steps:
// first W_ih's, then the others', then the gradient for the layer below. The first layer's
// gradients come last and have the least work to overlap with, so W_hh's are reported gate by gate.
// A device whose layers are no compute.ProgressReporter reports all gradients of a layer together.
// The last end is the whole gradient. c must be valid.
func Finishes(c Config) []int {
	views := Layout(c)
	var ends []int
	add := func(name string) { ends = append(ends, find(views, name).end()) }
	add(outputBias)
	if c.projects() {
		add(projectionWeight)
	}
	if c.DeepOutput > 0 {
		add(denseEnd(deepOutput))
	}
	return append(ends, stackConfig{Config: c}.finishes(views)...)
}

// recurrentEnds are the Finishes of the recurrent layers.
func (c stackConfig) recurrentEnds(views []View) (ends []int) {
	order := c.directions()
	for i, d := range order {
		_, end := d.span(views)
		if c.layerShape(d.layer, 1, 1).Composed() || c.WeightDrop > 0 {
			ends = append(ends, end) // its gradients are finished together
			continue
		}
		ends = append(ends, find(views, d.name("weight_ih")).end())
		if at := index(views, d.name("weight_hh")); at >= 0 && i == len(order)-1 {
			w := views[at]
			H := w.Shape[1]
			for rows := H; rows < w.Shape[0]; rows += H {
				ends = append(ends, w.Offset+rows*H)
			}
		}
		ends = append(ends, end)
	}
	return ends
}

// direction is a recurrent layer, in one of its directions if it has two.
type direction struct {
	prefix  string // of the tensors' names
	layer   int
	reverse bool
}

// name returns PyTorch's name of a tensor of the layer in this direction.
func (d direction) name(what string) string {
	if d.reverse {
		return fmt.Sprintf("%srnn.%s_l%d_reverse", d.prefix, what, d.layer)
	}
	return fmt.Sprintf("%srnn.%s_l%d", d.prefix, what, d.layer)
}

// span returns its part of the flat parameters: [begin, end).
func (d direction) span(views []View) (begin, end int) {
	rnn := d.prefix + "rnn."
	for _, v := range views {
		if strings.HasPrefix(v.Name, rnn) && strings.HasSuffix(v.Name, d.name("")[len(rnn):]) {
			end = v.end()
		}
	}
	return find(views, d.name("weight_ih")).Offset, end
}

// layerName returns PyTorch's name of a tensor of layer k.
func layerName(what string, k int) string { return direction{layer: k}.name(what) }

// Span is the number of floats that the views take, with padding.
func Span(views []View) int {
	if len(views) == 0 {
		return 0
	}
	return views[len(views)-1].end()
}

// Count is the number of parameters in the views, without padding.
func Count(views []View) int {
	n := 0
	for _, v := range views {
		n += v.Len
	}
	return n
}

// find returns the view with this name. It must exist.
func find(views []View, name string) View {
	i := index(views, name)
	if i < 0 {
		panic(fmt.Sprintf("model: no tensor %q among %d", name, len(views)))
	}
	return views[i]
}

// index is where the view with this name is; -1: there is none.
func index(views []View, name string) int {
	return slices.IndexFunc(views, func(v View) bool { return v.Name == name })
}

// layerSpan returns recurrent layer k's part of the flat parameters: [begin, end).
func layerSpan(views []View, k int) (begin, end int) { return direction{layer: k}.span(views) }

// recurrentWeights splits a layer's weight vector, in the layout of LayerLayout, into tensors.
func recurrentWeights(views []View, flat []float32) compute.RecurrentWeights {
	var w compute.RecurrentWeights
	for _, v := range views {
		switch x := v.of(flat); v.role {
		case roleInput:
			w.IH = x
		case roleRecurrent:
			w.HH = x
		case roleInputBias:
			w.BiasIH = x
		case roleRecurrentBias:
			w.BiasHH = x
		case rolePeephole:
			w.Peephole = x
		case roleProjection:
			w.Transition = append(w.Transition, compute.Linear{W: x})
		case roleDenseBias:
			w.Transition[len(w.Transition)-1].B = x
		}
	}
	return w
}

// roundUp rounds n up to a multiple of the alignment.
func roundUp(n int) int { return (n + Alignment - 1) / Alignment * Alignment }

// LookupWeight names the tensor in which tokens are looked up: the embedding, by row, or with
// one-hot input the first layer's input weights, by column.
func (c Config) LookupWeight() string {
	if c.Embed > 0 {
		return embeddingWeight
	}
	return layerName("weight_ih", 0)
}
