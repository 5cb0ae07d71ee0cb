// Package cuda is the compute.Device of an NVIDIA GPU: float32, with products of float32, or of
// float32 rounded to TF32, bfloat16 or half precision as the kernels read it. All files have the
// build tag cuda; without it the package is empty.
//
// A Device enqueues all its work on one stream, in the order of the calls. Only calls that return
// numbers (Download, SumSquares, Output's Sum, Clipper's Norm) or free memory wait for it. Numbers
// that arrive together are waited for once. Copies of StartDownload go on a second stream. Each
// waits for the earlier work of the first stream, which goes on in the meantime.
//
// The kernels are CUDA C in kernels, compiled ahead to PTX, which is embedded. The driver compiles
// it to machine code. cuBLAS, if one is found that starts, multiplies large matrices of the
// operands that it supports on the GPU; Device.Name says if there is none. A Device is a
// compute.Recorder: it records by stream capture and replays CUDA graphs.
//
// A []float32 from Alloc is a slice over addresses of the GPU's memory. Its length and address have
// their usual meaning; reading or writing an element is a fault.
//
// A Device has a queue of work (queue.go), memory (memory.go), a ferry between the host and the GPU
// (staging.go), and products (gemm.go). Layers use these.
//
// How it computes:
//
//   - The recurrence (kernels/persistent_*.cu) is one launch for all T steps. Blocks keep their
//     columns of W_hh on the chip. They pass h, or the gates' gradients, to each other through a
//     buffer whose words are zero until they are written: data is its own signal.
//     persistent_plan.go assigns columns to blocks. Other shapes and cells, and segments with rows
//     that end early, take a product and a kernel each step (steps.go).
//   - A step whose shapes repeat is recorded as a CUDA graph and replayed. Gradients are copied
//     to the host at the same time (compute.Stager), and the norm decides on the GPU whether to
//     clip and to update (compute.Clipper).
//   - GPUs of one host sum gradients by NCCL (compute.Group).
//   - Without a GPU, tests run on an emulated driver (emulator): a libcuda.so.1 that runs the
//     kernels' own sources, a fibre for each thread. Nothing runs until something waits for it.
//
// Norm, clipping and update have the same bits on every device, so CPUs and GPUs may share a ring.
//
// A wait of five minutes, or of RONDO_CUDA_PATIENCE, means that the GPU hangs: it ends in a
// *compute.DeviceError. A debug build of the kernels shows which block of a persistent kernel hangs
// (watch.go).
//
// The package knows shapes and numbers only: no graph, no model, and no files but those of a debug
// build. It may import compute and its own parts: kernels, driver, and, as driver does, libcuda.
//
// A build needs a C compiler and CUDA's cuda.h, and no library of NVIDIA's: go build -tags cuda in
// the environment that scripts/cuda.sh prints. The binary also runs on machines without a GPU or
// without NVIDIA's driver; there Devices and New say why they fail (see libcuda).
//
// The environment variable RONDO_CUDA_PTX (70, 80) selects kernels compiled for an older
// architecture than the GPU's, and RONDO_CUDA_BLAS=off disables cuBLAS: for tests and comparisons.
// The driver's own CUDA_VISIBLE_DEVICES selects the GPUs.
package cuda
