package model

import (
	"errors"
	"fmt"

	"rondo/compute"
)

// perceptronName is the name of a Window's tanh layers, before a layer's number.
const perceptronName = "perceptron"

// maxWindow bounds WindowConfig.Reads.
const maxWindow = 1024

// WindowConfig is the shape of a Window and its initial weights.
type WindowConfig struct {
	Vocab  int // V
	Embed  int // E
	Hidden int // H
	Layers int // of H units
	Reads  int // K: the tokens that a prediction depends on

	Init         Init
	Seed         uint64
	GradientTail int // see Config
}

// config has what the initial weights depend on.
func (c WindowConfig) config() Config {
	return Config{Vocab: c.Vocab, Embed: c.Embed, Hidden: c.Hidden, Layers: c.Layers, Init: c.Init,
		Seed: c.Seed, GradientTail: c.GradientTail}
}

// Validate returns nil, or an error of one line that names the wrong flag.
func (c WindowConfig) Validate() error {
	if c.Reads < 1 || c.Reads > maxWindow {
		return fmt.Errorf("--order %d: a perceptron reads 1 to %d tokens and predicts the next",
			c.Reads+1, maxWindow)
	}
	if c.Embed < 1 {
		return fmt.Errorf("--embed %d: a perceptron reads embeddings of at least 1 number", c.Embed)
	}
	return c.config().Validate()
}

// Layout returns each tensor's place in the flat parameters, in the order in which backward
// finishes their gradients.
//
//	output.weight         [V, H]
//	output.bias           [V]
//	perceptron.{i}.weight [H, H] for i from the last to 0, the first layer's [H, K*E]
//	perceptron.{i}.bias   [H]
//	embedding.weight      [V, E]
func (c WindowConfig) Layout() []View {
	var l layouter
	l.add(roleOutput, outputWeight, c.Vocab, c.Hidden)
	l.add(roleOutputBias, outputBias, c.Vocab)
	l.perceptron(perceptronName, c.Layers, c.Reads*c.Embed, c.Hidden)
	l.add(roleEmbedding, embeddingWeight, c.Vocab, c.Embed)
	return l.views
}

// shape is that of the tanh layers for n predictions.
func (c WindowConfig) shape(n int) compute.PerceptronShape {
	return compute.PerceptronShape{N: n, D: c.Reads * c.Embed, H: c.Hidden, Layers: c.Layers}
}

// output is the shape of the output layer for n predictions.
func (c WindowConfig) output(n int) compute.OutputShape {
	return compute.OutputShape{N: n, H: c.Hidden, V: c.Vocab}
}

// PassSize is how much of a device's memory a WindowPass takes. c must be valid.
func (c WindowConfig) PassSize(on compute.Sizer, n int) compute.Size {
	return compute.PerceptronSize(on, c.shape(n)).And(on.OutputSize(c.output(n))).
		And(on.TensorSize(n * c.Reads * c.Embed)).And(on.TensorSize(n * c.Reads * c.Embed)).
		And(on.TensorSize(c.Vocab)).
		And(on.GemmSize(1, c.Vocab, c.Hidden))
}

// Window is a Markov model of a text by a perceptron: a token depends on the K tokens before it.
//
//	x = [e[t-K], ..., e[t-1]]      e: rows of the embedding
//	h = tanh(W x + b), in each layer
//	P = softmax(V h + c)
//
// Bengio, Ducharme, Vincent and Jauvin 2003, "A neural probabilistic language model", without
// direct connections from x to the output.
type Window struct {
	parameters
	config WindowConfig
}

// NewWindow makes a network with initial weights. It fails if c is not valid, or if the device
// lacks memory. Close frees it.
func NewWindow(c WindowConfig, dev compute.Device) (*Window, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	w := &Window{parameters: parameters{dev: dev, views: c.Layout()}, config: c}
	if err := w.allocate(c.GradientTail); err != nil {
		return nil, fmt.Errorf("model: a perceptron on %d tokens: %w", c.Reads, err)
	}
	w.Initialise()
	return w, nil
}

// Initialise resets the parameters to the initial weights.
func (w *Window) Initialise() { w.initialise(w.config.config()) }

// Config returns the network's configuration.
func (w *Window) Config() WindowConfig { return w.config }

// Finishes returns the ends of the gradient prefixes that a pass finishes in turn.
func (w *Window) Finishes() []int {
	return []int{find(w.views, outputBias).end(), find(w.views, denseEnd(perceptronName)).end(),
		Span(w.views)}
}

// WindowPass runs a Window on N predictions at a time.
type WindowPass struct {
	window     *Window
	n          int
	perceptron *compute.Perceptron
	output     compute.Output
	weights    []compute.Linear
	gradients  []compute.Linear
	x, dx      []float32 // [N, K*E]
	logits     []float32 // [V]
	loss       compute.Loss
	staged     []compute.Staged
}

// WindowInput is what a pass reads.
type WindowInput struct {
	Tokens  []int32 // [N, K]: the tokens before each target, the last one last
	Targets []int32 // [N]; -1 does not count
	Scale   float32 // of the summed loss before differentiation
}

// NewPass makes a pass for n predictions. It fails if the device lacks memory. Close frees it.
func (w *Window) NewPass(n int) (p *WindowPass, err error) {
	if n < 1 {
		return nil, errors.New("model: a pass without predictions")
	}
	p = &WindowPass{window: w, n: n}
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	defer compute.Catch(&err)
	c := w.config
	p.perceptron = compute.NewPerceptron(w.dev, c.shape(n))
	p.output = w.dev.NewOutput(c.output(n))
	p.loss = compute.Loss{Last: p.output}
	p.x, p.dx = w.dev.Alloc(n*c.Reads*c.Embed), w.dev.Alloc(n*c.Reads*c.Embed)
	p.logits = w.dev.Alloc(c.Vocab)
	p.weights = linears(w.views, perceptronName, c.Layers, w.valueOf)
	p.gradients = linears(w.views, perceptronName, c.Layers,
		func(v View) []float32 { return v.of(w.grads) })
	return p, nil
}

// Predictions is N, the number of predictions of a pass.
func (p *WindowPass) Predictions() int { return p.n }

// check returns an error for tokens that do not fit.
func (p *WindowPass) check(in WindowInput) error {
	if len(in.Tokens) != p.n*p.window.config.Reads || len(in.Targets) != p.n {
		return fmt.Errorf("model: %d tokens and %d targets for a pass of %d predictions",
			len(in.Tokens), len(in.Targets), p.n)
	}
	V := int32(p.window.config.Vocab)
	for i, id := range in.Tokens {
		if id < 0 || id >= V {
			return fmt.Errorf("model: input %d is token %d; the vocabulary has %d", i, id, V)
		}
	}
	for i, id := range in.Targets {
		if id < -1 || id >= V {
			return fmt.Errorf("model: target %d is token %d; the vocabulary has %d", i, id, V)
		}
	}
	return nil
}

// forward computes the last hidden layer, [N, H].
func (p *WindowPass) forward(tokens []int32) []float32 {
	w := p.window
	w.dev.Embed(p.x, w.view(embeddingWeight, w.params), tokens)
	return p.perceptron.Forward(p.weights, p.x)
}

// Backward runs both passes: see LabelPass.Backward.
func (p *WindowPass) Backward(in WindowInput, hooks Hooks) (lossSum float64, err error) {
	w := p.window
	if err := errors.Join(p.check(in), w.checkHooks(hooks)); err != nil {
		return 0, err
	}
	defer compute.Catch(&err)
	finished := func(tensor string) {
		if hooks.Finished != nil {
			hooks.Finished(find(w.views, tensor).end())
		}
	}
	h := p.forward(in.Tokens)
	if hooks.BeforeBackward != nil {
		if err := hooks.BeforeBackward(); err != nil {
			return 0, err
		}
	}
	p.output.ForwardBackward(h, w.view(outputWeight, w.params), w.view(outputBias, w.params),
		in.Targets, in.Scale, p.perceptron.Gradient(), w.view(outputWeight, w.grads),
		w.view(outputBias, w.grads))
	finished(outputBias)
	for _, l := range p.gradients {
		w.dev.Zero(l.W)
		w.dev.Zero(l.B)
	}
	p.perceptron.Backward(p.weights, p.gradients, p.x, p.perceptron.Gradient(), p.dx)
	finished(denseEnd(perceptronName))
	table := w.view(embeddingWeight, w.grads)
	w.dev.Zero(table)
	w.dev.EmbedBackward(table, p.dx, in.Tokens)
	finished(embeddingWeight)
	if hooks.Behind != nil {
		hooks.Behind(&p.loss)
	}
	if p.staged = nil; hooks.Stage != nil {
		p.staged = append(p.staged, w.stage(hooks.Stage, nil, len(w.params)))
	}
	return p.loss.Sum(), nil
}

// Staged returns the last pass's staged gradients: see LabelPass.Staged.
func (p *WindowPass) Staged() []compute.Staged { return p.staged }

// Score returns the loss summed over the targets, in nats. The scale does not matter.
func (p *WindowPass) Score(in WindowInput) (lossSum float64, err error) {
	if err := p.check(in); err != nil {
		return 0, err
	}
	defer compute.Catch(&err)
	w := p.window
	p.output.Forward(p.forward(in.Tokens), w.view(outputWeight, w.params),
		w.view(outputBias, w.params), in.Targets)
	return p.output.Sum(), nil
}

// Logits copies the logits of the first prediction to host memory, [V].
func (p *WindowPass) Logits(tokens []int32, logits []float32) (err error) {
	in := WindowInput{Tokens: tokens, Targets: make([]int32, p.n)}
	if err := p.check(in); err != nil {
		return err
	}
	defer compute.Catch(&err)
	w, H := p.window, p.window.config.Hidden
	w.dev.Gemm(false, true, 1, len(p.logits), H, 1, p.forward(tokens)[:H],
		w.view(outputWeight, w.params), 0, p.logits)
	w.dev.AddBias(p.logits, w.view(outputBias, w.params))
	w.dev.Download(logits, p.logits)
	return nil
}

// Close frees the pass's memory.
func (p *WindowPass) Close() {
	if p.perceptron != nil {
		p.perceptron.Close()
	}
	if p.output != nil {
		p.output.Close()
	}
	for _, x := range [][]float32{p.x, p.dx, p.logits} {
		p.window.dev.Free(x)
	}
	p.x, p.dx, p.logits = nil, nil, nil
}
