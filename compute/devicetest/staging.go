package devicetest

import (
	"math"
	"slices"

	"rondo/compute"
)

// Stager is a stand-in for a device that copies beside its work. It wraps another device; no copy
// arrives before it is waited for.
type Stager struct {
	compute.Device
	Hosts    int // host memory that has not been given back
	Started  int // downloads
	uploaded []uploading
}

// uploading is the source of an upload, and its contents at the start.
type uploading struct{ src, was []float32 }

// NewStager makes a stager of a device.
func NewStager(dev compute.Device) *Stager { return &Stager{Device: dev} }

// AllocHost is compute.Stager's.
func (s *Stager) AllocHost(n int) []float32 { s.Hosts++; return make([]float32, n) }

// FreeHost is compute.Stager's.
func (s *Stager) FreeHost([]float32) { s.Hosts-- }

// StartDownload fills dst with NaN until it is waited for. src must not have changed by then.
func (s *Stager) StartDownload(dst, src []float32) (wait func()) {
	s.Started++
	s.settle()
	held := get(s.Device, src)
	for i := range dst {
		dst[i] = float32(math.NaN())
	}
	return func() {
		s.settle()
		if !sameBits(get(s.Device, src), held) {
			panic("devicetest: memory that is being downloaded was changed")
		}
		copy(dst, held)
	}
}

// StartUpload records the contents of src.
func (s *Stager) StartUpload(dst, src []float32) {
	s.Device.Upload(dst, src)
	s.uploaded = append(s.uploaded, uploading{src, slices.Clone(src)})
}

// settle panics if the source of an upload has changed before a wait.
func (s *Stager) settle() {
	for _, u := range s.uploaded {
		if !sameBits(u.src, u.was) {
			panic("devicetest: memory that is being uploaded was changed")
		}
	}
	s.uploaded = s.uploaded[:0]
}

func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool {
		return math.Float32bits(x) == math.Float32bits(y)
	})
}

// Download waits.
func (s *Stager) Download(dst, src []float32) { s.settle(); s.Device.Download(dst, src) }

// SumSquares waits.
func (s *Stager) SumSquares(x []float32) float64 { s.settle(); return s.Device.SumSquares(x) }

// NewOutput makes one whose Sum waits.
func (s *Stager) NewOutput(shape compute.OutputShape) compute.Output {
	return stagedOutput{s.Device.NewOutput(shape), s}
}

type stagedOutput struct {
	compute.Output
	s *Stager
}

func (o stagedOutput) Sum() float64 { o.s.settle(); return o.Output.Sum() }

// NewClipper makes one whose Norm waits.
func (s *Stager) NewClipper() compute.Clipper { return stagedClipper{s.Device.NewClipper(), s} }

type stagedClipper struct {
	compute.Clipper
	s *Stager
}

func (c stagedClipper) Norm() float64 { c.s.settle(); return c.Clipper.Norm() }
