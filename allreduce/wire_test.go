package allreduce

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func shortElements() []Element { return []Element{BFloat16, Float16} }

// format describes an element by IEEE 754.
type format struct {
	digits   int // of the significand, with the hidden one
	least    int // exponent of the least normal number
	greatest int // exponent of the greatest number
}

func formatOf(e Element) format {
	if e == Float16 {
		return format{digits: 11, least: -14, greatest: 15}
	}
	return format{digits: 8, least: -126, greatest: 127}
}

// round returns x rounded to a number of f, by float64 arithmetic that is exact.
func (f format) round(x float32) float64 {
	v := float64(x)
	if v == 0 || math.IsInf(v, 0) || math.IsNaN(v) {
		return v
	}
	place := max(math.Ilogb(v), f.least) - (f.digits - 1)
	v = math.Ldexp(math.RoundToEven(math.Ldexp(v, -place)), place)
	if math.Abs(v) >= math.Ldexp(1, f.greatest+1) {
		return math.Copysign(math.Inf(1), v)
	}
	return v
}

// value returns the number that an element's bits stand for.
func (f format) value(short uint16) float64 {
	fraction := int(short) & (1<<(f.digits-1) - 1)
	exponent := int(short&0x7fff) >> (f.digits - 1)
	v := math.Ldexp(float64(fraction), f.least-(f.digits-1))
	switch {
	case exponent == f.greatest-f.least+2 && fraction != 0:
		return math.NaN()
	case exponent == f.greatest-f.least+2:
		v = math.Inf(1)
	case exponent > 0:
		v = math.Ldexp(float64(fraction+1<<(f.digits-1)), f.least-(f.digits-1)+exponent-1)
	}
	if short>>15 != 0 {
		v = -v
	}
	return v
}

// same reports whether two numbers have the same bits, or both are NaN.
func same(a, b float64) bool {
	return math.Float64bits(a) == math.Float64bits(b) || math.IsNaN(a) && math.IsNaN(b)
}

// TestDecodeAllValues decodes each of the 65536 values, by loop and by vector. Encoding the result
// gives the same bits, with NaNs made quiet.
func TestDecodeAllValues(t *testing.T) {
	const values = 1 << 16
	src := make([]byte, 2*values)
	for i := range values {
		binary.LittleEndian.PutUint16(src[2*i:], uint16(i))
	}
	for _, e := range shortElements() {
		looped, got := make([]float32, values), make([]float32, values)
		decodeLoop(looped, src, e)
		decode(got, src, e)
		again := make([]byte, 2*values)
		encode(again, got, e)
		for i := range values {
			want := formatOf(e).value(uint16(i))
			if !same(float64(got[i]), want) {
				t.Fatalf("%v %#04x is %v, want %v", e, i, got[i], want)
			}
			if math.Float32bits(got[i]) != math.Float32bits(looped[i]) {
				t.Fatalf("%v %#04x is %x by vector, %x by loop", e, i, got[i], looped[i])
			}
			back := int(binary.LittleEndian.Uint16(again[2*i:]))
			if back != i && !(math.IsNaN(want) && back == i|quietOf(e)) {
				t.Fatalf("%v %#04x is sent on as %#04x", e, i, back)
			}
		}
	}
}

// quietOf returns the bit that makes a NaN of e quiet.
func quietOf(e Element) int { return 1 << (formatOf(e).digits - 2) }

// awkwardFloats returns floats of all signs and exponents with random fractions. Many of them lie
// halfway between two 16-bit numbers, or just beside.
func awkwardFloats(rng *rand.Rand) []float32 {
	var floats []float32
	for head := range uint32(1 << 9) {
		for range 64 {
			bits := head<<23 | rng.Uint32()>>9
			floats = append(floats, math.Float32frombits(bits))
			drop := rng.IntN(24) // halfway, if the element drops this many digits
			half := bits&^(1<<drop-1) | 1<<drop>>1
			for _, near := range []uint32{half - 1, half, half + 1} {
				floats = append(floats, math.Float32frombits(near))
			}
		}
		floats = append(floats, math.Float32frombits(head<<23), math.Float32frombits(head<<23|1))
	}
	return floats
}

func TestEncode(t *testing.T) {
	src := awkwardFloats(rand.New(rand.NewPCG(3, 3)))
	for _, e := range shortElements() {
		looped, got := make([]byte, 2*len(src)), make([]byte, 2*len(src))
		encodeLoop(looped, src, e)
		encode(got, src, e)
		for i, x := range src {
			short := binary.LittleEndian.Uint16(got[2*i:])
			if want := formatOf(e).round(x); !same(formatOf(e).value(short), want) {
				t.Fatalf("%v of %x is %v, want %v", e, x, formatOf(e).value(short), want)
			}
			if x != x && int(short)&quietOf(e) == 0 {
				t.Fatalf("%v of a NaN is %#04x, which is not quiet", e, short)
			}
			if other := binary.LittleEndian.Uint16(looped[2*i:]); other != short {
				t.Fatalf("%v of %x is %#04x by vector, %#04x by loop", e, x, short, other)
			}
		}
	}
}

// TestFeedback: number sent plus error kept equal the input exactly. A number that cannot be sent
// leaves no error.
func TestFeedback(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	src := awkwardFloats(rng)
	before := make([]float32, len(src))
	for i := range before {
		before[i] = src[i] * (rng.Float32() - 0.5)
		if before[i]-before[i] != 0 || i%3 == 0 {
			before[i] = 0
		}
	}
	for _, e := range shortElements() {
		residual, looped := slices.Clone(before), slices.Clone(before)
		dst, other := make([]byte, 2*len(src)), make([]byte, 2*len(src))
		encodeFeedback(dst, src, residual, e)
		encodeFeedbackLoop(other, src, looped, e)
		if !slices.Equal(dst, other) || !slices.Equal(Bytes(residual), Bytes(looped)) {
			t.Fatalf("%v: vectors and loop differ", e)
		}
		for i := range src {
			x := src[i] + before[i]
			sent := formatOf(e).value(binary.LittleEndian.Uint16(dst[2*i:]))
			if want := formatOf(e).round(x); !same(sent, want) {
				t.Fatalf("%v of %x+%x is %v, want %v", e, src[i], before[i], sent, want)
			}
			want := float64(x) - sent
			if want-want != 0 {
				want = 0
			}
			if float64(residual[i]) != want {
				t.Fatalf("%v of %x: the residual is %v, want %v", e, x, residual[i], want)
			}
		}
	}
	residual, dst := slices.Clone(before[:100]), make([]byte, 400)
	encodeFeedback(dst, src[:100], residual, Float32)
	for i, got := range residual {
		want := math.Float32bits(src[i] + before[i])
		if got != 0 || binary.LittleEndian.Uint32(dst[4*i:]) != want {
			t.Fatalf("float32 of %x+%x left %v", src[i], before[i], got)
		}
	}
}

// TestSettle: src becomes the decoded wire numbers.
func TestSettle(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	for _, e := range []Element{Float32, BFloat16, Float16} {
		for _, n := range []int{0, 1, 15, 17, settleBlock - 1, settleBlock, 3*settleBlock + 7} {
			for _, feedback := range []bool{false, true} {
				src, residual := make([]float32, n), []float32(nil)
				for i := range src {
					src[i] = rng.Float32() - 0.5
				}
				wire, dst := make([]byte, e.Bytes()*n), make([]byte, e.Bytes()*n)
				if feedback {
					residual = slices.Clone(src)
					encodeFeedback(wire, src, slices.Clone(src), e)
				} else {
					encode(wire, src, e)
				}
				want := make([]float32, n)
				decode(want, wire, e)
				settle(dst, src, residual, e)
				if !slices.Equal(dst, wire) || !slices.Equal(src, want) {
					t.Fatalf("%d of %v, feedback %v: wrong", n, e, feedback)
				}
			}
		}
	}
}

// TestWireAtEveryLengthAndAddress: every number is processed, and no memory past the end is
// touched.
func TestWireAtEveryLengthAndAddress(t *testing.T) {
	const longest, margin = 100, 40
	rng := rand.New(rand.NewPCG(6, 6))
	random := func() []float32 {
		floats := make([]float32, longest+margin)
		for i := range floats {
			floats[i] = rng.Float32() - 0.5
		}
		return floats
	}
	for _, e := range shortElements() {
		for n := range longest + 1 {
			for shift := range 8 {
				src, residual := random(), random()
				at := make([]byte, shift+2*longest+margin)[shift:]
				looped := slices.Clone(at)
				encode(at, src[:n], e)
				encodeLoop(looped, src[:n], e)
				checkBytes(t, "encode", e, n, shift, at, looped)
				other := slices.Clone(residual)
				encodeFeedback(at, src[:n], residual, e)
				encodeFeedbackLoop(looped, src[:n], other, e)
				checkBytes(t, "encodeFeedback", e, n, shift, at, looped)
				checkBytes(t, "residual", e, n, shift, Bytes(residual), Bytes(other))
				dst := random()
				other = slices.Clone(dst)
				addDecoded(dst[:n], at, e)
				addDecodedLoop(other[:n], at, e)
				checkBytes(t, "addDecoded", e, n, shift, Bytes(dst), Bytes(other))
				decode(dst[:n], at, e)
				decodeLoop(other[:n], at, e)
				checkBytes(t, "decode", e, n, shift, Bytes(dst), Bytes(other))
			}
		}
	}
}

func checkBytes(t *testing.T, what string, e Element, n, shift int, got, want []byte) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("%s of %d %v at address %d mod 8: wrong, or past the end", what, n, e, shift)
	}
}

// BenchmarkWire counts the floats' bytes, and measures a copy for comparison.
func BenchmarkWire(b *testing.B) {
	const floats = MaxChunkBytes / 4
	a, c, wire := make([]float32, floats), make([]float32, floats), make([]byte, 4*floats+1)[1:]
	run := func(name string, f func()) {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(4 * floats)
			for b.Loop() {
				f()
			}
		})
	}
	run("copy", func() { copy(wire, Bytes(a)) })
	run("add/fp32", func() { add(a, wire) })
	for _, e := range shortElements() {
		for _, op := range []struct {
			name string
			f    func()
		}{
			{"encode", func() { encode(wire, a, e) }},
			{"encodeLoop", func() { encodeLoop(wire, a, e) }},
			{"encodeFeedback", func() { encodeFeedback(wire, a, c, e) }},
			{"settle", func() { settle(wire, a, nil, e) }},
			{"addEncode", func() { addEncode(short(a, e), a, wire[:2*floats], nil, e) }},
			{"addSettle", func() { addSettle(nil, a, wire[:2*floats], nil, e) }},
			{"decode", func() { decode(a, wire, e) }},
			{"decodeLoop", func() { decodeLoop(a, wire, e) }},
			{"addDecoded", func() { addDecoded(a, wire, e) }},
		} {
			run(fmt.Sprintf("%s/%v", op.name, e), op.f)
		}
	}
}
