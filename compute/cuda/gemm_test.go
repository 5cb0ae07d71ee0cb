//go:build cuda

package cuda

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"rondo/compute"
	"rondo/compute/cuda/driver"
)

// roundedTo is v as a product of these operands multiplies it.
func roundedTo(o operands, v float32) float64 {
	cut := func(v float64, digits, least int) float64 { // to nearest, ties to even
		_, exponent := math.Frexp(v)
		unit := math.Ldexp(1, max(exponent, least)-digits)
		return math.RoundToEven(v/unit) * unit
	}
	switch o {
	case operandTF32: // ties away from zero
		return float64(math.Float32frombits((math.Float32bits(v) + 1<<12) &^ (1<<13 - 1)))
	case operandBF16:
		return cut(float64(v), 8, -125)
	case operandFP16:
		return cut(float64(v), 11, -13)
	}
	return float64(v)
}

// gemmProblem is a product and what it is to give.
type gemmProblem struct {
	o              operands
	transA, transB bool
	m, n, k        int
	alpha, beta    float32
	a, b, c        []float32
}

func (p *gemmProblem) String() string {
	return fmt.Sprintf("%v %dx%dx%d %t %t beta %v", p.o, p.m, p.n, p.k, p.transA, p.transB, p.beta)
}

// newGemmProblem has a c full of NaN where beta is zero.
func newGemmProblem(o operands, m, n, k, trial int, random *rand.Rand) *gemmProblem {
	p := &gemmProblem{o, trial&1 != 0, trial&2 != 0, m, n, k, float32(random.NormFloat64()), 0,
		normals(m*k, random), normals(k*n, random), normals(m*n, random)}
	if trial&4 != 0 {
		p.beta = float32(random.NormFloat64())
		return p
	}
	for i := range p.c {
		p.c[i] = float32(math.NaN())
	}
	return p
}

// element is element (i, j) of the result, and the sum of the sizes of its terms.
func (p *gemmProblem) element(i, j int) (want, size float64) {
	for q := range p.k {
		atA, atB := i*p.k+q, q*p.n+j
		if p.transA {
			atA = q*p.m + i
		}
		if p.transB {
			atB = j*p.k + q
		}
		v := float64(p.alpha) * roundedTo(p.o, p.a[atA]) * roundedTo(p.o, p.b[atB])
		want += v
		size += math.Abs(v)
	}
	if p.beta != 0 {
		v := float64(p.beta) * float64(p.c[i*p.n+j])
		want += v
		size += math.Abs(v)
	}
	return want, size
}

// run makes the product on tensors that begin offset elements behind an aligned place.
func (p *gemmProblem) run(d *Device, offset int, multiply func(driver.Product)) []float32 {
	a, b, c := place(d, p.a, offset), place(d, p.b, offset), place(d, p.c, offset)
	multiply(driver.Product{TransA: p.transA, TransB: p.transB, M: p.m, N: p.n, K: p.k,
		Alpha: p.alpha, Beta: p.beta, A: at(a), B: at(b), C: at(c)})
	return read(d, c)
}

func (p *gemmProblem) check(t *testing.T, what string, got []float32) {
	t.Helper()
	p.within(t, what, got, 0)
}

// within is check for products whose terms may be wrong by a share of their size.
func (p *gemmProblem) within(t *testing.T, what string, got []float32, share float64) {
	t.Helper()
	for i := range p.m {
		for j := range p.n {
			want, size := p.element(i, j)
			e := math.Abs(float64(got[i*p.n+j]) - want)
			if !(e <= share*size+2e-7*(size+1)*math.Sqrt(float64(p.k+4))) {
				t.Fatalf("%v, %s: (%d, %d) is %v, want %v", p, what, i, j, got[i*p.n+j], want)
			}
		}
	}
}

// floats is device memory as a tensor.
func floats(p unsafe.Pointer, n int) []float32 { return unsafe.Slice((*float32)(p), n) }

func allOperands() []operands {
	return []operands{operandFP32, operandTF32, operandBF16, operandFP16}
}

// methodsOf are all of ours: by either kind of cores, in both tiles, whole and in slices. That the
// scalar cores round does not depend on the tile.
func methodsOf(d *Device, o operands, k int) []method {
	all := []method{{tile: 64}}
	if o == operandFP32 {
		all = append(all, method{tile: 128})
	} else if d.queue.info.Major >= 8 {
		all = append(all, method{tensor: true, tile: 64}, method{tensor: true, tile: 128})
	}
	for i := range all {
		all[i].slices, all[i].slice = 1, blocksFor(k, sliceStep)*sliceStep
	}
	if slices := blocksFor(k, sliceStep); slices > 1 {
		sliced := all[len(all)-1]
		sliced.slices, sliced.slice = slices, sliceStep
		all = append(all, sliced)
	}
	return all
}

// TestProductKernels holds each kernel against float64, over sizes that tiles divide and that they
// do not, in all four orders, and wants the same bits again where k is cut in slices.
func TestProductKernels(t *testing.T) {
	d, random := newGPU(t, compute.FP32), rand.New(rand.NewPCG(21, 22))
	sizes := [][3]int{{1, 1, 1}, {31, 33, 17}, {64, 128, 64}, {130, 65, 41}}
	for _, o := range allOperands() {
		for trial := range 8 {
			size := sizes[trial%len(sizes)]
			if trial >= len(sizes) {
				size = sizes[(trial+1)%len(sizes)]
			}
			p := newGemmProblem(o, size[0], size[1], size[2], trial, random)
			for _, how := range methodsOf(d, o, p.k) {
				multiply := func(q driver.Product) { d.gemm.ownProduct(o, q, how) }
				got := p.run(d, trial/4, multiply)
				p.check(t, fmt.Sprintf("%+v", how), got)
				if how.slices == 1 {
					continue
				}
				wantSame(t, fmt.Sprintf("%v, again,", p), p.run(d, trial/4, multiply), got)
			}
		}
	}
}

// libraryTF32 is how far cuBLAS may be from a product of float32 in TF32, as a share of the terms'
// sizes. The tensor cores read the upper 19 bits of a float32, 10 of them of its significand, and
// drop the others: an operand (1 - d) a has 0 <= d < 2^-10, and a term (1 - d)(1 - e) a b is wrong
// by less than 2^-9 of its size. Our kernels round their operands first.
const libraryTF32 = 0x1p-9

// TestLibraryProduct holds what is asked of cuBLAS against the same.
func TestLibraryProduct(t *testing.T) {
	d, random := newGPU(t, compute.FP32), rand.New(rand.NewPCG(23, 24))
	if d.gemm.blas == nil {
		t.Skip("no cuBLAS")
	}
	for _, o := range allOperands() {
		for trial := range 8 {
			p := newGemmProblem(o, 20, 33, 17+trial, trial, random)
			got := p.run(d, 0, func(q driver.Product) { d.gemm.libraryProduct(o, halves{}, q) })
			if o == operandTF32 {
				p.o = operandFP32
				p.within(t, "cuBLAS in TF32", got, libraryTF32)
				continue
			}
			p.check(t, "cuBLAS", got)
		}
	}
}

// TestGemm goes through the public method, in every precision.
func TestGemm(t *testing.T) {
	random := rand.New(rand.NewPCG(25, 26))
	for _, precision := range []compute.Precision{compute.FP32, compute.TF32, compute.BF16,
		compute.FP16} {
		d := newGPU(t, precision)
		for trial := range 8 {
			m, n, k := 1+random.IntN(70), 1+random.IntN(70), 1+random.IntN(300)
			p := newGemmProblem(d.gemm.backward(), m, n, k, trial, random)
			got := p.run(d, 0, func(q driver.Product) {
				a, b, c := floats(q.A, m*k), floats(q.B, k*n), floats(q.C, m*n)
				d.Gemm(p.transA, p.transB, m, n, k, p.alpha, a, b, p.beta, c)
			})
			p.check(t, "Gemm", got)
		}
	}
}

// TestGemmEmpty has no products to sum.
func TestGemmEmpty(t *testing.T) {
	d := newGPU(t, compute.FP32)
	c := place(d, []float32{1, float32(math.Inf(1)), 3}, 0)
	d.Gemm(false, false, 1, 3, 0, 1, nil, nil, 0.5, c)
	wantSame(t, "half of c", read(d, c), []float32{0.5, float32(math.Inf(1)), 1.5})
	d.Gemm(false, false, 1, 3, 0, 1, nil, nil, 0, c)
	wantSame(t, "nothing of c", read(d, c), make([]float32, 3))
	d.Gemm(false, false, 0, 3, 5, 1, nil, place(d, make([]float32, 15), 0), 0, nil)
}

func TestLibraryHas(t *testing.T) {
	for major, want := range map[int][4]bool{6: {true}, 7: {true, false, false, true},
		8: {true, true, true, true}, 10: {true, true, true, true}} {
		for _, o := range allOperands() {
			if got := libraryHas(o, major); got != want[o] {
				t.Errorf("%v on %d.x: %t", o, major, got)
			}
		}
	}
}

func TestChooseMethod(t *testing.T) {
	for _, c := range []struct {
		o       operands
		m, n, k int
		library bool
		want    method
	}{
		// A recurrent step, and the gradient of its weights over all steps.
		{operandFP32, 32, 1024, 256, true, method{tile: 64, slices: 2, slice: 128}},
		{operandBF16, 1024, 256, 1120, true, method{tensor: true, tile: 64, slices: 4, slice: 288}},
		// Tiles enough for the larger ones.
		{operandTF32, 2048, 2048, 100, false, method{tensor: true, tile: 128, slices: 1,
			slice: 128}},
		{operandFP32, 1, 1, 1, true, method{tile: 64, slices: 1, slice: 32}},
		{operandFP32, 1, 1, 1 << 20, false, method{tile: 64, slices: 32, slice: 1 << 15}},
		{operandFP32, 1024, 1024, 1024, true, method{library: true}},
		{operandTF32, 1024, 1024, 1024, true, method{library: true}},
		{operandFP16, 1024, 1024, 1024, true, method{library: true}},
		// Too little use of the copies.
		{operandFP16, 64, 1 << 14, 1024, true, method{tensor: true, tile: 128, slices: 2,
			slice: 512}},
	} {
		got := chooseMethod(c.o, c.m, c.n, c.k, c.library, true)
		if got != c.want {
			t.Errorf("%v %dx%dx%d, cuBLAS %t: %+v, want %+v", c.o, c.m, c.n, c.k, c.library, got,
				c.want)
		}
		if !got.library && (got.slices*got.slice < c.k || (got.slices-1)*got.slice >= c.k) {
			t.Errorf("%v %dx%dx%d: %+v does not cover k", c.o, c.m, c.n, c.k, got)
		}
	}
}
