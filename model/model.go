package model

import (
	"errors"
	"fmt"
	"slices"

	"rondo/compute"
)

// Model is a language model's parameters and their gradients, in a device's memory.
type Model struct {
	config Config
	dev    compute.Device
	views  []View
	params []float32 // Span(views)
	grads  []float32 // Span(views), padded, then GradientTail
	rows   gradientRows
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
	views := Layout(cfg)
	m := &Model{config: cfg, dev: dev, views: views}
	if err := m.allocate(Span(views)); err != nil {
		m.Close()
		return nil, fmt.Errorf("model: %s: %w", cfg.shape(), err)
	}
	m.Initialise()
	return m, nil
}

// allocate allocates n parameters and their gradients.
func (m *Model) allocate(n int) (err error) {
	defer compute.Catch(&err)
	m.params = m.dev.Alloc(n)
	m.grads = m.dev.Alloc(n + m.config.GradientTail)
	return nil
}

// Initialise resets the parameters to the initial weights.
func (m *Model) Initialise() { m.dev.Upload(m.params, initial(m.config, m.views)) }

// Config returns the model's configuration.
func (m *Model) Config() Config { return m.config }

// Device returns the device that the model computes on.
func (m *Model) Device() compute.Device { return m.dev }

// Unrecorded returns why a device that can record could not record a run of one of the model's
// segments, evaluators or generators. Such runs cost the host as much as without recording. It is
// nil if nothing failed.
func (m *Model) Unrecorded() error { return m.unrecorded }

// Layout returns each tensor's place in Params and Gradients.
func (m *Model) Layout() []View { return slices.Clone(m.views) }

// Count returns the number of parameters, without padding.
func (m *Model) Count() int { return Count(m.views) }

// Params returns all parameters, with padding, in device memory.
func (m *Model) Params() []float32 { return m.params }

// Gradients returns all gradients, with zero padding, in device memory.
func (m *Model) Gradients() []float32 { return m.grads[:len(m.params):len(m.params)] }

// GradientsWithTail returns the gradients followed by the Config's GradientTail floats.
func (m *Model) GradientsWithTail() []float32 { return m.grads }

// Param returns a tensor's view of Params, and its shape.
func (m *Model) Param(name string) (x []float32, shape []int, err error) {
	for _, v := range m.views {
		if v.Name == name {
			return v.of(m.params), slices.Clone(v.Shape), nil
		}
	}
	return nil, nil, fmt.Errorf("model: there is no tensor %q in this model", name)
}

// Gradient returns a tensor's view of Gradients.
func (m *Model) Gradient(name string) ([]float32, error) {
	for _, v := range m.views {
		if v.Name == name {
			return v.of(m.grads), nil
		}
	}
	return nil, fmt.Errorf("model: there is no tensor %q in this model", name)
}

// Close frees the parameters and gradients. Close segments, evaluators and generators first.
func (m *Model) Close() {
	if m.params == nil {
		return
	}
	m.dev.Free(m.params)
	m.dev.Free(m.grads)
	m.params, m.grads = nil, nil
}

// view returns a tensor's part of a flat slice laid out as the model. The tensor must exist.
func (m *Model) view(name string, flat []float32) []float32 {
	return find(m.views, name).of(flat)
}

// weights are a model's tensors in the kernels' form.
type weights struct {
	embedding  []float32                  // [V, E]; nil when one-hot
	layers     []compute.RecurrentWeights // from the first to the last
	projection []float32                  // [E, H], or nil
	output     []float32                  // [V, outputWidth]
	bias       []float32                  // [V]
}

// weights returns the views of the parameters.
func (m *Model) weights() weights {
	c := m.config
	w := weights{output: m.view(c.outputWeights(), m.params), bias: m.view(outputBias, m.params)}
	if c.Embed > 0 {
		w.embedding = m.view(embeddingWeight, m.params)
	}
	if c.projects() {
		w.projection = m.view(projectionWeight, m.params)
	}
	for k := range c.Layers {
		begin, end := layerSpan(m.views, k)
		w.layers = append(w.layers,
			recurrentWeights(LayerLayout(c.layerShape(k, 1, 1)), m.params[begin:end:end]))
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

// checkIDs returns an error for an id outside the vocabulary. least is 0, or -1 for targets.
func (m *Model) checkIDs(what string, ids []int32, least int32) error {
	for i, id := range ids {
		if id < least || int(id) >= m.config.Vocab {
			return fmt.Errorf("model: %s %d is token %d; the vocabulary has %d",
				what, i, id, m.config.Vocab)
		}
	}
	return nil
}
