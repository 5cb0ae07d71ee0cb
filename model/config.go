package model

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"rondo/compute"
)

// Limits of a Config. They are beyond any machine's memory, and catch typing mistakes.
const (
	maxVocab  = math.MaxInt32 // token ids are int32
	maxWidth  = 65536         // width of the hidden state and the embedding
	maxLayers = 64
	maxSkip   = 4096 // steps
)

// Config is a model's shape and its initial weights.
type Config struct {
	Cell   compute.Cell
	Vocab  int // V, tokens; with Inputs the numbers that the network predicts
	Embed  int // E; 0 is one-hot input, of width V
	Hidden int // H
	Layers int // L
	// Inputs, if not 0, is F: the network reads rows of F numbers instead of tokens, and its loss
	// is the squared error of V numbers. See Model.SetSeries.
	Inputs int

	// Dropout is the probability of dropping an element of a recurrent layer's output in training.
	// It applies to every layer; torch.nn's dropout leaves out the last layer.
	Dropout float64
	// DropoutInput is the same probability for the embedding's output, the first layer's input.
	DropoutInput float64
	// DropoutLocked drops the same elements in all steps that a lane reads in a training step, its
	// segment or example (Gal and Ghahramani 2016, arXiv:1512.05287).
	DropoutLocked bool
	// DropoutOutput, if not nil, takes the place of Dropout behind the last layer.
	DropoutOutput *float64
	// DropoutWords is the probability of dropping a token: in a training step its row of the
	// embedding is zero wherever it is read, and the others' are divided by 1-DropoutWords (Gal and
	// Ghahramani 2016; Merity et al. 2018, arXiv:1708.02182, section 4.3).
	DropoutWords float64
	// WeightDrop is the probability of dropping an element of W_hh in a training step, the same one
	// in all steps of all lanes (DropConnect; Merity et al. 2018, section 2). See weightDrop.
	WeightDrop float64
	// ActivationL2 and TemporalL2 are the weights of penalties on the last layer's output (Merity
	// et al. 2017, arXiv:1708.01009). See penalty.
	ActivationL2, TemporalL2 float64
	// LayerNorm normalises every layer's output (compute.LayerNorm), after its dropout and Skip.
	LayerNorm bool
	// Skip adds a layer's input to its output, after its dropout, from the second layer on.
	Skip bool
	// SkipThroughTime is d: each recurrent layer also reads its own output d steps before, through
	// H columns more of W_ih. 0: it does not. It needs Embed or Inputs. See compute.NewRecurrent.
	SkipThroughTime int
	// HiddenBackward is the width of the second direction of a Labeller's layers; 0: Hidden.
	HiddenBackward int
	// DeepInput, DeepTransition and DeepOutput are how many layers y = tanh(W x + b), H wide each,
	// lie between the input and the first recurrent layer, between the hidden states of two steps
	// (of every layer, see compute.NewRecurrent), and before the output layer (Pascanu et al. 2014,
	// arXiv:1312.6026). DeepInput needs Embed or Inputs.
	DeepInput, DeepTransition, DeepOutput int
	// Omega is the weight of a regulariser that keeps the norm of gradients on their way back in
	// time; 0: none. See omega: it is for RNNTanh, on devices that do not record.
	Omega float64
	// LabelSmoothing is that of the training's targets: see compute.Output.ForwardBackward.
	// Evaluations are without it.
	LabelSmoothing float64
	// TieWeights uses the embedding [V, E] as the output layer's weights too (Press and Wolf,
	// arXiv:1608.05859). If E differs from H, a linear layer without bias, projection.weight [E,
	// H], precedes the output layer.
	TieWeights bool
	// Cutoffs, unless empty, make the output layer a compute.Adaptive: tokens below the first are
	// in its head, and each begins a tail. They ascend, and are below V. Tokens must be in the
	// order of falling frequency, as corpus makes vocabularies of words and characters.
	Cutoffs []int

	Init Init
	// ForgetBias is added to the initial bias of a cell's forget gates (Jozefowicz et al. 2015). It
	// is added to bias_ih alone, so that the sum of both biases has it once.
	ForgetBias float64
	// Leak is the leak of compute.Leaky, and of compute.LeakyLearned at first: in (0, 1], and below
	// 1 if it is learned. 0: compute.DefaultLeak.
	Leak float64
	// Periods are those of compute.Clockwork. Zero: compute.DefaultPeriods.
	Periods compute.Periods
	// Seed determines the initial weights and, with step, layer and lane, the dropout masks.
	Seed uint64

	// Recompute, if not 0, is the number of steps whose activations a segment holds at a time: see
	// Segment.
	Recompute int
	// GradientTail is how many floats GradientsWithTail has behind the gradients, for values that
	// travel in the same all-reduce.
	GradientTail int
}

// shape describes the model's shape in messages.
func (c Config) shape() string {
	return fmt.Sprintf("%v, hidden %d, layers %d, vocabulary %d, embedding %d", c.Cell, c.Hidden,
		c.Layers, c.Vocab, c.Embed)
}

// Validate returns nil, or an error of one line that names the wrong flag.
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
	if c.HiddenBackward < 0 || c.HiddenBackward > maxWidth {
		return fmt.Errorf("--hidden-backward %d: must be 0 to %d", c.HiddenBackward, maxWidth)
	}
	if c.Layers < 1 || c.Layers > maxLayers {
		return fmt.Errorf("--layers %d: must be 1 to %d", c.Layers, maxLayers)
	}
	if c.Embed < 0 || c.Embed > maxWidth {
		return fmt.Errorf("--embed %d: must be 0 (one-hot) to %d", c.Embed, maxWidth)
	}
	if c.Skip && c.Layers < 2 {
		return fmt.Errorf("--skip-connections begin at the second layer, and --layers is %d",
			c.Layers)
	}
	if c.Inputs < 0 || c.Inputs > maxWidth {
		return fmt.Errorf("the series has %d columns; it must have 1 to %d: check --corpus",
			c.Inputs, maxWidth)
	}
	if c.Inputs > 0 && c.Embed > 0 {
		return fmt.Errorf("--embed %d is for tokens, and the input is numbers: leave it out",
			c.Embed)
	}
	if err := c.validateDeep(); err != nil {
		return err
	}
	if c.TieWeights && c.Embed == 0 {
		return errors.New("--tie-weights needs --embed: one-hot input has no weights to share")
	}
	if err := c.validateDropout(); err != nil {
		return err
	}
	if err := validatePenalties(c); err != nil {
		return err
	}
	if err := validateCutoffs(c); err != nil {
		return err
	}
	if !(c.Omega >= 0 && float32(c.Omega) <= math.MaxFloat32) {
		return fmt.Errorf("--omega %v: must be at least 0", c.Omega)
	}
	if c.Omega > 0 && (c.Cell != compute.RNNTanh || c.DeepTransition > 0 || c.Recompute > 0 ||
		c.SkipThroughTime > 0) {
		return fmt.Errorf("--omega %v is for --cell rnn, without --deep-transition, "+
			"--skip-through-time and --recompute",
			c.Omega)
	}
	if !(c.LabelSmoothing >= 0 && float32(c.LabelSmoothing) < 1) { // kernels take it as float32
		return fmt.Errorf("--label-smoothing %v: must be at least 0 and less than 1",
			c.LabelSmoothing)
	}
	if c.Recompute < 0 {
		return fmt.Errorf("--recompute %d: must be at least 0", c.Recompute)
	}
	if c.GradientTail < 0 {
		return fmt.Errorf("a gradient tail of %d floats; it must be at least 0", c.GradientTail)
	}
	return c.validateInit()
}

func (c Config) validateDeep() error {
	for _, d := range []struct {
		flag   string
		layers int
	}{{"--deep-input", c.DeepInput}, {"--deep-transition", c.DeepTransition},
		{"--deep-output", c.DeepOutput}} {
		if d.layers < 0 || d.layers > maxLayers {
			return fmt.Errorf("%s %d: must be 0 to %d", d.flag, d.layers, maxLayers)
		}
	}
	if c.DeepInput > 0 && c.rowWidth() == 0 {
		return fmt.Errorf("--deep-input %d reads the embedding: set --embed", c.DeepInput)
	}
	if d := c.SkipThroughTime; d != 0 && (d < 2 || d > maxSkip) {
		return fmt.Errorf("--skip-through-time %d: must be 2 to %d, or 0 for none", d, maxSkip)
	}
	if c.SkipThroughTime > 0 && c.rowWidth() == 0 {
		return fmt.Errorf("--skip-through-time %d reads the embedding: set --embed",
			c.SkipThroughTime)
	}
	return nil
}

func (c Config) validateDropout() error {
	for _, d := range []struct {
		flag string
		p    float64
	}{{"--dropout", c.Dropout}, {"--dropout-input", c.DropoutInput},
		{"--dropout-words", c.DropoutWords}, {"--weight-drop", c.WeightDrop},
		{"--dropout-output", dropoutOf(c, c.Layers-1)}} {
		if !(d.p >= 0 && float32(d.p) < 1) { // kernels take it as float32
			return fmt.Errorf("%s %v: must be at least 0 and less than 1", d.flag, d.p)
		}
	}
	if c.DropoutInput > 0 && c.Embed == 0 {
		return fmt.Errorf("--dropout-input %v drops elements of the embedding: set --embed",
			c.DropoutInput)
	}
	if c.DropoutWords > 0 && c.Embed == 0 {
		return fmt.Errorf("--dropout-words %v drops rows of the embedding: set --embed",
			c.DropoutWords)
	}
	if c.WeightDrop > 0 && c.Cell.HiddenGates() == 0 {
		return fmt.Errorf("--weight-drop %v drops recurrent weights, and --cell %v has none",
			c.WeightDrop, c.Cell)
	}
	return nil
}

// validatePenalties checks ActivationL2 and TemporalL2.
func validatePenalties(c Config) error {
	for _, p := range []struct {
		flag   string
		weight float64
	}{{"--activation-l2", c.ActivationL2}, {"--temporal-l2", c.TemporalL2}} {
		if !(p.weight >= 0 && float32(p.weight) <= math.MaxFloat32) {
			return fmt.Errorf("%s %v: must be at least 0", p.flag, p.weight)
		}
	}
	if c.TemporalL2 > 0 && c.Recompute > 0 {
		return fmt.Errorf("--temporal-l2 %v needs the whole segment's outputs: leave out "+
			"--recompute", c.TemporalL2)
	}
	return nil
}

// dropoutOf is the probability of dropout behind a layer.
func dropoutOf(c Config, layer int) float64 {
	if layer == c.Layers-1 && c.DropoutOutput != nil {
		return *c.DropoutOutput
	}
	return c.Dropout
}

// WithoutRegularisers is the configuration of the same network, whose passes compute the loss of
// the text alone.
func WithoutRegularisers(c Config) Config {
	c.Dropout, c.DropoutInput, c.DropoutOutput, c.DropoutWords, c.WeightDrop = 0, 0, nil, 0, 0
	c.ActivationL2, c.TemporalL2, c.Omega, c.LabelSmoothing = 0, 0, 0, 0
	return c
}

func (c Config) validateInit() error {
	if !(math.Abs(c.ForgetBias) <= math.MaxFloat32) {
		return fmt.Errorf("--forget-bias %v: must be finite", c.ForgetBias)
	}
	if _, ok := c.Cell.ForgetGate(); c.ForgetBias != 0 && !ok {
		return fmt.Errorf("--forget-bias %v needs --cell %s: %v has no forget gate",
			c.ForgetBias, strings.Join(compute.ForgetCellNames(), " or "), c.Cell)
	}
	if !(c.Leak >= 0 && c.Leak <= 1) || c.Leak == 1 && c.Cell == compute.LeakyLearned {
		return fmt.Errorf("--leak %v: must be above 0 and at most 1, and below 1 if it is learned",
			c.Leak)
	}
	if n := c.Periods.Groups(); c.Cell == compute.Clockwork && n > c.Hidden {
		return fmt.Errorf("--periods %v are %d groups of units, and --hidden is %d", c.Periods, n,
			c.Hidden)
	}
	return c.Init.validate()
}

// StateSize is the number of floats that a lane carries between segments: [L, States, H].
func (c Config) StateSize() int { return c.Layers * c.states() * c.Hidden }

// states is the number of [B, H] tensors of a layer's state.
func (c Config) states() int { return c.layerShape(0, 1, 1).States() }

// inputWidth is the input width D of layer l.
func (c Config) inputWidth(l int) int {
	switch {
	case l > 0 || c.DeepInput > 0:
		return c.Hidden
	case c.rowWidth() > 0:
		return c.rowWidth()
	default:
		return c.Vocab
	}
}

// rowWidth is the width of the first layer's input rows, E or F; 0: it is one-hot.
func (c Config) rowWidth() int { return max(c.Embed, c.Inputs) }

// projects reports whether projection.weight precedes the output layer.
func (c Config) projects() bool { return c.TieWeights && c.Embed != c.Hidden }

// outputWidth is the width of the output layer's input.
func (c Config) outputWidth() int {
	if c.TieWeights {
		return c.Embed
	}
	return c.Hidden
}

// layerShape is the shape of recurrent layer l for T steps of B lanes.
func (c Config) layerShape(l, T, B int) compute.RecurrentShape {
	return compute.RecurrentShape{Cell: c.Cell, T: T, B: B, D: c.inputWidth(l), H: c.Hidden,
		Leak: float32(c.Leak), Periods: c.Periods,
		Transition: c.DeepTransition, Skip: c.SkipThroughTime}
}
