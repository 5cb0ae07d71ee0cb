// Package model has recurrent networks: token ids, an optional embedding, fused recurrent layers
// with dropout of their outputs, and a linear output layer with softmax cross-entropy. A Model
// predicts the next token of a text. A Labeller labels examples or their tokens; its layers may
// have two directions. A Translator has an encoder that reads one sequence and a decoder that
// writes another; the decoder may attend to the encoder's outputs.
//
// Training runs a Gorgonia graph (Segment, LabelPass, TranslationPass) for each (T, B). In it every
// layer is one operator for the whole sequence, computed by a kernel of a compute.Device. The
// gradient of a layer is one operator too; it writes into the flat gradient. Layer is exported, so
// that other graphs may combine it with Gorgonia's operators. Evaluator, Generator and Decoder, for
// evaluation, text generation and translation, call the kernels directly.
//
// All parameters of a Model lie in one slice of device memory and all gradients in another, in the
// order in which the backward pass finishes them; tensors are views with PyTorch's names, shapes
// and gate order (Layout). Clipping, reducing, updating and saving see slices, never layers.
//
// Shapes are those of package compute: T steps, B lanes, V tokens in the vocabulary, E embedding
// width, H hidden width, K gates, L layers; matrices are row-major and sequences time-major.
//
// The package knows no network, disk, corpus or optimizer, and no particular device. Of this module
// it may import only compute. One goroutine at a time may use a Model and the objects made from it,
// as their device. Models on different devices are independent.
package model
