// Package gpu runs the real commands of a CUDA build. Their workers compute on this machine's GPU,
// or on the emulated driver of compute/cuda/emulator, which tests the host's part but not its
// speed. Its tests have the tag cuda. Nothing imports it; it may import everything.
package gpu
