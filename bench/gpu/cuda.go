//go:build cuda

package main

import (
	"rondo/compute"
	"rondo/compute/cuda"
)

// openGPU opens the first GPU.
func openGPU(p compute.Precision) (_ gpu, err error) {
	defer compute.Catch(&err)
	d, err := cuda.New(cuda.Config{Precision: p})
	if err != nil {
		return gpu{}, err
	}
	used := func() (int64, error) {
		info, err := cuda.Inspect(d.Info().Index)
		return info.Memory - info.Free, err
	}
	return gpu{Recorder: d, memory: d.Bytes, used: used, precision: p}, nil
}
