package compute

import "fmt"

// Stacker is a Device that can compute recurrent layers of which each reads the one below beside
// each other: a layer is some steps behind the one that it reads from.
type Stacker interface {
	Device
	// NewStack makes the workspace of such layers, the first first, all of the same T, B and H and
	// with what Backward needs. Dropout with this probability stands between them; 0: none. It
	// returns nil where it would compute them one after the other.
	NewStack(shapes []RecurrentShape, dropout float32) Stack
}

// Stack is several recurrent layers with their workspace. What it computes is what its layers do
// one after the other, as Recurrent says, with Device.Dropout in place after each but the last.
type Stack interface {
	// Forward computes Y and Out of every layer. in is the first one's input.
	Forward(in RecurrentInput, layers []StackLayer)
	// Backward refers to the last Forward, and is given what that was; a Forward has at most one.
	// dy: [T, B, H] is the gradient of the last layer's Y. It computes the gradients of every
	// layer, and calls done when it has asked for those of a layer's weights: of the last first.
	Backward(dy []float32, layers []StackLayer, done func(layer int))
	// Close frees the workspace.
	Close()
}

// StackLayer is what one layer of a Stack reads and writes, as Recurrent has it.
type StackLayer struct {
	Weights    RecurrentWeights
	State, Out RecurrentState
	Y          []float32 // [T, B, H]
	// Keys are those of the lanes for the dropout of Y: [B]. Nil for the last layer, and for all
	// where there is no dropout.
	Keys []uint64

	// Gradients are the weights'. DX is the gradient of the layer's input, [T, B, D]: every layer
	// but the first has it, and it may be the memory in which the gradient of the layer's Y is that
	// of another. DOut and DState are Backward's dout and dstate.
	Gradients    RecurrentWeights
	DX           []float32
	DOut, DState RecurrentState
}

// CheckStack panics unless layers of these shapes stand on one another.
func CheckStack(shapes []RecurrentShape, dropout float32) {
	if len(shapes) < 1 || !(dropout >= 0 && dropout <= 1) {
		panic(fmt.Sprintf("compute: a stack of %d layers with dropout %v", len(shapes), dropout))
	}
	for l, s := range shapes {
		s.Check()
		if f := shapes[0]; s.T != f.T || s.B != f.B || s.H != f.H || l > 0 && s.D != f.H {
			panic(fmt.Sprintf("compute: layer %d of a stack is %+v, the first %+v", l, s, f))
		}
	}
}

// CheckStackLayers panics unless there is a StackLayer for each of so many layers.
func CheckStackLayers(want int, layers []StackLayer) {
	CheckLength("a stack's layers", len(layers), want)
	for l := range layers[1:] {
		if layers[l+1].DX == nil {
			panic(fmt.Sprintf("compute: layer %d of a stack has nowhere for its input's gradient",
				l+1))
		}
	}
}
