package ngram

import (
	"fmt"
	"math"

	"rondo/compute"
	"rondo/model"
)

// Names of the tensors.
const (
	GramsName  = "ngram.tokens" // [M, N]: the n-grams, sorted
	CountsName = "ngram.counts" // [M]: how often each occurs
)

// Config is a model's shape, and how it makes probabilities of counts.
type Config struct {
	Order      int // N
	Vocabulary int // V
	Grams      int // M
	Smoothing  Smoothing
}

// alignment is that of tensors, in floats.
const alignment = 16

// Layout returns the tensors' places in the flat parameters.
func Layout(c Config) []model.View {
	counts := compute.Tensor{Name: CountsName, Shape: []int{c.Grams}, Len: c.Grams}
	end := (c.Grams + alignment - 1) / alignment * alignment
	return []model.View{{Tensor: counts}, {Tensor: compute.Tensor{Name: GramsName,
		Shape: []int{c.Grams, c.Order}, Offset: end, Len: c.Grams * c.Order}}}
}

// Model is the counts of n-grams, in a device's memory.
type Model struct {
	config Config
	device compute.Device
	params []float32
}

// NewModel makes a model without n-grams. It fails if the device lacks memory. Close frees it.
func NewModel(c Config, device compute.Device) (m *Model, err error) {
	if err := c.Smoothing.validate(); err != nil {
		return nil, err
	}
	m = &Model{config: c, device: device}
	defer compute.Catch(&err)
	m.params = device.Alloc(model.Span(m.Layout()))
	device.Zero(m.params)
	return m, nil
}

// Device is the one whose memory has the counts.
func (m *Model) Device() compute.Device { return m.device }

// Layout is Layout of the model's config.
func (m *Model) Layout() []model.View { return Layout(m.config) }

// Params returns all parameters, in device memory.
func (m *Model) Params() []float32 { return m.params }

// Close frees the model.
func (m *Model) Close() { m.device.Free(m.params) }

// Estimator makes probabilities of the current counts. It fails if the parameters are no counts of
// n-grams.
func (m *Model) Estimator() (e *Estimator, err error) {
	defer compute.Catch(&err)
	flat := make([]float32, len(m.params))
	m.device.Download(flat, m.params)
	views := m.Layout()
	grams := make([]int32, views[1].Len)
	for i, x := range flat[views[1].Offset:][:len(grams)] {
		if !(x >= 0 && x < float32(m.config.Vocabulary)) || x != float32(int32(x)) {
			return nil, fmt.Errorf("%s %d is %v, and no token", GramsName, i, x)
		}
		grams[i] = int32(x)
	}
	counts := make([]int64, m.config.Grams)
	for i, x := range flat[:len(counts)] {
		if !(x >= 0 && x < mostCounted) || float64(x) != math.Trunc(float64(x)) {
			return nil, fmt.Errorf("%s %d is %v, and no count", CountsName, i, x)
		}
		counts[i] = int64(x)
	}
	return newEstimator(m.config, grams, counts), nil
}
