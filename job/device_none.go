//go:build !cuda

package job

import (
	"errors"

	"rondo/compute"
	"rondo/internal/app"
)

// CUDA reports whether this binary can compute on GPUs.
const CUDA = false

// GPUs lists the GPUs that this process may use: none, in this build.
func GPUs() ([]GPU, error) {
	return nil, app.Usage(errors.New("this binary was built without CUDA: build it with -tags " +
		"cuda, or use the image rondo:VERSION-cuda"))
}

// NCCL needs a build with CUDA.
func NCCL() (version, library string, err error) {
	_, err = GPUs()
	return "", "", err
}

// open fails without CUDA.
func (*GPU) open() error {
	_, err := GPUs()
	return err
}

// GPUSizer fails without CUDA.
func GPUSizer(GPU, string) (compute.Sizer, error) {
	_, err := GPUs()
	return nil, err
}

// openCUDA fails without CUDA.
func openCUDA(int, compute.Precision) (compute.Device, error) {
	_, err := GPUs()
	return nil, err
}
