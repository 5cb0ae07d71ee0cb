package model

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"rondo/compute"
)

// Context is how a Translator's decoder learns of the source, besides attention.
type Context int

const (
	// ContextConcat starts the decoder from the encoder's final states, and appends the last
	// layer's final hidden state to the embedding at each step (Cho et al. 2014, arXiv:1406.1078).
	ContextConcat Context = iota
	// ContextState starts the decoder from the encoder's final states (Sutskever et al. 2014,
	// arXiv:1409.3215).
	ContextState
)

// ContextNames returns the names of all contexts, in the order of their numbers.
func ContextNames() []string { return []string{ContextConcat: "concat", ContextState: "state"} }

// ParseContext returns the context with this name.
func ParseContext(name string) (Context, error) {
	at, err := parseName("--decoder-context", name, ContextNames())
	return Context(at), err
}

// String is the name in --decoder-context.
func (c Context) String() string { return nameOf("decoder-context", int(c), ContextNames()) }

// Feedback is what a Translator's decoder keeps of a step for the next (Goodfellow, Bengio and
// Courville, Deep Learning, 10.2).
type Feedback int

const (
	// FeedbackBoth keeps its state, and reads the token.
	FeedbackBoth Feedback = iota
	// FeedbackOutput reads the token alone: every step starts from a zero state (figure 10.4).
	FeedbackOutput
	// FeedbackHidden keeps the state alone: every step reads the token that begins the target
	// (figure 10.3), so that the tokens of a translation are independent, given the source.
	FeedbackHidden
)

// FeedbackNames returns the names of all feedbacks, in the order of their numbers.
func FeedbackNames() []string {
	return []string{FeedbackBoth: "both", FeedbackOutput: "output", FeedbackHidden: "hidden"}
}

// ParseFeedback returns the feedback with this name.
func ParseFeedback(name string) (Feedback, error) {
	at, err := parseName("--feedback", name, FeedbackNames())
	return Feedback(at), err
}

// parseName returns the index of a flag's value among names.
func parseName(flag, name string, names []string) (int, error) {
	at := slices.Index(names, name)
	if at < 0 {
		return 0, fmt.Errorf("%s %q: give %s", flag, name, strings.Join(names, ", "))
	}
	return at, nil
}

// nameOf is the name with this index.
func nameOf(what string, at int, names []string) string {
	if at < 0 || at >= len(names) {
		return fmt.Sprintf("%s %d", what, at)
	}
	return names[at]
}

// TranslatorConfig is a Translator's shape and its initial weights. Fields that Config has too mean
// the same.
type TranslatorConfig struct {
	Cell         compute.Cell
	SourceVocab  int // tokens; ignored with Vectors
	TargetVocab  int // V, tokens
	Embed        int // E, of source and target; at least 1
	Hidden       int // H, of the decoder and of each direction of the encoder
	Layers       int // L, of the encoder and of the decoder
	Context      Context
	Attention    AttentionKind
	Feedback     Feedback
	Dropout      float64 // of every layer's output; final states are not dropped
	DropoutInput float64 // of both embeddings
	// These are Config's, of the encoder and of the decoder.
	DropoutLocked bool
	LayerNorm     bool
	Skip          bool
	// DeepInput and DeepTransition are Config's, of the encoder and of the decoder, whose DeepInput
	// reads the embedding alone. DeepOutput follows the decoder's layers and attention.
	DeepInput, DeepTransition, DeepOutput int

	// Vectors is F, the columns of the vectors that are the sources, in place of token sequences
	// and an encoder: see SetVectors. 0: none.
	Vectors int

	Ends    Ends  // of the targets; EndToken unless there are Vectors
	End     int32 // the token that ends a target, with another of Ends than EndToken
	Lengths int   // with EndLength: targets have fewer tokens than this, without their end

	LabelSmoothing float64 // of tokens

	// Bidirectional gives the encoder's layers a second direction. The decoder's layer k starts
	// from the sum of both directions' final states. With HiddenBackward the second direction has
	// this width, and a linear layer brings its states to the first one's.
	Bidirectional  bool
	HiddenBackward int

	Init         Init
	ForgetBias   float64
	Leak         float64
	Periods      compute.Periods
	Seed         uint64
	GradientTail int
}

// network is the configuration of the Model with the decoder's embedding and cells.
func (c TranslatorConfig) network() Config {
	return Config{Cell: c.Cell, Vocab: c.TargetVocab, Embed: c.Embed, Hidden: c.Hidden,
		Layers: c.Layers, Dropout: c.Dropout, DropoutInput: c.DropoutInput,
		DropoutLocked: c.DropoutLocked, LayerNorm: c.LayerNorm, Skip: c.Skip,
		DeepInput: c.DeepInput, DeepTransition: c.DeepTransition, DeepOutput: c.DeepOutput,
		LabelSmoothing: c.LabelSmoothing, Init: c.Init, ForgetBias: c.ForgetBias, Leak: c.Leak,
		Periods: c.Periods,
		Seed:    c.Seed, GradientTail: c.GradientTail}
}

// Validate returns nil, or an error of one line that names the wrong flag.
func (c TranslatorConfig) Validate() error {
	source, contexts := c.encoder().Config, ContextInput
	if c.Vectors > 0 {
		source, contexts = c.network(), ContextInput+1
	}
	for _, n := range []Config{source, c.network()} {
		if err := n.Validate(); err != nil {
			return err
		}
	}
	switch {
	case c.Embed == 0:
		return errors.New("--embed 0: a decoder needs an embedding of at least 1")
	case c.Context < 0 || c.Context >= contexts:
		return fmt.Errorf("--decoder-context: %d is not a context", int(c.Context))
	case c.Attention < 0 || int(c.Attention) >= len(AttentionNames()):
		return fmt.Errorf("--attention: %d is not a kind of attention", int(c.Attention))
	case c.Feedback < 0 || int(c.Feedback) >= len(FeedbackNames()):
		return fmt.Errorf("--feedback: %d is not a feedback", int(c.Feedback))
	case c.Feedback != FeedbackOutput:
	case c.Attention == AttentionBahdanau:
		return errors.New("--feedback output keeps no state, with which --attention bahdanau " +
			"asks: give --attention luong or scaled, or another feedback")
	case c.Context == ContextState && c.Attention == AttentionNone:
		return errors.New("--feedback output keeps no state, and with --decoder-context state " +
			"the decoder learns of its source by that alone: give concat, or --attention luong")
	}
	return c.validateVectors()
}

// shape describes the translator's shape in messages.
func (c TranslatorConfig) shape() string {
	text := fmt.Sprintf("%s, source vocabulary %d, attention %v", c.network().shape(),
		c.SourceVocab, c.Attention)
	if c.Bidirectional {
		text += ", bidirectional"
	}
	return text
}

// encoder is the source's embedding and layers.
func (c TranslatorConfig) encoder() stackConfig {
	s := stackConfig{Config: c.network(), prefix: "encoder.", bidirectional: c.Bidirectional}
	s.Vocab, s.HiddenBackward = c.SourceVocab, c.HiddenBackward
	return s
}

// decoder is the target's embedding and layers.
func (c TranslatorConfig) decoder() stackConfig {
	s := stackConfig{Config: c.network(), prefix: "decoder.", first: c.Layers + 1,
		stateless: c.Feedback == FeedbackOutput}
	if c.Context != ContextState {
		s.context = c.Hidden
	}
	if c.Attention == AttentionBahdanau {
		s.attended = c.encoder().width()
	}
	return s
}

// Layout returns each tensor's place in the flat parameters, as Layout does for a Model. c must be
// valid.
//
//	output.weight              [V, H]
//	output.bias                [V]
//	stop.weight, stop.bias     [2, H]    with EndStop: go on, stop; and [2]
//	length.weight, length.bias [Lengths, F] with EndLength; and [Lengths]
//	deep_output.{i}.weight     [H, H]    as in a Model; then .bias
//	attention.output.weight    [H, W+H]  with AttentionLuong or AttentionScaled; W is the
//	                                     encoder's width
//	attention.query.weight     [H, H]    with AttentionBahdanau
//	attention.keys.weight      [H, W]    with any attention
//	attention.score.weight     [1, H]    with AttentionBahdanau
//	decoder.norm.{k}.weight    [H]       with LayerNorm, as in a Model
//	decoder.rnn.weight_ih_l{k} [K*H, D]  for k = L-1 … 0; D is H, for k = 0 E, or H with
//	                                     DeepInput, and H more with ContextConcat, and W more
//	                                     with AttentionBahdanau; then the layer's other tensors
//	decoder.deep_input.{i}.weight [H, H] as in a Model; then .bias
//	decoder.embedding.weight   [V, E]
//	remaining.weight           [Lengths, E] with EndLength
//	bridge.weight              [L*States*H, N] with an encoder of directions of two widths
//	encoder.rnn.weight_ih_l{k} [K*H, D]  as in a Labeller
//	encoder.embedding.weight   [source vocabulary, E]
//	vector.weight              [L*H, F]  with Vectors, in place of the encoder; with
//	                                     ContextInput [H, F]
func (c TranslatorConfig) Layout() []View {
	var l layouter
	l.add(roleOutput, outputWeight, c.TargetVocab, c.Hidden)
	l.add(roleOutputBias, outputBias, c.TargetVocab)
	if c.Ends != EndToken {
		s, weight, bias := c.endShape(1, 1)
		l.add(roleProjection, weight, s.V, s.H)
		l.add(roleDenseBias, bias, s.V)
	}
	l.perceptron(deepOutput, c.DeepOutput, c.Hidden, c.Hidden)
	for _, name := range attentionTensors(c.Attention) {
		l.add(roleProjection, name, c.attentionShape(name)...)
	}
	c.decoder().layout(&l)
	if c.Ends == EndLength {
		l.add(roleEmbedding, remainingWeight, c.Lengths, c.Embed)
	}
	if c.Vectors > 0 {
		l.add(roleProjection, vectorWeight, c.projections()*c.Hidden, c.Vectors)
	} else {
		if c.bridged() {
			l.add(roleProjection, bridgeWeight, c.network().StateSize(), c.HiddenBackward)
		}
		c.encoder().layout(&l)
	}
	return l.views
}

// Finishes returns the ends, in floats, of the gradient prefixes that a backward pass finishes in
// turn, as Finishes does for a Model.
func (c TranslatorConfig) Finishes() []int {
	views := c.Layout()
	ends, decoder := []int{find(views, c.headEnd()).end()}, c.decoder().finishes(views)
	if c.DeepOutput > 0 {
		ends = append(ends, find(views, denseEnd(deepOutput)).end())
	}
	if c.Attention == AttentionBahdanau { // its gradients are sums over the steps
		_, layers := c.decoder().layersSpan(views)
		decoder = slices.DeleteFunc(decoder, func(end int) bool { return end < layers })
	} else {
		for _, name := range attentionTensors(c.Attention) {
			ends = append(ends, find(views, name).end())
		}
	}
	if c.Vectors > 0 {
		return slices.Concat(ends, decoder, []int{find(views, vectorWeight).end()})
	}
	if c.bridged() {
		decoder = append(decoder, find(views, bridgeWeight).end())
	}
	return slices.Concat(ends, decoder, c.encoder().finishes(views))
}

// Translator is an encoder and a decoder of recurrent layers: it reads a source sequence, and
// predicts each next token of a target. A TranslationPass trains it, and a Decoder translates with
// it. This is its parameters and their gradients, in a device's memory.
type Translator struct {
	parameters
	config      TranslatorConfig
	decoderRows gradientRows // of the decoder's embedding; rows are the encoder's
	vectors     []float32    // the sources, [rows, F]
}

// NewTranslator makes a translator with initial weights. They depend on cfg alone, each tensor on
// the seed and its name. It fails if cfg is not valid, or if the device lacks memory. Close frees
// the translator.
func NewTranslator(cfg TranslatorConfig, dev compute.Device) (*Translator, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if dev == nil {
		return nil, errors.New("model: no device")
	}
	t := &Translator{parameters: parameters{dev: dev, views: cfg.Layout()}, config: cfg}
	if err := t.allocate(cfg.GradientTail); err != nil {
		return nil, fmt.Errorf("model: %s: %w", cfg.shape(), err)
	}
	t.Initialise()
	return t, nil
}

// Config returns the translator's configuration.
func (t *Translator) Config() TranslatorConfig { return t.config }

// Finishes returns those of the configuration.
func (t *Translator) Finishes() []int { return t.config.Finishes() }

// Initialise resets the parameters to the initial weights.
func (t *Translator) Initialise() { t.initialise(t.config.network()) }
