// Package cpu is the compute.Device of a processor, for float32.
//
// There are two builds of it. With cgo, layers run in C kernels over weights that are packed once
// a segment, for AVX-512, AVX2 or whatever the compiler targets (chosen at run time), and general
// products run in OpenBLAS. Without cgo, the same device runs in Go: the same numbers within
// float32 rounding, many times slower, and Device.Name says so. The Go arithmetic, files named
// reference*.go, is compiled into both: it is what the C kernels are tested against.
//
// The package knows shapes and numbers only: no graph, no model, no files. It may import compute
// and gonum's BLAS.
//
// The environment variable RONDO_CPU_ISA (avx512, avx2 or portable) makes the cgo build use a
// lower instruction set than the processor has, for tests and for comparing.
package cpu

import (
	"fmt"
	"os"

	"rondo/compute"
)

// The instruction sets that RONDO_CPU_ISA names.
const (
	isaEnvironment = "RONDO_CPU_ISA"
	isaAVX512      = "avx512"
	isaAVX2        = "avx2"
	isaPortable    = "portable"
)

// maxThreads bounds Config.Threads: more than any machine that this is for.
const maxThreads = 1024

// Config says how a Device computes.
type Config struct {
	// Threads is how many threads a call uses, the caller's included: at least 1. Results do not
	// depend on it.
	Threads int
	// Precision is what products multiply.
	Precision compute.Precision
}

// Device computes on the processor. It is a compute.Device.
type Device struct {
	threads int
	backend backend            // the arithmetic of this build
	blocks  map[*float32]block // what Alloc gave and Free has not taken back
}

var _ compute.Device = (*Device)(nil)

// New makes a device. It fails if the Config is out of range, or if RONDO_CPU_ISA names an
// instruction set that this build or processor lacks.
func New(c Config) (*Device, error) {
	if c.Threads < 1 || c.Threads > maxThreads {
		return nil, fmt.Errorf("cpu: %d threads; give 1 to %d", c.Threads, maxThreads)
	}
	b, err := newBackend(c.Threads, c.Precision, os.Getenv(isaEnvironment))
	if err != nil {
		return nil, err
	}
	return &Device{threads: c.Threads, backend: b, blocks: map[*float32]block{}}, nil
}

// Name says which build, instruction set and number of threads compute.
func (d *Device) Name() string {
	if d.threads == 1 {
		return fmt.Sprintf("cpu (%s)", d.backend.name())
	}
	return fmt.Sprintf("cpu (%s, %d threads)", d.backend.name(), d.threads)
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
	d.blocks[&x[0]] = b
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
	b.release()
}

// Upload copies src to dst; Download is the same, for host and device memory are one.
func (d *Device) Upload(dst, src []float32) {
	sameLength("Upload", len(dst), len(src))
	copy(dst, src)
}

// Download copies src to dst.
func (d *Device) Download(dst, src []float32) {
	sameLength("Download", len(dst), len(src))
	copy(dst, src)
}

// Zero fills x with zeros.
func (d *Device) Zero(x []float32) { clear(x) }

// Close frees everything that Alloc gave. Recurrent and Output workspaces have their own Close.
func (d *Device) Close() {
	for p, b := range d.blocks {
		delete(d.blocks, p)
		b.release()
	}
	d.backend.close()
}

// sameLength panics unless two lengths agree.
func sameLength(what string, a, b int) {
	if a != b {
		panic(fmt.Sprintf("cpu: %s: lengths %d and %d differ", what, a, b))
	}
}

// wantLengthOf is wantLength of a part, whose name it makes only to panic.
func wantLengthOf(what, part string, got, want int) {
	if got != want {
		wantLength(what+" "+part, got, want)
	}
}

// wantLength panics unless a slice has the length that its shape says.
func wantLength(what string, got, want int) {
	if got != want {
		panic(fmt.Sprintf("cpu: %s has %d elements, its shape has %d", what, got, want))
	}
}
