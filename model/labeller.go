package model

import (
	"errors"
	"fmt"

	"rondo/compute"
)

// LabellerConfig is a Labeller's shape and its initial weights. Fields that Config has too mean the
// same.
type LabellerConfig struct {
	Cell   compute.Cell
	Vocab  int // V
	Embed  int // E; 0 is one-hot input
	Hidden int // H, of each direction unless there is HiddenBackward
	Layers int // L
	// Bidirectional gives every layer a second direction, which reads each example from its end
	// (Schuster and Paliwal 1997). The next layer reads both: W = 2H columns, the forward direction
	// first. HiddenBackward, if not 0, is the second direction's width: then W = H+HiddenBackward.
	Bidirectional  bool
	HiddenBackward int

	Dropout      float64 // of every layer's output, the last one's too
	DropoutInput float64
	// These are Config's.
	DropoutLocked bool
	DropoutOutput *float64
	DropoutWords  float64
	WeightDrop    float64
	LayerNorm     bool
	Skip          bool

	SkipThroughTime int

	// These too; the deep output follows the pooling.
	DeepInput, DeepTransition, DeepOutput int

	LabelSmoothing float64

	Labels int // C
	Pool   Pool
	Places int // K, with PoolPlaces: labels of an example

	Init         Init
	ForgetBias   float64
	Leak         float64
	Periods      compute.Periods
	Seed         uint64
	GradientTail int
}

// network is the configuration of the Model with the same embedding and cells.
func (c LabellerConfig) network() Config {
	return Config{Cell: c.Cell, Vocab: c.Vocab, Embed: c.Embed, Hidden: c.Hidden,
		HiddenBackward: c.HiddenBackward,
		Layers:         c.Layers, Dropout: c.Dropout, DropoutInput: c.DropoutInput,
		DropoutLocked: c.DropoutLocked, DropoutOutput: c.DropoutOutput,
		DropoutWords: c.DropoutWords, WeightDrop: c.WeightDrop,
		LayerNorm: c.LayerNorm, Skip: c.Skip,
		SkipThroughTime: c.SkipThroughTime,
		DeepInput:       c.DeepInput, DeepTransition: c.DeepTransition, DeepOutput: c.DeepOutput,
		LabelSmoothing: c.LabelSmoothing, Init: c.Init, ForgetBias: c.ForgetBias, Leak: c.Leak,
		Periods: c.Periods,
		Seed:    c.Seed, GradientTail: c.GradientTail}
}

// Validate returns nil, or an error of one line that names the wrong flag.
func (c LabellerConfig) Validate() error {
	if err := c.network().Validate(); err != nil {
		return err
	}
	if c.Labels < 1 || c.Labels > maxVocab {
		return fmt.Errorf("the data have %d labels; there must be 1 to %d: check --corpus",
			c.Labels, maxVocab)
	}
	if !c.Pool.known() {
		return fmt.Errorf("--pool: %d is not a way to pool", int(c.Pool))
	}
	if c.HiddenBackward > 0 && !c.Bidirectional {
		return fmt.Errorf("--hidden-backward %d is for --bidirectional: give it",
			c.HiddenBackward)
	}
	if (c.Pool == PoolPlaces) != (c.Places > 0) {
		return fmt.Errorf("model: labels at %d places, and the pooling is %v", c.Places, c.Pool)
	}
	return nil
}

// shape describes the labeller's shape in messages.
func (c LabellerConfig) shape() string {
	text := fmt.Sprintf("%s, %d labels", c.network().shape(), c.Labels)
	if c.Bidirectional {
		text += ", bidirectional"
	}
	return text
}

// stack is the embedding and the recurrent layers.
func (c LabellerConfig) stack() stackConfig {
	return stackConfig{Config: c.network(), bidirectional: c.Bidirectional}
}

// Rows is the number of labels of an example of T steps.
func (c LabellerConfig) Rows(T int) int {
	switch c.Pool {
	case PoolNone:
		return T
	case PoolPlaces:
		return c.Places
	}
	return 1
}

// outputRows is the number of rows of the output layer's input.
func (c LabellerConfig) outputRows(T, B int) int { return c.Rows(T) * B }

// outputWidth is their width.
func (c LabellerConfig) outputWidth() int {
	if c.DeepOutput > 0 {
		return c.Hidden
	}
	return c.stack().width()
}

// deepOutput is the shape of the deep output for so many rows.
func (c LabellerConfig) deepOutput(rows int) compute.PerceptronShape {
	return compute.PerceptronShape{N: rows, D: c.stack().width(), H: c.Hidden,
		Layers: c.DeepOutput}
}

// Layout returns each tensor's place in the flat parameters, as Layout does for a Model. c must be
// valid.
//
//	output.weight      [C, W]     with DeepOutput [C, H]
//	output.bias        [C]
//	deep_output.{i}.weight [H, H] for i from the last to 0, the first layer's [H, W]; then .bias
//	norm.{k}.weight    [W]        for k = L-1 … 0, before the layer's others; with LayerNorm
//	norm.{k}.bias      [W]
//	rnn.weight_ih_l{k} [K*H, D]   for k = L-1 … 0; D is W, and E (one-hot: V) for k = 0; then the
//	                              layer's other tensors, and those of its second direction, as
//	                              rnn.weight_ih_l{k}_reverse
//	deep_input.{i}.weight  [H, H] for i from the last to 0, the first layer's [H, E]; then .bias
//	embedding.weight   [V, E]     absent when one-hot
func (c LabellerConfig) Layout() []View {
	var l layouter
	l.add(roleOutput, outputWeight, c.Labels, c.outputWidth())
	l.add(roleOutputBias, outputBias, c.Labels)
	l.perceptron(deepOutput, c.DeepOutput, c.stack().width(), c.Hidden)
	c.stack().layout(&l)
	return l.views
}

// Finishes returns the ends, in floats, of the gradient prefixes that a backward pass finishes in
// turn, as Finishes does for a Model.
func (c LabellerConfig) Finishes() []int {
	views := c.Layout()
	ends := []int{find(views, outputBias).end()}
	if c.DeepOutput > 0 {
		ends = append(ends, find(views, denseEnd(deepOutput)).end())
	}
	return append(ends, c.stack().finishes(views)...)
}

// Labeller is a network that reads examples, sequences of tokens, and labels each example, or each
// of its tokens: an embedding, recurrent layers of one or two directions, pooling over an example's
// steps, and a linear output layer with softmax cross-entropy. A LabelPass runs it. This is its
// parameters and their gradients, in a device's memory.
type Labeller struct {
	parameters
	config LabellerConfig
}

// NewLabeller makes a labeller with initial weights. They depend on cfg alone, each tensor on the
// seed and its name. It fails if cfg is not valid, or if the device lacks memory. Close frees the
// labeller.
func NewLabeller(cfg LabellerConfig, dev compute.Device) (*Labeller, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if dev == nil {
		return nil, errors.New("model: no device")
	}
	l := &Labeller{parameters: parameters{dev: dev, views: cfg.Layout()}, config: cfg}
	if err := l.allocate(cfg.GradientTail); err != nil {
		return nil, fmt.Errorf("model: %s: %w", cfg.shape(), err)
	}
	l.Initialise()
	return l, nil
}

// Config returns the labeller's configuration.
func (l *Labeller) Config() LabellerConfig { return l.config }

// EachToken returns a labeller with the same parameters and a label for each token. Close only one
// of the two.
func (l *Labeller) EachToken() *Labeller {
	each := *l
	each.config.Pool, each.config.Places = PoolNone, 0
	return &each
}

// Finishes returns those of the configuration.
func (l *Labeller) Finishes() []int { return l.config.Finishes() }

// Initialise resets the parameters to the initial weights.
func (l *Labeller) Initialise() { l.initialise(l.config.network()) }
