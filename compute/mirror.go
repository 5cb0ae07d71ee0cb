package compute

import "context"

// Mirror is a gradient in device memory, and the host memory in which ranks sum it. Where the
// device's memory is the host's, both are the same floats.
type Mirror struct {
	Device []float32
	// Host has the gradient's floats, and behind them those that travel with it.
	Host    []float32
	InPlace bool // Host begins with Device itself

	dev    Device
	stager Stager   // that Host is of; nil: copies are waited for
	staged []Staged // parts of the gradient on their way to Host
}

// NewMirror returns the mirror of a gradient, with so many floats behind it in host memory. It
// panics with a *MemoryError if there is no memory.
func NewMirror(dev Device, gradient []float32, behind int) *Mirror {
	m := &Mirror{Device: gradient, dev: dev}
	if s, ok := dev.(Stager); ok {
		m.stager, m.Host = s, s.AllocHost(len(gradient)+behind)
	} else {
		m.Host = make([]float32, len(gradient)+behind)
	}
	return m
}

// NewMirrorInPlace returns the mirror of the first n floats of host memory, which the device
// computes in. What is behind them travels with the gradient.
func NewMirrorInPlace(dev Device, memory []float32, n int) *Mirror {
	return &Mirror{Device: memory[:n:n], Host: memory, InPlace: true, dev: dev}
}

// Close frees the host memory.
func (m *Mirror) Close() {
	if m.stager != nil {
		m.stager.FreeHost(m.Host)
	}
	m.Host, m.stager = nil, nil
}

// Gradient is the host memory of the gradient alone.
func (m *Mirror) Gradient() []float32 { return m.Host[:len(m.Device)] }

// Behind is the host memory behind the gradient.
func (m *Mirror) Behind() []float32 { return m.Host[len(m.Device):] }

// Stage is where the gradient may be copied to while it is computed; nil: it cannot be.
func (m *Mirror) Stage() []float32 {
	if m.stager == nil {
		return nil
	}
	return m.Gradient()
}

// Staged says which parts of the gradient are on their way to Stage.
func (m *Mirror) Staged(parts []Staged) { m.staged = parts }

// Arrive waits until all parts that are on their way to the host are there.
func (m *Mirror) Arrive() {
	for _, part := range m.staged {
		part.Wait()
	}
	m.staged = nil
}

// Download brings the gradient to host memory. It calls ready, if that is set, with the end of each
// part that is there.
func (m *Mirror) Download(ctx context.Context, ready func(ctx context.Context, end int)) {
	if ready == nil {
		ready = func(context.Context, int) {}
	}
	n := len(m.Device)
	switch {
	case m.InPlace:
	case m.stager == nil:
		m.dev.Download(m.Gradient(), m.Device)
	case len(m.staged) == 0:
		m.stager.StartDownload(m.Gradient(), m.Device)()
	}
	for _, part := range m.staged {
		part.Wait()
		ready(ctx, part.End)
	}
	m.staged = nil
	ready(ctx, n)
}

// Upload copies host memory back to the device. What the device is asked for next finds it there.
// The host memory must not change before the next Download.
func (m *Mirror) Upload() {
	switch {
	case m.InPlace:
	case m.stager != nil:
		m.stager.StartUpload(m.Device, m.Gradient())
	default:
		m.dev.Upload(m.Device, m.Gradient())
	}
}

// Copy copies device memory beside the gradient, such as a part of it, to host memory.
func (m *Mirror) Copy(dst, src []float32) { m.dev.Download(dst, src) }
