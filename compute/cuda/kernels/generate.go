// Package kernels holds the CUDA kernels of compute/cuda, compiled to PTX, which the GPU's driver
// translates to machine code when it loads them. Each source in this folder has a file for sm_70,
// and files for those higher architectures whose PTX differs. scripts/kernels.sh compiles them, and
// with "check" compares what is in ptx with the sources. Without the build tag cuda the package is
// empty. It launches nothing, and imports nothing of ours.
package kernels

//go:generate ../../../scripts/kernels.sh
