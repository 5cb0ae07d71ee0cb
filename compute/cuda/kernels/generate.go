// Package kernels holds the CUDA kernels of compute/cuda, compiled: one text of PTX for each source
// in this folder and each architecture, which the GPU's driver translates to machine code when it
// loads them. scripts/kernels.sh compiles them, and with "check" compares what is in ptx with the
// sources. Without the build tag cuda the package is empty. It launches nothing, and imports
// nothing of ours.
package kernels

//go:generate ../../../scripts/kernels.sh
