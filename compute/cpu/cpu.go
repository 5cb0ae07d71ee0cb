// Package cpu is the compute.Device of a processor: float32, with products of float32 or of
// bfloat16.
//
// There are two builds of it. With cgo, everything runs in C kernels, on a team of threads that a
// Device owns, over weights that are packed once a segment. Which kernels is chosen at run time:
// those for AMX, AVX-512 with and without bf16, AVX2, or whatever the compiler targets. Without
// cgo, the same device runs in Go on the calling goroutine: the same numbers within float32
// rounding, many times slower, and Device.Name says so. Both are held to the contract by
// compute/devicetest. The Go arithmetic in files named reference*.go is compiled into both: it is
// what C kernels are also tested against, bit for bit or in shapes of their own.
//
// The package knows shapes and numbers only: no graph, no model, no files. It may import compute
// and gonum's BLAS.
//
// How the C kernels compute:
//
//   - One source, eight tables: the kernels are headers over a vector type (simd.h) and a type of
//     operand (operand.h). An isa_*.c includes them for one instruction set and precision, and
//     select.c picks the best that the processor has.
//   - Products (product.h, product_amx.h) read tiles from contiguous memory: weights packed into
//     panels of 32 columns, and operands that were written in the layout in which products read
//     them. Sums are float32. A row is summed in one order wherever it lies, so neither threads nor
//     the number of lanes change a result.
//   - Layers (layer.h, input.h, cells.h) run the recurrence step by step over panels that stay in
//     cache. The input side and each weight's gradient are one product for all steps.
//   - Threads (team.c) run a layer together and meet once a step. Each has some units and their
//     weights; where units are few, some lanes.
//   - The output layer (head.h) goes over the vocabulary in strips, with a running maximum and sum
//     for each row, so logits need not all be in memory.
//
// The environment variable RONDO_CPU_ISA (amx, avx512bf16, avx512, avx2 or portable) makes the cgo
// build use a lower instruction set than the processor has, for tests and for comparing. In fp32,
// amx and avx512bf16 mean the AVX-512 kernels of a processor that has them.
package cpu

import (
	"fmt"
	"os"

	"rondo/compute"
)

// The instruction sets that RONDO_CPU_ISA names.
const (
	isaEnvironment = "RONDO_CPU_ISA"
	isaPortable    = "portable"
	isaAVX2        = "avx2"
	isaAVX512      = "avx512"
	isaAVX512BF16  = "avx512bf16"
	isaAMX         = "amx"
)

// isaNames are they, from the lowest.
func isaNames() []string {
	return []string{isaPortable, isaAVX2, isaAVX512, isaAVX512BF16, isaAMX}
}

// maxThreads bounds Config.Threads: more than any machine that this is for.
const maxThreads = 1024

// Config says how a Device computes.
type Config struct {
	// Threads is how many threads a call uses, the caller's included: at least 1, and in a build
	// without cgo never more. Results do not depend on it.
	Threads int
	// Precision is what products multiply.
	Precision compute.Precision
}

// Device computes on the processor. It is a compute.Device.
type Device struct {
	config    Config
	backend   backend                 // the arithmetic of this build
	blocks    map[*float32]allocation // what Alloc gave and Free has not taken back
	own       workspace               // the backend's
	now, peak int64                   // bytes of the blocks and of all workspaces
}

// allocation is a block and its size.
type allocation struct {
	block
	bytes int64
}

var _ compute.Device = (*Device)(nil)

// New makes a device, which owns its threads until it is closed. It fails if the Config is out of
// range, or if RONDO_CPU_ISA names an instruction set that this build or processor lacks.
func New(c Config) (*Device, error) {
	if c.Threads < 1 || c.Threads > maxThreads {
		return nil, fmt.Errorf("cpu: %d threads; give 1 to %d", c.Threads, maxThreads)
	}
	if c.Precision != compute.FP32 && c.Precision != compute.BF16 {
		return nil, fmt.Errorf("cpu: precision %v is not one of a CPU's: give fp32 or bf16",
			c.Precision)
	}
	b, err := newBackend(c.Threads, c.Precision, os.Getenv(isaEnvironment))
	if err != nil {
		return nil, err
	}
	d := &Device{config: c, backend: b, blocks: map[*float32]allocation{}}
	d.own = d.workspace(b.bytes())
	return d, nil
}

// Name says which instruction set or build computes, in what precision if that is not fp32, and
// with how many threads if with several, for people: "cpu (AVX-512; 2 threads)",
// "cpu (AVX-512 bf16)", "cpu (AVX2; bf16 emulated, slower than fp32; 2 threads)".
func (d *Device) Name() string {
	if n := d.Threads(); n > 1 {
		return fmt.Sprintf("cpu (%s; %d threads)", d.backend.name(), n)
	}
	return fmt.Sprintf("cpu (%s)", d.backend.name())
}

// Threads is how many threads a call uses: 1 in a build without cgo, whatever the Config says.
func (d *Device) Threads() int { return d.backend.threads() }

// SetThreads makes the calls that follow use that many threads, at most the Config's: the machine
// may be shared with processes that come and go. Results do not depend on it.
func (d *Device) SetThreads(count int) error {
	if count < 1 || count > d.config.Threads {
		return fmt.Errorf("cpu: %d threads of a device that was made with %d", count,
			d.config.Threads)
	}
	if count == d.Threads() {
		return nil
	}
	return d.backend.setThreads(count)
}

// Precision is what products multiply.
func (d *Device) Precision() compute.Precision { return d.config.Precision }

// Bytes returns how many bytes of memory the device's tensors and workspaces hold, and the most
// that they have held.
func (d *Device) Bytes() (now, peak int64) { return d.now, d.peak }

// hold counts bytes that are taken, or given back if negative.
func (d *Device) hold(bytes int64) {
	d.now += bytes
	d.peak = max(d.peak, d.now)
}

// workspace is a layer's or the backend's place in the count.
type workspace struct {
	device *Device
	bytes  int64
}

func (d *Device) workspace(bytes int64) workspace {
	d.hold(bytes)
	return workspace{d, bytes}
}

// grown counts what the backend's own workspace has grown by in a call.
func (d *Device) grown() { d.own.resize(d.backend.bytes()) }

// resize counts a workspace that may have grown.
func (w *workspace) resize(bytes int64) {
	w.device.hold(bytes - w.bytes)
	w.bytes = bytes
}

// release may be called more than once.
func (w *workspace) release() {
	w.device.hold(-w.bytes)
	w.bytes = 0
}

// Alloc returns n zeros, aligned to 64 bytes.
func (d *Device) Alloc(n int) []float32 {
	if n < 0 {
		panic(fmt.Sprintf("cpu: Alloc of %d elements", n))
	}
	if n == 0 {
		return []float32{}
	}
	x, b := allocate(n)
	d.blocks[&x[0]] = allocation{b, 4 * int64(n)}
	d.hold(4 * int64(n))
	return x
}

// Free gives memory from Alloc back. The slice must begin where Alloc's did.
func (d *Device) Free(x []float32) {
	if len(x) == 0 {
		return
	}
	b, ok := d.blocks[&x[0]]
	if !ok {
		panic(fmt.Sprintf("cpu: Free of %d elements at %p, which Alloc did not give", len(x),
			&x[0]))
	}
	delete(d.blocks, &x[0])
	d.hold(-b.bytes)
	b.release()
}

// Upload copies src to dst; Download is the same, for host and device memory are one.
func (d *Device) Upload(dst, src []float32) {
	compute.CheckSame("Upload", len(dst), len(src))
	copy(dst, src)
}

// Download copies src to dst.
func (d *Device) Download(dst, src []float32) {
	compute.CheckSame("Download", len(dst), len(src))
	copy(dst, src)
}

// Zero fills x with zeros.
func (d *Device) Zero(x []float32) { clear(x) }

// Close frees everything that Alloc gave and ends the device's threads. Recurrent and Output
// workspaces have their own Close.
func (d *Device) Close() {
	for p, b := range d.blocks {
		delete(d.blocks, p)
		d.hold(-b.bytes)
		b.release()
	}
	d.own.release()
	d.backend.close()
}
