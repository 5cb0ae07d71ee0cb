//go:build cuda

package job

import (
	"errors"
	"fmt"
	"strings"

	"rondo/compute"
	"rondo/compute/cuda"
)

// CUDA reports whether this binary can compute on GPUs.
const CUDA = true

// GPUs lists the GPUs that this process may use. If there are none, the error may say what is
// missing.
func GPUs() ([]GPU, error) {
	found, err := cuda.Devices()
	var all []GPU
	for _, g := range found {
		all = append(all, GPU{Index: g.Index, Name: g.Name, UUID: g.UUID, Memory: g.Memory,
			Capability: fmt.Sprintf("%d.%d", g.Major, g.Minor), Driver: g.Driver})
	}
	return all, withoutPackage(err)
}

// NCCL returns the version and the file of NVIDIA's collective library. The error is the reason for
// having none.
func NCCL() (version, library string, err error) { return cuda.NCCL() }

// openCUDA opens the GPU of an index.
func openCUDA(index int, precision compute.Precision) (_ compute.Device, err error) {
	defer compute.Catch(&err)
	device, err := cuda.New(cuda.Config{Index: index, Precision: precision})
	if err != nil {
		return nil, err
	}
	return device, nil
}

// GPUSizer returns the memory sizes of a model of this --precision on a GPU.
func GPUSizer(g GPU, precision string) (compute.Sizer, error) {
	p, err := compute.ParsePrecision(precision)
	if err != nil {
		return nil, err
	}
	return cuda.NewSizer(cuda.Config{Index: g.Index, Precision: p})
}

// open fills in the fields that need an open GPU. If the GPU cannot be opened, Free is still set
// where the driver tells it.
func (g *GPU) open() (err error) {
	defer compute.Catch(&err)
	device, err := cuda.New(cuda.Config{Index: g.Index, Precision: compute.FP32})
	if err != nil {
		if info, inspecting := cuda.Inspect(g.Index); inspecting == nil {
			g.Free = info.Free
		}
		return withoutPackage(err)
	}
	defer device.Close()
	g.Free, g.Library = device.Info().Free, device.CUBLAS()
	g.CUBLAS = g.Library != ""
	return nil
}

// withoutPackage drops the package's name from an error that will follow a flag's name.
func withoutPackage(err error) error {
	if err == nil {
		return nil
	}
	if text, named := strings.CutPrefix(err.Error(), "cuda: "); named {
		return errors.New(text)
	}
	return err
}
