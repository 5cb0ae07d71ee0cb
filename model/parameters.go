package model

import (
	"fmt"
	"slices"

	"rondo/compute"
)

// parameters are a network's parameters and their gradients, in a device's memory.
type parameters struct {
	dev    compute.Device
	views  []View
	params []float32 // Span(views)
	grads  []float32 // Span(views), padded, then the tail
	rows   gradientRows
}

// allocate allocates the parameters, and the gradients with a tail of this many floats.
func (p *parameters) allocate(tail int) (err error) {
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	defer compute.Catch(&err)
	n := Span(p.views)
	p.params = p.dev.Alloc(n)
	p.grads = p.dev.Alloc(n + tail)
	return nil
}

// initialise sets the parameters to the initial weights.
func (p *parameters) initialise(c Config) { p.dev.Upload(p.params, initial(c, p.views)) }

// Device returns the device that the network computes on.
func (p *parameters) Device() compute.Device { return p.dev }

// Tensors returns each tensor's name, shape and place in Params and Gradients.
func (p *parameters) Tensors() []compute.Tensor {
	tensors := make([]compute.Tensor, len(p.views))
	for i, v := range p.views {
		tensors[i] = v.Tensor
	}
	return tensors
}

// Layout returns each tensor's place in Params and Gradients.
func (p *parameters) Layout() []View { return slices.Clone(p.views) }

// Count returns the number of parameters, without padding.
func (p *parameters) Count() int { return Count(p.views) }

// Params returns all parameters, with padding, in device memory.
func (p *parameters) Params() []float32 { return p.params }

// Gradients returns all gradients, with zero padding, in device memory.
func (p *parameters) Gradients() []float32 { return p.grads[:len(p.params):len(p.params)] }

// GradientsWithTail returns the gradients followed by the Config's GradientTail floats.
func (p *parameters) GradientsWithTail() []float32 { return p.grads }

// Param returns a tensor's view of Params, and its shape.
func (p *parameters) Param(name string) (x []float32, shape []int, err error) {
	for _, v := range p.views {
		if v.Name == name {
			return v.of(p.params), slices.Clone(v.Shape), nil
		}
	}
	return nil, nil, fmt.Errorf("model: there is no tensor %q in this model", name)
}

// Gradient returns a tensor's view of Gradients.
func (p *parameters) Gradient(name string) ([]float32, error) {
	for _, v := range p.views {
		if v.Name == name {
			return v.of(p.grads), nil
		}
	}
	return nil, fmt.Errorf("model: there is no tensor %q in this model", name)
}

// Close frees the parameters and gradients. Close what was made from the network first.
func (p *parameters) Close() {
	if p.params == nil {
		return
	}
	p.dev.Free(p.params)
	p.dev.Free(p.grads)
	p.params, p.grads = nil, nil
}

// view returns a tensor's part of a flat slice laid out as the parameters. The tensor must exist.
func (p *parameters) view(name string, flat []float32) []float32 {
	return find(p.views, name).of(flat)
}

// valueOf is a tensor's part of the parameters.
func (p *parameters) valueOf(v View) []float32 { return v.of(p.params) }

// checkHooks returns an error for hooks that do not fit the network or its device.
func (p *parameters) checkHooks(h Hooks) error {
	_, stager := p.dev.(compute.Stager)
	if h.Stage != nil && !(stager && len(h.Stage) == len(p.params)) {
		return fmt.Errorf("model: %d gradients cannot be staged in %d floats by %s", len(p.params),
			len(h.Stage), p.dev.Name())
	}
	_, recorder := p.dev.(compute.Recorder)
	if h.Finished != nil && (recorder || stager || h.Behind != nil) {
		return fmt.Errorf("model: %s cannot report finished gradients during a run", p.dev.Name())
	}
	return nil
}

// stage starts to copy the gradients up to end to host memory, after the parts in before.
func (p *parameters) stage(host []float32, before []compute.Staged, end int) compute.Staged {
	first := 0
	if n := len(before); n > 0 {
		first = before[n-1].End
	}
	return compute.Staged{End: end,
		Wait: p.dev.(compute.Stager).StartDownload(host[first:end], p.grads[first:end])}
}
