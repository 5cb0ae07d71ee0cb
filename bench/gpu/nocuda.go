//go:build !cuda

package main

import (
	"errors"

	"rondo/compute"
)

var errNoCUDA = errors.New("built without the tag cuda: scripts/gpu.sh builds with it")

func openGPU(compute.Precision) (gpu, error) { return gpu{}, errNoCUDA }
