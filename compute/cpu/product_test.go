//go:build cgo

package cpu

import (
	"math"
	"math/rand/v2"
	"testing"

	"rondo/compute"
)

// onKernels runs a test on the kernels of every instruction set and precision.
func onKernels(t *testing.T, test func(t *testing.T, n products, random *rand.Rand)) {
	for _, p := range precisions {
		for _, isa := range isas(p) {
			t.Run(p.String()+"/"+isa, func(t *testing.T) {
				b, err := newBackend(1, p, isa)
				if err != nil {
					t.Fatal(err)
				}
				defer b.close()
				test(t, products{b.(*native)}, newRandom(t))
			})
		}
	}
}

// operands of a test: filled with what must not be read, and released when it ends.
func (n products) testOperands(t testing.TB, count int) operands {
	o, b := n.newOperands(count)
	t.Cleanup(b.release)
	for i := range o.memory {
		o.memory[i] = math.Float32frombits(math.MaxUint32) // NaN, of either precision
	}
	return o
}

func (n products) precision() compute.Precision {
	if n.kernels.bf16 != 0 {
		return compute.BF16
	}
	return compute.FP32
}

// rounded is x as an operand.
func (n products) rounded(x float32) float32 {
	if n.precision() == compute.BF16 {
		return bfloat16(x)
	}
	return x
}

// pairAt is where row k, column j of pairs or of a panel is.
func (n products) pairAt(k, j int) int {
	if n.precision() == compute.BF16 {
		return (k/2*blockWidth+j)*2 + k%2
	}
	return k*blockWidth + j
}

func uniform(random *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = 2*random.Float32() - 1
	}
	return x
}

// TestRounding walks the bits of all floats, with the awkward ones: an operand is the nearest
// bfloat16, except that subnormals may become zeros.
func TestRounding(t *testing.T) {
	onKernels(t, func(t *testing.T, n products, random *rand.Rand) {
		const stride = 10007
		o, x := n.testOperands(t, blockWidth), make([]float32, blockWidth)
		next := []uint32{0x7f800000, 0xff800000, 0x7f800001, 0xff800001, 0x7fc00000, 0x7f7fffff,
			0x3f808000, 0x3f818000, 0x3f807fff, 0x3f808001, 0, 1 << 31, 1, 0x007fffff, 0x7fffffff}
		for bits := random.Uint64N(stride); bits < 1<<32; {
			for i := range x {
				if i < len(next) {
					x[i] = math.Float32frombits(next[i])
					continue
				}
				x[i] = math.Float32frombits(uint32(bits))
				bits += stride
			}
			next = nil
			n.putRows(1, o, 0, x, blockWidth, blockWidth)
			for i, v := range x {
				got, want := math.Float32frombits(o.bits(i)), n.rounded(v)
				tiny := math.Abs(float64(v)) < 0x1p-126 && got == 0
				if got != want && !tiny && !(got != got && want != want) {
					t.Fatalf("%g (%#08x) became %g, want %g", v, math.Float32bits(v), got, want)
				}
			}
		}
	})
}

// TestOperandLayouts makes operands of matrices of every width, and looks where each element is,
// that the rest is zeros, and that nothing else is written.
func TestOperandLayouts(t *testing.T) {
	onKernels(t, func(t *testing.T, n products, random *rand.Rand) {
		for width := 1; width <= blockWidth; width++ {
			rows, ld := 1+random.IntN(67), width+random.IntN(3)
			padded := (rows + blockWidth - 1) / blockWidth * blockWidth
			even := rows
			if n.precision() == compute.BF16 {
				even = (rows + 1) / 2 * 2
			}
			w := uniform(random, rows*ld)
			check := func(what string, put func(o operands), written int,
				index func(r, j int) int) {
				o := n.testOperands(t, (padded+2)*blockWidth)
				put(o)
				for i := range (padded + 2) * blockWidth {
					r, j := i/blockWidth, i%blockWidth
					want, got := float32(0), math.Float32frombits(o.bits(index(r, j)))
					if r < rows && j < width {
						want = n.rounded(w[r*ld+j])
					}
					if r < written && got != want {
						t.Fatalf("%s, %dx%d: (%d, %d) is %g, want %g", what, rows, width, r, j,
							got, want)
					}
					if r >= written && got == got {
						t.Fatalf("%s, %dx%d: (%d, %d) was written", what, rows, width, r, j)
					}
				}
			}
			inRows := func(r, j int) int { return r*blockWidth + j }
			check("rows", func(o operands) {
				n.putRows(rows, o, 0, w, ld, width)
			}, rows, inRows)
			check("pairs", func(o operands) {
				n.putPairs(rows, o, 0, w, ld, width)
			}, even, n.pairAt)
			check("packed rows", func(o operands) {
				n.packRows(o, 0, w, rows, ld, width, padded)
			}, padded, n.pairAt)
			turned := make([]float32, width*(rows+2)) // w's transpose, in rows of rows+2
			for i := range rows * width {
				turned[i%width*(rows+2)+i/width] = w[i/width*ld+i%width]
			}
			check("packed columns", func(o operands) {
				n.packColumns(o, 0, turned, width, rows, rows+2, padded)
			}, padded, n.pairAt)
		}
	})
}

// checkSum compares a number up to 1 to which so many products of such numbers were added.
func checkSum(t *testing.T, what string, i int, got float32, want float64, depth int) {
	t.Helper()
	if math.Abs(float64(got)-want) > 1e-6*float64(1+depth) {
		t.Fatalf("%s: element %d is %g, want %g", what, i, got, want)
	}
}

// TestProduct multiplies matrices of every number of rows.
func TestProduct(t *testing.T) {
	onKernels(t, func(t *testing.T, n products, random *rand.Rand) {
		for rows := 1; rows <= 67; rows++ {
			depth, width := 1+random.IntN(700), 1+random.IntN(blockWidth)
			blocks, spread := (depth+blockWidth-1)/blockWidth, rows+random.IntN(3)
			x, w := uniform(random, rows*depth), uniform(random, width*depth)
			a := n.testOperands(t, blocks*spread*blockWidth)
			panel := n.testOperands(t, blocks*blockWidth*blockWidth)
			for q := range blocks {
				n.putRows(rows, a, q*spread*blockWidth, x[q*blockWidth:], depth,
					min(blockWidth, depth-q*blockWidth))
			}
			n.packColumns(panel, 0, w, width, depth, depth, blocks*blockWidth)
			c := uniform(random, (rows+1)*blockWidth)
			before := append([]float32(nil), c...)
			n.product(rows, c, a, 0, spread*blockWidth, blocks, panel, 0)
			for i, got := range c {
				r, j := i/blockWidth, i%blockWidth
				want := float64(before[i])
				if r < rows && j < width {
					for k := range depth {
						want += float64(n.rounded(x[r*depth+k])) * float64(n.rounded(w[j*depth+k]))
					}
				}
				checkSum(t, "product", i, got, want, depth)
			}
		}
	})
}

// TestOuters multiplies over the rows of matrices of every number of columns.
func TestOuters(t *testing.T) {
	onKernels(t, func(t *testing.T, n products, random *rand.Rand) {
		for rows := 1; rows <= blockWidth; rows++ {
			depth, columns := 1+random.IntN(700), 1+random.IntN(67)
			padded := (depth + blockWidth - 1) / blockWidth * blockWidth
			blocks, spread := (columns+blockWidth-1)/blockWidth, (padded+2)*blockWidth
			ld := columns + random.IntN(3)
			x, y := uniform(random, depth*rows), uniform(random, depth*columns)
			a, b := n.testOperands(t, padded*blockWidth), n.testOperands(t, blocks*spread)
			clear(a.memory)
			clear(b.memory)
			n.putPairs(depth, a, 0, x, rows, rows)
			for j := range blocks {
				n.putPairs(depth, b, j*spread, y[j*blockWidth:], columns,
					min(blockWidth, columns-j*blockWidth))
			}
			for _, add := range []bool{false, true} {
				c := uniform(random, (rows+1)*ld)
				before := append([]float32(nil), c...)
				n.outers(c, ld, rows, columns, a, 0, b, spread, padded, add)
				for i, got := range c {
					r, j := i/ld, i%ld
					want := float64(before[i])
					if r < rows && j < columns {
						if !add {
							want = 0
						}
						for k := range depth {
							want += float64(n.rounded(x[k*rows+r])) *
								float64(n.rounded(y[k*columns+j]))
						}
					}
					checkSum(t, "outers", i, got, want, depth)
				}
			}
		}
	})
}

// TestBurn runs the loop of each table's instruction, which says how much it did.
func TestBurn(t *testing.T) {
	onKernels(t, func(t *testing.T, n products, _ *rand.Rand) {
		one := n.burn(1)
		if more := n.burn(1000); one <= 0 || more != 1000*one {
			t.Errorf("1 round is %g operations, 1000 are %g", one, more)
		}
	})
}
