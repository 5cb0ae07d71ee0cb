// Package model is a recurrent language model: token ids, an optional embedding, fused recurrent
// layers with dropout of their outputs, and a linear output layer with softmax cross-entropy.
//
// Training runs through Gorgonia graphs (Segment), one for each (T, B), in which every layer is
// one operator over a kernel of a compute.Device: the graph is that of a sequence, not of a time
// step. The gradient of a layer is one operator too, and it writes into the flat gradient.
// Layer is public, so that graphs of one's own may mix it with Gorgonia's operators.
// Evaluation (Evaluator) and text generation (Generator) call the kernels directly.
//
// All parameters of a Model lie in one slice of device memory and all gradients in another, in
// the order in which the backward pass finishes them; tensors are views with PyTorch's names,
// shapes and gate order (Layout). What clips, reduces, updates or saves sees slices, never layers.
//
// Shapes are those of package compute: T steps, B lanes, V tokens in the vocabulary, E embedding
// width, H hidden width, K gates, L layers; matrices are row-major and sequences time-major.
//
// The package knows no network, disk, corpus or optimizer, and no particular device. Of this
// module it may import compute alone. A Model and what is made from it are used by one goroutine
// at a time, as their device is; different models on different devices are independent.
package model
