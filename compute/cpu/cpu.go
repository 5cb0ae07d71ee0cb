// Package cpu is the compute.Device of a processor: float32, with products of float32 or of
// bfloat16.
//
// There are two builds. With cgo, C kernels run on a team of threads that the Device owns, with
// weights packed once per segment. The kernels are chosen at run time: for AMX, AVX-512 with and
// without bf16, AVX2, or the compiler's target. Without cgo, the device runs in Go on the calling
// goroutine: the same numbers within float32 rounding, many times slower, and Device.Name says so.
// compute/devicetest checks both against the contract. Files named reference*.go are compiled into
// both: tests compare the C kernels with this Go arithmetic.
//
// The package knows no graph, model or files. It may import compute, gonum's BLAS and
// kernels, the C code.
//
// How the C code in kernels computes:
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
// build use a lower instruction set than the processor's, for tests and comparisons. In fp32, amx
// and avx512bf16 select the AVX-512 kernels, on a processor that has these extensions.
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

// isaNames are the instruction sets, from the lowest.
func isaNames() []string {
	return []string{isaPortable, isaAVX2, isaAVX512, isaAVX512BF16, isaAMX}
}

// maxThreads bounds Config.Threads, above any expected machine.
const maxThreads = 1024

// Config says how a Device computes.
type Config struct {
	// Threads is the number of threads per call, with the caller's: at least 1. A build without cgo
	// always uses 1. Results do not depend on it.
	Threads int
	// Precision is the format of products' operands.
	Precision compute.Precision
}

// Device computes on the processor. It is a compute.Device.
type Device struct {
	config  Config
	backend backend // the arithmetic of this build
	memory
	own workspace // the backend's
}

// memory is a device's tensors, and counts the bytes of these and of all workspaces.
type memory struct {
	blocks    map[*float32]allocation // allocated and not yet freed
	now, peak int64                   // bytes
}

// allocation is a block and its size.
type allocation struct {
	block
	bytes int64
}

var _ compute.Device = (*Device)(nil)

// New makes a device, which owns its threads until Close. It fails if the Config is out of range,
// or if this build or processor lacks the instruction set that RONDO_CPU_ISA names.
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
	d := &Device{config: c, backend: b,
		memory: memory{blocks: map[*float32]allocation{}}}
	d.own = d.workspace(b.bytes())
	return d, nil
}

// Name names, for people, the instruction set or build, the precision if it is not fp32, and the
// number of threads if it is above 1: "cpu (AVX-512; 2 threads)",
// "cpu (AVX-512 bf16)", "cpu (AVX2; bf16 emulated, slower than fp32; 2 threads)".
func (d *Device) Name() string {
	if n := d.Threads(); n > 1 {
		return fmt.Sprintf("cpu (%s; %d threads)", d.backend.name(), n)
	}
	return fmt.Sprintf("cpu (%s)", d.backend.name())
}

// Threads is the number of threads per call: 1 in a build without cgo, whatever the Config.
func (d *Device) Threads() int { return d.backend.threads() }

// SetThreads sets the number of threads of later calls, at most the Config's, because processes
// that come and go may share the machine. Results do not depend on it.
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

// Bytes returns the bytes that tensors and workspaces hold now, and the most that they have held.
func (m *memory) Bytes() (now, peak int64) { return m.now, m.peak }

// hold counts allocated bytes, or freed ones if negative.
func (m *memory) hold(bytes int64) {
	m.now += bytes
	m.peak = max(m.peak, m.now)
}

// workspace counts the bytes of a layer or the backend.
type workspace struct {
	device *Device
	bytes  int64
}

func (d *Device) workspace(bytes int64) workspace {
	d.hold(bytes)
	return workspace{d, bytes}
}

// grown counts the growth of the backend's own workspace after a call.
func (d *Device) grown() { d.own.resize(d.backend.bytes()) }

// resize sets the bytes of a workspace that may have grown.
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
func (m *memory) Alloc(n int) []float32 {
	if n < 0 {
		panic(fmt.Sprintf("cpu: Alloc of %d elements", n))
	}
	if n == 0 {
		return []float32{}
	}
	x, b := allocate(n)
	m.blocks[&x[0]] = allocation{b, 4 * int64(n)}
	m.hold(4 * int64(n))
	return x
}

// Free frees memory from Alloc. The slice must begin where Alloc's did.
func (m *memory) Free(x []float32) {
	if len(x) == 0 {
		return
	}
	b, ok := m.blocks[&x[0]]
	if !ok {
		panic(fmt.Sprintf("cpu: Free of %d elements at %p, which Alloc did not give", len(x),
			&x[0]))
	}
	delete(m.blocks, &x[0])
	m.hold(-b.bytes)
	b.release()
}

func (m *memory) freeAll() {
	for p, b := range m.blocks {
		delete(m.blocks, p)
		m.hold(-b.bytes)
		b.release()
	}
}

// Upload copies src to dst, like Download: host and device memory are one.
func (m *memory) Upload(dst, src []float32) {
	compute.CheckSame("Upload", len(dst), len(src))
	copy(dst, src)
}

// Download copies src to dst.
func (m *memory) Download(dst, src []float32) {
	compute.CheckSame("Download", len(dst), len(src))
	copy(dst, src)
}

// Zero fills x with zeros.
func (m *memory) Zero(x []float32) { clear(x) }

// Close frees all memory from Alloc and ends the device's threads. Recurrent and Output
// workspaces have their own Close.
func (d *Device) Close() {
	d.freeAll()
	d.own.release()
	d.backend.close()
}
