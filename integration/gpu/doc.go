// Package gpu runs the real commands of a build with CUDA: processes whose workers compute on this
// machine's GPU or, where there is none, on the emulated driver of compute/cuda/emulator, which
// shows what the host does, and not how fast. Its tests have the tag cuda. Nothing imports it; it
// may import everything.
package gpu
