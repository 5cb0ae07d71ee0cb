package jobspec

import (
	"strconv"
	"strings"

	rondov1 "rondo/proto/rondo/v1"
)

// Device is a value of --device. The zero value is the CPU.
type Device struct {
	Auto bool // a GPU if there is one, else the CPU
	CUDA bool // a GPU
	GPU  int  // N of cuda:N; negative: any
}

// maxGPU bounds N of cuda:N.
const maxGPU = 1 << 10

// ParseDevice reads the value of --device: auto, cpu, cuda or cuda:N.
func ParseDevice(text string) (Device, error) {
	switch text {
	case "auto":
		return Device{Auto: true, GPU: -1}, nil
	case "cpu":
		return Device{}, nil
	case "cuda":
		return Device{CUDA: true, GPU: -1}, nil
	}
	number, named := strings.CutPrefix(text, "cuda:")
	n, err := strconv.Atoi(number)
	if !named || err != nil || n < 0 || n > maxGPU || strconv.Itoa(n) != number {
		return Device{}, usagef("--device %q is not one of auto, cpu, cuda, cuda:N (N: the GPU, "+
			"from 0)", text)
	}
	return Device{CUDA: true, GPU: n}, nil
}

// OfGPUs reports whether a precision needs a GPU.
func OfGPUs(precision string) bool { return precision == "tf32" || precision == "fp16" }

// NotOnCPU is the error for a precision that needs a GPU, on a CPU.
func NotOnCPU(precision string) error {
	return usagef("--precision %s needs a GPU, and this would compute on a CPU: give --device "+
		"cuda, or --precision fp32 or bf16", precision)
}

func validateDevice(spec *rondov1.JobSpec) error {
	device, err := ParseDevice(spec.Device)
	if err != nil {
		return err
	}
	if device == (Device{}) && OfGPUs(spec.Precision) {
		return NotOnCPU(spec.Precision)
	}
	return nil
}
