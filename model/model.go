package model

import (
	"errors"
	"fmt"

	"rondo/compute"
)

// Model is a language model's parameters and their gradients, in a device's memory.
type Model struct {
	parameters
	config Config
	series series // with Config.Inputs
	// unrecorded is why the device could not record some run; nil: nothing failed.
	unrecorded error
}

// New makes a model with initial weights. They depend on cfg alone, each tensor on the seed and its
// name. New fails if cfg is not valid, or if the device lacks memory. Close frees the model.
func New(cfg Config, dev compute.Device) (*Model, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if dev == nil {
		return nil, errors.New("model: no device")
	}
	if _, records := dev.(compute.Recorder); records && cfg.Omega > 0 {
		return nil, fmt.Errorf("--omega %v computes on a CPU, and the device is %s: give "+
			"--device cpu", cfg.Omega, dev.Name())
	}
	m := &Model{parameters: parameters{dev: dev, views: Layout(cfg)}, config: cfg}
	if err := m.allocate(cfg.GradientTail); err != nil {
		return nil, fmt.Errorf("model: %s: %w", cfg.shape(), err)
	}
	m.Initialise()
	return m, nil
}

// Initialise resets the parameters to the initial weights.
func (m *Model) Initialise() { m.initialise(m.config) }

// DropRegularisers makes the network one WithoutRegularisers, for segments that are made later.
func (m *Model) DropRegularisers() { m.config = WithoutRegularisers(m.config) }

// Config returns the model's configuration.
func (m *Model) Config() Config { return m.config }

// Unrecorded returns why a device that can record could not record a run of one of the model's
// segments, evaluators or generators. Such runs cost the host as much as without recording. It is
// nil if nothing failed.
func (m *Model) Unrecorded() error { return m.unrecorded }

// weights are a model's tensors in the kernels' form.
type weights struct {
	embedding  []float32                  // [V, E], or the series' [rows, F]; nil when one-hot
	layers     []compute.RecurrentWeights // from the first to the last
	norms      []compute.LayerNorm        // likewise, with weights and biases alone; or nil
	deepInput  []compute.Linear           // from the first to the last, or nil
	deepOutput []compute.Linear           // likewise
	projection []float32                  // [E, H], or nil
	output     []float32                  // [V, outputWidth], or with Cutoffs all matrices
	bias       []float32                  // [V], or with Cutoffs that of the head
}

// weights returns the views of the parameters.
func (m *Model) weights() weights {
	c := m.config
	begin, end := outputSpan(c, m.views)
	w := weights{output: m.params[begin:end:end], bias: m.view(outputBias, m.params)}
	if c.Embed > 0 {
		w.embedding = m.view(embeddingWeight, m.params)
	}
	if c.Inputs > 0 {
		w.embedding = m.series.inputs
	}
	if c.projects() {
		w.projection = m.view(projectionWeight, m.params)
	}
	w.deepInput = linears(m.views, deepInput, c.DeepInput, m.valueOf)
	w.deepOutput = linears(m.views, deepOutput, c.DeepOutput, m.valueOf)
	for k := range c.Layers {
		begin, end := layerSpan(m.views, k)
		w.layers = append(w.layers,
			recurrentWeights(LayerLayout(c.layerShape(k, 1, 1)), m.params[begin:end:end]))
		if s := (stackConfig{Config: c}); c.LayerNorm {
			w.norms = append(w.norms, compute.LayerNorm{
				Weight: m.view(s.normName(k, "weight"), m.params),
				Bias:   m.view(s.normName(k, "bias"), m.params)})
		}
	}
	return w
}

// outputWeights names the output layer's weight tensor, [V, outputWidth].
func (c Config) outputWeights() string {
	if c.TieWeights {
		return embeddingWeight
	}
	return outputWeight
}

// checkIDs returns an error for an id outside the vocabulary, or a row outside the series. least is
// 0, or -1 for targets that do not count.
func (m *Model) checkIDs(what string, ids []int32, least int32) error {
	if m.config.Inputs > 0 {
		return m.series.check(what, ids, least)
	}
	for i, id := range ids {
		if id < least || int(id) >= m.config.Vocab {
			return fmt.Errorf("model: %s %d is token %d; the vocabulary has %d",
				what, i, id, m.config.Vocab)
		}
	}
	return nil
}
