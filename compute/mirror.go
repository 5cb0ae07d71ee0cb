package compute

import "context"

// Mirror is a gradient in device memory, with the host memory in which ranks sum it. Both are the
// same floats if the device uses host memory.
type Mirror struct {
	Device []float32
	// Host has the gradient's floats, followed by those sent with it.
	Host    []float32
	InPlace bool // Host begins with Device itself

	dev    Device
	stager Stager   // the owner of Host; nil: each copy is waited for
	staged []Staged // parts of the gradient in transfer to Host
}

// NewMirror returns a gradient's mirror in new host memory, with behind more floats. It panics with
// a *MemoryError if there is no memory.
func NewMirror(dev Device, gradient []float32, behind int) *Mirror {
	m := &Mirror{Device: gradient, dev: dev}
	if s, ok := dev.(Stager); ok {
		m.stager, m.Host = s, s.AllocHost(len(gradient)+behind)
	} else {
		m.Host = make([]float32, len(gradient)+behind)
	}
	return m
}

// NewMirrorInPlace returns the mirror for a device that computes in host memory: the gradient is
// the first n floats of memory, and the rest is sent with it.
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

// Stage is the memory for copies of the gradient while it is computed; nil: none are possible.
func (m *Mirror) Stage() []float32 {
	if m.stager == nil {
		return nil
	}
	return m.Gradient()
}

// Staged sets the parts of the gradient that are in transfer to Stage.
func (m *Mirror) Staged(parts []Staged) { m.staged = parts }

// Arrive waits for the transfer of all parts to the host.
func (m *Mirror) Arrive() {
	for _, part := range m.staged {
		part.Wait()
	}
	m.staged = nil
}

// Download copies the gradient to host memory. It calls ready, if set, with the end of each part
// that has arrived.
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

// Upload copies host memory back to the device, before the device's later work. The host memory
// must not change before the next Download.
func (m *Mirror) Upload() {
	switch {
	case m.InPlace:
	case m.stager != nil:
		m.stager.StartUpload(m.Device, m.Gradient())
	default:
		m.dev.Upload(m.Device, m.Gradient())
	}
}

// Copy copies device memory, such as a part of the gradient, to host memory dst.
func (m *Mirror) Copy(dst, src []float32) { m.dev.Download(dst, src) }
