// Package kernels holds the CUDA kernels of compute/cuda, compiled to PTX, which the GPU's driver
// compiles to machine code when it loads them. Each source in this folder has a file for sm_70, and
// files for those higher architectures whose PTX differs. scripts/kernels.sh compiles them; with
// "check" it compares the folder ptx with the sources. Without the build tag cuda the package is
// empty. It launches nothing, and imports nothing of ours.
package kernels

//go:generate ../../../scripts/kernels.sh
