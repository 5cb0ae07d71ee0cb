//go:build cuda

package main

import (
	"errors"
	"fmt"
	"io"

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
	return gpu{Recorder: d, memory: d.Bytes, precision: p}, nil
}

// listGPUs prints a line for each.
func listGPUs(out io.Writer) error {
	all, err := cuda.Devices()
	if err != nil {
		return err
	}
	for _, g := range all {
		fmt.Fprintf(out, "cuda:%d %s, compute capability %d.%d, %d multiprocessors, %d MiB, "+
			"driver %s\n", g.Index, g.Name, g.Major, g.Minor, g.Multiprocessors, g.Memory>>20,
			g.Driver)
	}
	if len(all) == 0 {
		return errors.New("the driver shows no GPU")
	}
	return nil
}
