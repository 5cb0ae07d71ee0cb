package count

import (
	"rondo/compute"
	"rondo/model"
)

// Place returns the places of tensors with these names and shapes, one behind the other.
func Place(tensors ...compute.Tensor) (views []model.View) {
	for _, t := range tensors {
		t.Offset, t.Len = model.Span(views), 1
		for _, n := range t.Shape {
			t.Len *= n
		}
		views = append(views, model.View{Tensor: t})
	}
	return views
}

// Parameters are a Model's, in a device's memory.
type Parameters struct {
	device compute.Device
	views  []model.View
	flat   []float32
}

// NewParameters allocates them. It panics if the device lacks memory: see compute.Catch.
func NewParameters(device compute.Device, views []model.View) Parameters {
	return Parameters{device, views, device.Alloc(model.Span(views))}
}

// Device is the one whose memory has the parameters.
func (p Parameters) Device() compute.Device { return p.device }

// Layout returns the tensors' places.
func (p Parameters) Layout() []model.View { return p.views }

// Params returns all parameters, in device memory.
func (p Parameters) Params() []float32 { return p.flat }

// Download returns a copy of all parameters, in host memory.
func (p Parameters) Download() []float32 {
	host := make([]float32, len(p.flat))
	p.device.Download(host, p.flat)
	return host
}

// Close frees them.
func (p Parameters) Close() { p.device.Free(p.flat) }
