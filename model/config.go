package model

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"rondo/compute"
)

// Limits of a Config: beyond what a machine holds, so that a slip of the hand is told.
const (
	maxVocab  = math.MaxInt32 // token ids are int32
	maxWidth  = 65536         // of hidden state and embedding
	maxLayers = 64
)

// Config is the shape of a model and how its weights begin.
type Config struct {
	Cell   compute.Cell
	Vocab  int // V, tokens
	Embed  int // E; 0 is one-hot input, of width V
	Hidden int // H
	Layers int // L

	// Dropout is the probability with which training drops an element of a recurrent layer's
	// output, of every layer: torch.nn drops those of all layers but the last.
	Dropout float64
	// DropoutInput is the same for the embedding's output, which is the first layer's input.
	DropoutInput float64
	// TieWeights makes the embedding [V, E] the output layer's weights as well (Press and Wolf,
	// arXiv:1608.05859). When E differs from H, a linear layer without bias, projection.weight
	// [E, H], stands before the output layer.
	TieWeights bool

	Init Init
	// ForgetBias is added to the initial bias of a cell's forget gates (Jozefowicz et al.
	// 2015). It goes to bias_ih, so that the two biases' sum has it once.
	ForgetBias float64
	// Seed determines the initial weights and, with a step, the dropout masks.
	Seed uint64

	// Recompute, unless 0, is of how many steps a segment holds activations at a time: see Segment.
	Recompute int
	// GradientTail is how many floats GradientsWithTail has after the gradients: room for values
	// that travel in the same all-reduce.
	GradientTail int
}

// shape is the model's shape, for messages.
func (c Config) shape() string {
	return fmt.Sprintf("%v, hidden %d, layers %d, vocabulary %d, embedding %d", c.Cell, c.Hidden,
		c.Layers, c.Vocab, c.Embed)
}

// Validate says what is wrong with c in one line that names the flag, or returns nil.
func (c Config) Validate() error {
	if !c.Cell.Known() {
		return fmt.Errorf("--cell: %d is not a cell", int(c.Cell))
	}
	if c.Vocab < 1 || c.Vocab > maxVocab {
		return fmt.Errorf("the vocabulary has %d tokens; it must have 1 to %d: check --corpus",
			c.Vocab, maxVocab)
	}
	if c.Hidden < 1 || c.Hidden > maxWidth {
		return fmt.Errorf("--hidden %d: must be 1 to %d", c.Hidden, maxWidth)
	}
	if c.Layers < 1 || c.Layers > maxLayers {
		return fmt.Errorf("--layers %d: must be 1 to %d", c.Layers, maxLayers)
	}
	if c.Embed < 0 || c.Embed > maxWidth {
		return fmt.Errorf("--embed %d: must be 0 (one-hot) to %d", c.Embed, maxWidth)
	}
	if c.TieWeights && c.Embed == 0 {
		return errors.New("--tie-weights needs --embed: one-hot input has no weights to share")
	}
	if err := c.validateDropout(); err != nil {
		return err
	}
	if c.Recompute < 0 {
		return fmt.Errorf("--recompute %d: must be at least 0", c.Recompute)
	}
	if c.GradientTail < 0 {
		return fmt.Errorf("a gradient tail of %d floats; it must be at least 0", c.GradientTail)
	}
	return c.validateInit()
}

func (c Config) validateDropout() error {
	for _, d := range []struct {
		flag string
		p    float64
	}{{"--dropout", c.Dropout}, {"--dropout-input", c.DropoutInput}} {
		if !(d.p >= 0 && float32(d.p) < 1) { // kernels have it in float32
			return fmt.Errorf("%s %v: must be at least 0 and less than 1", d.flag, d.p)
		}
	}
	if c.DropoutInput > 0 && c.Embed == 0 {
		return fmt.Errorf("--dropout-input %v drops elements of the embedding: set --embed",
			c.DropoutInput)
	}
	return nil
}

func (c Config) validateInit() error {
	if !(math.Abs(c.ForgetBias) <= math.MaxFloat32) {
		return fmt.Errorf("--forget-bias %v: must be finite", c.ForgetBias)
	}
	if _, ok := c.Cell.ForgetGate(); c.ForgetBias != 0 && !ok {
		return fmt.Errorf("--forget-bias %v needs --cell %s: %v has no forget gate",
			c.ForgetBias, strings.Join(compute.ForgetCellNames(), " or "), c.Cell)
	}
	return c.Init.validate()
}

// StateSize is how many floats one lane carries between segments: [L, States, H].
func (c Config) StateSize() int { return c.Layers * c.Cell.States() * c.Hidden }

// inputWidth is D of layer l.
func (c Config) inputWidth(l int) int {
	switch {
	case l > 0:
		return c.Hidden
	case c.Embed > 0:
		return c.Embed
	default:
		return c.Vocab
	}
}

// projects says whether projection.weight stands before the output layer.
func (c Config) projects() bool { return c.TieWeights && c.Embed != c.Hidden }

// outputWidth is the width of the output layer's input.
func (c Config) outputWidth() int {
	if c.TieWeights {
		return c.Embed
	}
	return c.Hidden
}

// layerShape is recurrent layer l over a segment of T steps and B lanes.
func (c Config) layerShape(l, T, B int) compute.RecurrentShape {
	return compute.RecurrentShape{Cell: c.Cell, T: T, B: B, D: c.inputWidth(l), H: c.Hidden}
}
