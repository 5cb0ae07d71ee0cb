//go:build cuda

package cuda

import (
	"fmt"
	"os"
	"unsafe"

	"rondo/compute"
	"rondo/compute/cuda/driver"
)

// operands is the type that a product's float32 operands are rounded to as they are loaded. Sums
// are float32. The numbers are those of kernels/rounding.cuh.
type operands int

const (
	operandFP32 operands = iota
	operandTF32
	operandBF16
	operandFP16
)

// String is the precision's name.
func (o operands) String() string {
	return [...]string{operandFP32: "fp32", operandTF32: "tf32", operandBF16: "bf16",
		operandFP16: "fp16"}[o]
}

// gemm computes products.
type gemm struct {
	queue     *queue
	memory    *memory
	precision compute.Precision
	blas      *driver.BLAS // nil where there is none
	// unsupported are operands of whose products cuBLAS has said that it has none here.
	unsupported [operandFP16 + 1]bool
}

// open opens cuBLAS if it is installed and not disabled. lacks says, for the device's name, why
// there is none.
func (g *gemm) open() (lacks string, err error) {
	lacks = "; no cuBLAS"
	switch choice := os.Getenv(blasEnvironment); choice {
	case "":
		workspace := g.memory.malloc(blasBytes)
		var why string
		if g.blas, why = g.queue.stream.OpenBLAS(workspace, blasBytes); g.blas != nil {
			return "", nil
		}
		if why != "" {
			lacks += ": " + why
		}
		g.memory.release(workspace)
	case "off":
	default:
		return "", fmt.Errorf("%s is %q: give off, or nothing", blasEnvironment, choice)
	}
	return lacks, nil
}

// forward is the operand type of the forward pass.
func (g *gemm) forward() operands {
	switch g.precision {
	case compute.TF32:
		return operandTF32
	case compute.BF16:
		return operandBF16
	case compute.FP16:
		return operandFP16
	}
	return operandFP32
}

// backward is the operand type of the backward pass: gradients may be below the range of fp16.
func (g *gemm) backward() operands {
	if g.precision == compute.FP16 {
		return operandBF16
	}
	return g.forward()
}

// Gemm computes c = alpha op(a) op(b) + beta c; op(a): [m, k], op(b): [k, n], c: [m, n]. With beta
// zero it does not read c. It does not know the pass; in fp16 it uses the backward pass's operands,
// since bfloat16 has the range of every float32.
func (d *Device) Gemm(transA, transB bool, m, n, k int, alpha float32, a, b []float32,
	beta float32, c []float32) {
	compute.CheckGemm(m, n, k, a, b, c)
	if m == 0 || n == 0 {
		return
	}
	switch {
	case k > 0:
		d.gemm.product(d.gemm.backward(), transA, transB, m, n, k, alpha, at(a), at(b), beta, at(c))
	case beta == 0:
		d.Zero(c)
	default:
		d.Scale(c, beta)
	}
}

// method is how a product is made.
type method struct {
	library bool // by cuBLAS
	tensor  bool // by tensor cores; otherwise kernels/gemm.cu rounds the operands
	tile    int  // rows and columns of c that a block of ours has
	slices  int  // parts of k that are summed apart
	slice   int  // how much of k each has
}

// Thresholds between the methods. They are derived from the costs of launches, blocks and memory,
// and were not measured, so they may be some way off the best.
const (
	// libraryWork is the least m*n*k of a product that goes to cuBLAS if its operands are float32.
	// From there on the time is in the multiplications, where its kernels, written for each GPU,
	// are ahead of ours. Below it the time is in the launches: ours are one or two, and cuBLAS has
	// as many.
	libraryWork = 1 << 25
	// Operands of 16 bits it takes only from memory, and making them is two passes over both: each
	// element of them has to be used libraryReuse times or more.
	libraryWork16 = 1 << 29
	libraryReuse  = 256
	// enoughBlocks is how many blocks keep a GPU busy: about two a multiprocessor of a large one.
	// The number of slices depends on it, and with it the last bits of a product: so it is not the
	// number of this GPU's multiprocessors.
	enoughBlocks = 256
	// minSlice is the least of k that is worth a block's start and its sums' way through memory.
	minSlice  = 128
	maxSlices = 32
	// sliceStep is the unit of a slice's length: the longest step of our kernels.
	sliceStep = 32
)

// libraryHas reports whether cuBLAS multiplies these operands in their own type, on a GPU of this
// major compute capability. Before 8 it has no products of bfloat16, or slow ones, and multiplies
// TF32 as float32. Before 7 it does not use tensor cores for half precision.
func libraryHas(o operands, major int) bool {
	return o == operandFP32 || major >= 8 || o == operandFP16 && major >= 7
}

// byLibrary reports whether cuBLAS can multiply these operands.
func (g *gemm) byLibrary(o operands) bool {
	return g.blas != nil && !g.unsupported[o] && libraryHas(o, g.queue.info.Major)
}

// chooseMethod chooses how to compute a product. library: cuBLAS can multiply these operands.
// tensor: the GPU's tensor cores support our kernels' instructions.
func chooseMethod(o operands, m, n, k int, library, tensor bool) method {
	work := int64(m) * int64(n) * int64(k)
	if library {
		float32s := o == operandFP32 || o == operandTF32
		if float32s && work >= libraryWork ||
			!float32s && work >= libraryWork16 && min(m, n) >= libraryReuse {
			return method{library: true}
		}
	}
	how := method{tensor: tensor && o != operandFP32, tile: 128, slices: 1}
	tiles := func() int { return blocksFor(m, how.tile) * blocksFor(n, how.tile) }
	// Larger tiles load less for every multiplication, where there are enough of them.
	if tiles() < enoughBlocks/2 {
		how.tile = 64
	}
	if fill := enoughBlocks / tiles(); fill > 1 {
		how.slices = max(1, min(fill, k/minSlice, maxSlices))
	}
	how.slice = blocksFor(blocksFor(k, how.slices), sliceStep) * sliceStep
	how.slices = blocksFor(k, how.slice)
	return how
}

// scratch is how many bytes of the scratch the product takes.
func (how method) scratch(o operands, m, n, k int) int {
	switch {
	case how.library && (o == operandBF16 || o == operandFP16): // as round has it
		return alignedBytes(2*m*k) + 2*k*n
	case how.slices > 1:
		return 4 * how.slices * m * n
	}
	return 0
}

// blocksFor returns the number of parts of size part that cover n.
func blocksFor(n, part int) int { return (n + part - 1) / part }

// product computes c = alpha op(a) op(b) + beta c; op(a): [m, k], op(b): [k, n], c: [m, n], all
// packed float32 in the device's memory; m, n and k are positive. With beta zero it does not read
// c. It may use the scratch.
func (g *gemm) product(o operands, transA, transB bool, m, n, k int, alpha float32,
	a, b unsafe.Pointer, beta float32, c unsafe.Pointer) {
	g.productOf(o, halves{}, transA, transB, m, n, k, alpha, a, b, beta, c)
}

// halves are copies of a product's operands in 16 bits, where several products share an operand. A
// nil one does not exist.
type halves struct{ a, b unsafe.Pointer }

// sharesHalves reports whether cuBLAS multiplies an [m, k] and an [n, k] matrix, and computes their
// gradients, from the same copies of the operands. The first matrix's gradient is an [m, k] product
// over n. It is asked for as [k, m]: for cuBLAS, chooseMethod is symmetric in m and n.
func (g *gemm) sharesHalves(m, n, k int) bool {
	by := g.byLibrary(operandBF16) && g.forward() == operandBF16
	for range 3 {
		by = by && chooseMethod(operandBF16, m, n, k, by, true).library
		m, n, k = n, k, m
	}
	return by
}

// productOf is product for operands that may have 16-bit copies.
func (g *gemm) productOf(o operands, copies halves, transA, transB bool, m, n, k int,
	alpha float32, a, b unsafe.Pointer, beta float32, c unsafe.Pointer) {
	p := driver.Product{TransA: transA, TransB: transB, M: m, N: n, K: k,
		Alpha: alpha, Beta: beta, A: a, B: b, C: c}
	tensor := g.queue.info.Major >= 8
	how := chooseMethod(o, m, n, k, g.byLibrary(o), tensor)
	if how.library {
		if g.libraryProduct(o, copies, p) {
			return
		}
		how = chooseMethod(o, m, n, k, false, tensor)
	}
	g.ownProduct(o, p, how)
}

// libraryProduct makes a product by cuBLAS. It returns false if cuBLAS does not support it.
func (g *gemm) libraryProduct(o operands, copies halves, p driver.Product) (done bool) {
	if o == operandBF16 || o == operandFP16 {
		g.roundBoth(o, &copies, p)
		p.A, p.B = copies.a, copies.b
	}
	return g.multiply(o, &p)
}

// multiply computes a product by cuBLAS, of operands in their own type in memory. If cuBLAS does
// not support them, it returns false, and cuBLAS is not asked again.
func (g *gemm) multiply(o operands, p *driver.Product) (done bool) {
	p.Operand = [...]driver.Operand{operandFP32: driver.Float32, operandTF32: driver.TF32,
		operandBF16: driver.BFloat16, operandFP16: driver.Float16}[o]
	err := g.blas.Multiply(p)
	if driver.Unsupported(err) {
		g.unsupported[o] = true
		return false
	}
	if err != nil {
		g.queue.refused(fmt.Sprintf("a product of %d x %d x %d by cuBLAS", p.M, p.N, p.K), 0, err)
	}
	return true
}

// roundBoth makes the missing copies, in the scratch.
func (g *gemm) roundBoth(o operands, copies *halves, p driver.Product) {
	lenA, lenB := p.M*p.K, p.K*p.N
	bytesA := alignedBytes(2 * lenA)
	if copies.a != nil {
		bytesA = 0
	}
	if copies.a == nil || copies.b == nil {
		room := g.memory.scratch(bytesA + 2*lenB)
		if copies.a == nil {
			copies.a = room
			g.round(o, p.A, copies.a, lenA)
		}
		if copies.b == nil {
			copies.b = unsafe.Add(room, bytesA)
			g.round(o, p.B, copies.b, lenB)
		}
	}
}

// round makes a 16-bit copy.
func (g *gemm) round(o operands, from, to unsafe.Pointer, n int) {
	g.queue.launch("gemm_round", g.queue.over(n), int64(n), from, to, int32(o))
}

// ownProduct makes a product by our kernels: in one launch, or in two if k is cut in slices.
func (g *gemm) ownProduct(o operands, p driver.Product, how method) {
	to, alpha, beta := p.C, p.Alpha, p.Beta
	if how.slices > 1 {
		to = g.memory.scratch(how.scratch(o, p.M, p.N, p.K))
		alpha, beta = 1, 0
	}
	l := launch{grid: [3]int{blocksFor(p.M, how.tile), blocksFor(p.N, how.tile), how.slices}}
	arguments := []any{int32(p.M), int32(p.N), int32(p.K), flag(p.TransA), flag(p.TransB), alpha,
		p.A, p.B, beta, to, int32(how.slice)}
	if how.tensor {
		l.block, l.shared = tensorThreads(how.tile), tensorBytes(how.tile)
		g.queue.launch(fmt.Sprintf("tensor_%v_%d", o, how.tile), l, arguments...)
	} else {
		l.block, l.shared = [3]int{gemmThreads, 1, 1}, gemmBytes(how.tile)
		g.queue.launch(fmt.Sprintf("gemm_%d", how.tile), l, append(arguments, int32(o))...)
	}
	if how.slices > 1 {
		count := p.M * p.N
		g.queue.launch("gemm_sum_slices", g.queue.parted(count, flatThreads), int64(count),
			int32(how.slices), p.Alpha, to, p.Beta, p.C)
	}
}

// flag is a truth value as kernels take it.
func flag(on bool) int32 {
	if on {
		return 1
	}
	return 0
}

const gemmThreads = 256

// gemmBytes is the shared memory of a block of kernels/gemm.cu: two tiles of both operands, each a
// step of 8 or 16 rows, padded by four.
func gemmBytes(tile int) int {
	step := 16
	if tile == 128 {
		step = 8
	}
	return 2 * 2 * 4 * step * (tile + 4)
}

// tensorThreads and tensorBytes are the block of kernels/tensor.cu: 80 bytes a line of a tile.
func tensorThreads(tile int) [3]int {
	if tile == 128 {
		return [3]int{256, 1, 1}
	}
	return [3]int{128, 1, 1}
}

func tensorBytes(tile int) int { return 2 * 2 * 80 * tile }
