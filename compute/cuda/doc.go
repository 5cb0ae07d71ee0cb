// Package cuda is the compute.Device of an NVIDIA GPU: float32, with products of float32, or of
// float32 rounded to TF32, bfloat16 or half precision as the kernels read it. All that is here has
// the build tag cuda; without it the package is empty.
//
// Everything a Device computes is enqueued on one stream, in the order of the calls, and none of it
// waits but what returns numbers (Download, SumSquares, Output's Sum, Clipper's Norm) and what
// frees memory. A number that came with another is not waited for again. Copies of StartDownload go
// on a second stream: each waits for what the first was given before it, and the first goes on
// meanwhile, until the copy is waited for or memory is freed. The kernels are
// CUDA C in kernels, compiled ahead to PTX, which is embedded; the driver makes machine code of it.
// cuBLAS multiplies the large matrices where one is found that starts, and of such operands as it
// has products of on the GPU; Device.Name says so where there is none. A Device is a
// compute.Recorder: it records by stream capture and replays CUDA graphs.
//
// A []float32 from Alloc is a slice over addresses of the GPU's memory: its length and address mean
// what they always do, and reading or writing an element is a fault.
//
// A Device has a queue of work (queue.go), memory (memory.go), a ferry between the host and the GPU
// (staging.go), and products (gemm.go). Layers use these.
//
// How it computes:
//
//   - The recurrence (kernels/persistent_*.cu) is one launch for all T steps. Blocks keep their
//     columns of W_hh on the chip and hand h, or the gates' gradients, to each other through a
//     buffer whose words are zero until they are written: data is its own signal.
//     persistent_plan.go says which block has which columns. Other shapes and cells, and
//     segments with rows that end early, take a product and a kernel each step (steps.go).
//   - A step whose shapes repeat is recorded as a CUDA graph and replayed. Gradients are copied to
//     the host beside it (compute.Stager), and the norm decides on the GPU whether to clip and to
//     update (compute.Clipper).
//   - GPUs of one host sum gradients by NCCL (compute.Group).
//   - Without a GPU, tests run on an emulated driver (emulator): a libcuda.so.1 that runs the
//     kernels' own sources, a fibre for each thread. Nothing runs until something waits for it.
//
// Norm, clipping and update have the same bits on every device, so CPUs and GPUs may share a ring.
//
// A wait that takes five minutes, or what RONDO_CUDA_PATIENCE says, is a GPU that hangs: it ends in
// a *compute.DeviceError. Which block of a persistent kernel hangs is found out with a debug build
// of the kernels (watch.go).
//
// The package knows shapes and numbers only: no graph, no model, no files but a debug
// build's. It may import compute and its own parts: kernels, driver, and, as driver does, libcuda.
//
// To build it takes a C compiler and CUDA's cuda.h, and no library of NVIDIA's: go build -tags cuda
// in the environment that scripts/cuda.sh prints. The binary runs on machines without a GPU, or
// without NVIDIA's driver, where Devices and New say why there is none (see libcuda).
//
// The environment variable RONDO_CUDA_PTX (70, 80) has kernels run that were compiled for an
// older architecture than the GPU's, and RONDO_CUDA_BLAS=off does without cuBLAS: for tests and for
// comparing. CUDA_VISIBLE_DEVICES, the driver's own, says which GPUs there are.
package cuda
